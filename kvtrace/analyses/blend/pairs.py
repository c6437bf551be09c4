"""The pairs file: what a request gave with all computed, and what it gave blended. JSONL or Parquet.

A line or row a request; what is malformed is refused with its place, nothing is skipped in silence.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from kvtrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_LINE_BYTES = 64 << 20
MOST_VALUES = 1 << 22
"""Numbers of a Parquet row group, over the columns that are read: each may be an object of 32 bytes."""
BATCH_ROWS = 1

TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Pair(msgspec.Struct, frozen=True):
    """One request computed in full and blended; logits are rows of numbers, or the name of a file."""

    request_id: Annotated[str, msgspec.Meta(min_length=1)]
    full_tokens: list[TokenId] | None = None
    blended_tokens: list[TokenId] | None = None
    full_logits: list[list[float]] | str | None = None
    blended_logits: list[list[float]] | str | None = None
    recompute_ratio: Share | None = None
    full_quality: float | None = None
    blended_quality: float | None = None
    full_e2e_ns: Nanoseconds | None = None
    blended_e2e_ns: Nanoseconds | None = None


_DECODER = msgspec.json.Decoder(Pair)


def read_pairs(path: Path) -> Iterator[Pair]:
    """Every pair of a file, in its order; a few at a time are in memory.

    Raises:
        InputError: the file cannot be read as pairs, or a request is there twice.
    """
    try:
        with path.open("rb") as file:
            is_parquet = file.read(4) == b"PAR1"
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}).") from error
    seen: set[str] = set()
    for place, raw in (_parquet if is_parquet else _lines)(path):
        pair = _checked(place, raw)
        if pair.request_id in seen:
            raise InputError(f"{place}: a second pair of the same request_id; give each request once.")
        seen.add(pair.request_id)
        yield pair


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MOST_LINE_BYTES + 1):
            number += 1
            place = f"{path}, line {number}"
            if len(line) > MOST_LINE_BYTES:
                raise InputError(
                    f"{place}: longer than {MOST_LINE_BYTES >> 20} MiB; name a file (.npy, .safetensors, "
                    ".pt) instead of writing the logits out."
                )
            if line.strip():
                yield place, _json(place, line)


def _json(place: str, line: bytes) -> Any:
    """A pair at once where the line is one; else what it is, NaN and infinities included."""
    try:
        return _DECODER.decode(line)
    except (ValueError, RecursionError):
        pass  # what is wrong with it, if anything, is said below
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: is no JSON, nor is the file Parquet.") from error


def _parquet(path: Path) -> Iterator[tuple[str, Any]]:
    known = set(Pair.__struct_fields__)
    try:
        with pq.ParquetFile(path) as file:
            _require_bounded(path, file.metadata, known)
            names = [name for name in file.schema_arrow.names if name in known]
            number = 0
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=names):
                for raw in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", raw
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: cannot be read as Parquet ({str(error).splitlines()[0]}).") from error


def _require_bounded(path: Path, metadata: Any, known: set[str]) -> None:
    """A few packed bytes may claim more numbers than there is memory."""
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = [group.column(place) for place in range(group.num_columns)]
        values = sum(one.num_values for one in columns if one.path_in_schema.split(".")[0] in known)
        if values > MOST_VALUES:
            raise InputError(
                f"{path}: a row group has {values:,} values; write smaller ones, of at most {MOST_VALUES:,}, "
                "or name files of logits (.npy, .safetensors, .pt)."
            )


def _checked(place: str, raw: Any) -> Pair:
    try:
        pair = raw if isinstance(raw, Pair) else msgspec.convert(raw, Pair)
        pair.request_id.encode()
    except (msgspec.ValidationError, UnicodeEncodeError, RecursionError) as error:
        said = str(error).splitlines()[0] if isinstance(error, msgspec.ValidationError) else "no text"
        raise InputError(f"{place}: is no pair ({said}); kvtrace describe blend names its fields.") from error
    for what in ("tokens", "logits"):
        sides = [getattr(pair, f"{side}_{what}") is not None for side in ("full", "blended")]
        if any(sides) and not all(sides):
            raise InputError(
                f"{place}: has {what} of one side only; a pair has full_{what} and blended_{what}."
            )
    if pair.full_tokens is None and pair.full_logits is None:
        raise InputError(f"{place}: has neither token ids nor logits.")
    for name in ("full_quality", "blended_quality"):
        if (value := getattr(pair, name)) is not None and not abs(value) < float("inf"):
            raise InputError(f"{place}: {name} is no finite number.")
    return pair
