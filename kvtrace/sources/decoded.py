"""What a decoder gives: rows of a run's tables, and what it could not read.

A format is a module or package of `kvtrace/sources/` with three names, found by listing the folder:

    FORMAT                          its name: `--format`, reports, errors
    looks_like(head) -> bool        whether a file that begins so is one; at most one format says yes
    read(stream, source, options)   its parts, in bounded memory; thin over a pure `decode`
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import polars as pl

    from kvtrace.sources.losses import Loss
    from kvtrace.sources.stream import Stream

ROWS_A_PART = 50_000
"""About how many rows a part has: what a decoder holds at once."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to read.

    keep_content: keep prompt text where a source has it; else it is counted and dropped
    digest_key: random, made for one import and never stored: equal tokens are recognised inside a run alone
    """

    keep_content: bool = False
    digest_key: bytes = b""


@dataclass(frozen=True, slots=True)
class Decoded:
    """One part of an input.

    tables: rows by table (span, block, request_key, metric, alias), any of its columns; spans also id_kind
    identities, processes: rows of those tables
    losses: what could not be read
    content: what was counted and dropped, by name
    notes: remarks for whoever imports
    """

    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    identities: tuple[dict[str, Any], ...] = ()
    processes: tuple[dict[str, Any], ...] = ()
    losses: tuple[Loss, ...] = ()
    content: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Format(Protocol):
    """A module that reads one format."""

    FORMAT: str

    def looks_like(self, head: bytes) -> bool:
        """Whether a file that begins so is one of this format."""

    def read(self, stream: Stream, source: str, options: Options) -> Iterator[Decoded]:
        """The parts of a file; `source` names it in losses and aliases."""
