"""Requests of a workload trace, whoever wrote it: what was or will be asked, and by which keys.

    request      predicted: no engine of this run saw it
    request_key  one row a block of its prompt: equal keys mean an equal prompt up to there

A trace counts its time from its own beginning: its rows begin at TRACE_START_NS, and a note says so. Times
that are unix times already stay as they are. Keys are made in columns: a trace has dozens a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from kvtrace.sources.decoded import ROWS_A_PART, Decoded
from kvtrace.sources.records import LATEST_NS, Rows, span_ns, text, time_ns, values_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from kvtrace.sources.stream import Stream

TRACE_START_NS = 1_000_000_000
"""Where a trace's 0 is put: no row of a run begins at 0."""
UNIX_FROM_NS = 978_307_200_000_000_000
"""Times from 2001 on are unix times: no trace lasts so long."""
PLACED = "requests of a trace that counts from its own beginning, placed from a second after 1970 on"
PLANNED = "requests of a workload trace (their rows are predicted: nothing of them happened in this run)"
NO_ARRIVAL = "requests without an arrival or a length"
BAD_KEYS = "keys from the first on that is no number and no name"
LATE_KEYS = "keys beyond the end of their prompt, of which a block has at least one token"
MOST_KEY = 2**64


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of a trace.

    name: its id, one of a kind in the run
    start_ns: its arrival
    prompt_tokens, output_tokens: its lengths
    keys: what the blocks of its prompt are called, from the first on
    key_space: where those names mean something
    block_tokens: tokens of a block (the last of a prompt may have fewer); None where the trace does not say
    said: all else that is worth keeping
    """

    name: str
    start_ns: int
    prompt_tokens: int
    output_tokens: int | None
    keys: list[str]
    key_space: str
    block_tokens: int | None
    said: dict[str, str]


class Workload:
    """Takes requests, adds rows; the keys in columns."""

    def __init__(self, source: str) -> None:
        self.rows = Rows(source)
        self._asked: list[Asked] = []
        self._keys: list[str] = []

    def add(self, asked: Asked) -> None:
        """A request and its keys."""
        self.rows.remark(PLANNED)
        self.rows.add("span", {
            "op": "request", "name": "workload", "request_id": asked.name, "id_kind": "internal",
            "start_ns": asked.start_ns, "prompt_tokens": asked.prompt_tokens,
            "output_tokens": asked.output_tokens, "workload_key": asked.name, "attribution": "request",
            "evidence": "predicted", "attributes": asked.said,
        })  # fmt: skip
        if asked.keys:
            self._asked.append(asked)
            self._keys += asked.keys

    @property
    def full(self) -> bool:
        """Whether it is time for a part."""
        return self.rows.full or len(self._keys) >= ROWS_A_PART

    def part(self) -> Decoded:
        """What has waited since the last part."""
        return self._with_keys(self.rows.part())

    def end(self) -> Decoded:
        """The last part, with all that was counted."""
        return self._with_keys(self.rows.end())

    def _with_keys(self, part: Decoded) -> Decoded:
        if not self._asked:
            return part
        tables = {**part.tables, "request_key": _frame(self._asked, self._keys, self.rows.source)}
        self._asked, self._keys = [], []
        return Decoded(tables, losses=part.losses, content=part.content, notes=part.notes)

    def arrival(self, value: Any, unit_ns: int) -> int | None:
        """A time of the trace as ns of a run; None for none."""
        unix = time_ns(value, unit_ns)
        if unix is not None and unix >= UNIX_FROM_NS:
            return unix
        since = span_ns(value, unit_ns)
        if since is None:
            return None
        self.rows.remark(PLACED)
        return TRACE_START_NS + since

    def keys(self, found: Any, prompt_tokens: int) -> list[str]:
        """The names of the blocks of a prompt, up to the first that is none: what follows it is no prefix."""
        if not isinstance(found, list):
            return []
        if len(found) > prompt_tokens:
            self.rows.refuse(LATE_KEYS, op="request", count=len(found) - prompt_tokens)
            found = found[:prompt_tokens]
        if set(map(type, found)) == {int} and min(found) >= 0 and max(found) < MOST_KEY:
            return list(map(str, found))
        names: list[str] = []
        for value in found:
            name = _key(value)
            if name is None:
                self.rows.refuse(BAD_KEYS, op="request", count=len(found) - len(names))
                break
            names.append(name)
        return names


def read_requests(
    stream: Stream, workload: Workload, taken: Callable[[Any], Iterable[None]], finish: Callable[[], None]
) -> Iterator[Decoded]:
    """The parts of a file of JSON lines; `taken` pauses after each request, `finish` is called at the end."""
    for value in values_of(stream, workload.rows):
        for _ in taken(value):
            if workload.full:
                yield workload.part()
    finish()
    yield workload.end()


def _key(value: Any) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_KEY:
        return str(value)
    return text(value)


def _frame(asked: Sequence[Asked], keys: list[str], source: str) -> pl.DataFrame:
    """The rows of `request_key`; the last block of a prompt has what is left of it."""
    counts = np.array([len(each.keys) for each in asked])
    of = np.repeat(np.arange(len(asked)), counts)
    position = np.arange(of.size) - np.repeat(np.cumsum(counts) - counts, counts)
    size = np.array([each.block_tokens or 0 for each in asked], np.int64)[of]
    prompt = np.array([each.prompt_tokens for each in asked], np.int64)[of]
    beyond = position * size.astype(float) >= LATEST_NS  # where the product of whole numbers would come round
    tokens = np.minimum(size, prompt - np.where(beyond, prompt, position * size))
    requests = pl.DataFrame(
        {
            "request_id": [each.name for each in asked],
            "key_space": [each.key_space for each in asked],
            "time_ns": pl.Series([each.start_ns for each in asked], dtype=pl.Int64),
        }
    )
    return requests[of].with_columns(
        pl.Series("key", keys, dtype=pl.String),
        pl.Series("position", position, dtype=pl.Int64),
        pl.Series("tokens", tokens, dtype=pl.Int64).set(pl.Series(tokens <= 0), None),
        attempt=pl.lit(1, dtype=pl.Int64),
        source=pl.lit(source),
    )
