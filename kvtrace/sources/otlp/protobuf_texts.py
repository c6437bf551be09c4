"""The texts of attribute values: ptars gives a column a member of AnyValue, at most one of them set."""

from __future__ import annotations

import base64
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pa_compute
from opentelemetry.proto.common.v1.common_pb2 import ArrayValue, KeyValueList

from kvtrace.sources.otlp import protobuf_loop as loop
from kvtrace.sources.otlp import values
from kvtrace.sources.otlp.batch import Gate

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvtrace.sources.otlp import batch, ids

pc: Any = pa_compute  # the stubs type every combination of scalar and array, but not these


class OddError(Exception):
    """Something that only the loop reads right."""


def texts(anys: batch.Column, times: ids.Matrix, gate: batch.Gate) -> batch.Column:
    """The text of each value, null where no member is set; `times` each occurs, for what the gate counts."""
    members = {field.name: pc.struct_field(anys, field.name) for field in anys.type}
    set_once = np.zeros(len(anys), dtype=np.int8)
    for member in members.values():
        if member.null_count < len(member):
            set_once += member.is_valid().to_numpy(zero_copy_only=False)
    if (set_once > 1).any():
        raise OddError
    found = members["string_value"]
    for name, member in members.items():
        if name == "string_value" or member.null_count == len(member):
            continue
        present = member.is_valid()
        own = times[present.to_numpy(zero_copy_only=False)]
        nested = _NESTED.get(name)
        column = member.drop_null()
        made = _nested_texts(nested, column, own, gate) if nested else _plain_texts(name, column)
        found = pc.replace_with_mask(found, present, made)
    return found


def _plain_texts(member: str, column: batch.Column) -> batch.Column:
    """The texts of one member of AnyValue, which has no nulls."""
    if member == "double_value":
        return _double_texts(column)
    if member == "bytes_value":
        return pa.array([base64.b64encode(value).decode() for value in column.to_pylist()], pa.string())
    return column.cast(pa.string())


def _array(raw: bytes, gate: batch.Gate) -> values.Plain:
    return [loop.plain(item, gate) for item in ArrayValue.FromString(raw).values]


def _map(raw: bytes, gate: batch.Gate) -> values.Plain:
    return values.members(loop.pairs(KeyValueList.FromString(raw).values, gate), gate)


_NESTED = {"array_value": _array, "kvlist_value": _map}


def _nested_texts(
    nested: Callable[[bytes, batch.Gate], values.Plain],
    column: batch.Column,
    times: ids.Matrix,
    gate: batch.Gate,
) -> batch.Column:
    """The texts of arrays or maps: content inside of one is dropped as often as the whole occurs."""
    found = []
    for raw, count in zip(column.to_pylist(), times.tolist(), strict=True):
        own = Gate(gate.keep, Counter())
        found.append(values.text(nested(raw, own)))
        for name, dropped in own.dropped.items():
            gate.dropped[name] += dropped * count
    return pa.array(found, pa.string())


def _double_texts(column: batch.Column) -> batch.Column:
    """Shortest text that reads back equal, as Python's repr writes it.

    Arrow finds the same digits at a tenth of the price, but writes exponents elsewhere and leaves ".0"
    out: it gets the range where that can be mended, repr the rest.
    """
    numbers = column.to_numpy()
    size = np.abs(numbers)
    alike = ((size >= 1e-4) & (size < 1e10)) | (size == 0)
    written = column.cast(pa.string())
    whole = alike & (numbers == np.floor(numbers))
    if whole.any():
        mask = pa.array(whole)
        mended = pc.binary_join_element_wise(written.filter(mask), ".0", "")
        written = pc.replace_with_mask(written, mask, mended)
    if not alike.all():
        other = [repr(number) for number in numbers[~alike].tolist()]
        written = pc.replace_with_mask(written, pa.array(~alike), pa.array(other, pa.string()))
    return written
