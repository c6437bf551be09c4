"""The texts of attribute values: ptars gives a column a member of AnyValue, at most one of them set."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pa_compute
from opentelemetry.proto.common.v1.common_pb2 import ArrayValue, KeyValueList

from kvtrace.sources.otlp import protobuf_loop as loop
from kvtrace.sources.otlp import values

if TYPE_CHECKING:
    from kvtrace.sources.otlp import batch

pc: Any = pa_compute  # the stubs type every combination of scalar and array, but not these


class OddError(Exception):
    """Something that only the loop reads right."""


def texts(anys: batch.Column, gate: batch.Gate) -> batch.Column:
    """The text of each value: the one member that is set, as text; null where none is."""
    members = {field.name: pc.struct_field(anys, field.name) for field in anys.type}
    set_once = np.zeros(len(anys), dtype=np.int8)
    for member in members.values():
        if member.null_count < len(member):
            set_once += member.is_valid().to_numpy(zero_copy_only=False)
    if (set_once > 1).any():
        raise OddError
    found = members["string_value"]
    for name, member in members.items():
        if name != "string_value" and member.null_count < len(member):
            present = member.is_valid()
            found = pc.replace_with_mask(found, present, _cast(name, member.drop_null(), gate))
    return found


def _cast(member: str, column: batch.Column, gate: batch.Gate) -> batch.Column:
    """The texts of one member of AnyValue, which has no nulls."""
    if member == "double_value":
        return _double_texts(column)
    if member == "bytes_value":
        return pa.array([base64.b64encode(value).decode() for value in column.to_pylist()], pa.string())
    if member == "array_value":
        arrays = (ArrayValue.FromString(value).values for value in column.to_pylist())
        found = [values.text([loop.plain(item, gate) for item in array]) for array in arrays]
        return pa.array(found, pa.string())
    if member == "kvlist_value":
        maps = (KeyValueList.FromString(value).values for value in column.to_pylist())
        found = [values.text(values.members(loop.pairs(entries, gate), gate)) for entries in maps]
        return pa.array(found, pa.string())
    return column.cast(pa.string())


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
