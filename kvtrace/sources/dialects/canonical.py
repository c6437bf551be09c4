"""Spans with `kvtrace.op`, from anyone: every column has one attribute (schema/attributes.py)."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa

from kvtrace.schema.attributes import CANONICAL, FOUND_BY_TIER_PREFIX, MEMBERS, OP
from kvtrace.schema.vocabulary import OPS, TIERS
from kvtrace.sinks.parquet.arrow import MEMBER_TYPE
from kvtrace.sources.dialects.attributes import Mask, integers, map_array
from kvtrace.sources.dialects.columns import Columns, where


def applies(columns: Columns) -> Mask:
    """Spans that name one of our operations."""
    return where(columns.attributes.text(OP), list(OPS))


def fill(columns: Columns, mask: Mask) -> None:
    """Every attribute of ours goes to its column; what does not fit stays an attribute."""
    present = set(columns.attributes.names())
    for attribute, column in CANONICAL.items():
        if attribute in present:
            columns.take(attribute, column, mask)
    if "gen_ai.request.id" in present:
        without = mask & columns["request_id"].is_null().to_numpy()
        columns.take("gen_ai.request.id", "request_id", without)
    columns.put("evidence", columns["evidence"].fill_null("native"), mask)
    is_open = mask & (columns["end_ns"].is_null() & columns["outcome"].is_null()).to_numpy()
    columns.put("outcome", "open", is_open)
    _found_by_tier(columns, mask, present)
    with_members = _members(columns, mask, present)
    pinned = mask & columns["attribution"].is_null().to_numpy()
    has_id = columns["request_id"].is_not_null().to_numpy()
    columns.put("attribution", "request", pinned & has_id)
    columns.put("attribution", "operation", pinned & ~has_id & with_members)


def _found_by_tier(columns: Columns, mask: Mask, present: set[str]) -> None:
    """`kvtrace.found_tokens.<tier>` -> one map."""
    rows, keys, values = [], [], []
    for tier in TIERS:
        name = FOUND_BY_TIER_PREFIX + tier
        if name not in present:
            continue
        tokens = integers(columns.attributes.text(name))
        at = np.flatnonzero(mask & tokens.is_not_null().to_numpy())
        columns.attributes.understood(name, mask & tokens.is_not_null().to_numpy())
        rows.append(at)
        keys.extend([tier] * at.size)
        values.append(tokens.gather(at).to_numpy())
    if rows:
        put_map(columns, np.concatenate(rows), keys, np.concatenate(values))


def put_map(columns: Columns, rows: np.ndarray, keys: list[str], values: np.ndarray) -> None:
    """Fill found_by_tier from (row, tier, tokens) triples in any order."""
    order = np.argsort(rows, kind="stable")
    names = pa.array(keys, pa.string()).take(pa.array(order))
    columns.put_arrow(
        "found_by_tier", map_array(columns.rows, rows[order], names, pa.array(values[order], pa.int64()))
    )


def _lists(text: pl.Series, field: pa.DataType) -> pl.Series:
    """JSON arrays -> lists; null where the text is none."""
    kind = pl.List(pl.Int64 if pa.types.is_integer(field) else pl.String)
    try:
        return text.str.json_decode(kind)
    except pl.exceptions.PolarsError:
        rows = [_one(value, kind) for value in text]
        return pl.Series(rows, dtype=kind)


def _one(value: str | None, kind: pl.List) -> list[object] | None:
    try:
        return pl.Series([value], dtype=pl.String).str.json_decode(kind).to_list()[0]
    except pl.exceptions.PolarsError:
        return None


def _members(columns: Columns, mask: Mask, present: set[str]) -> Mask:
    """Arrays of equal length -> members; arrays that disagree stay attributes."""
    ids_name = next(iter(MEMBERS))
    nobody = np.zeros(columns.rows, bool)
    if ids_name not in present:
        return nobody
    lists = {
        field: _lists(columns.attributes.text(name), MEMBER_TYPE.field(field).type)
        for name, field in MEMBERS.items()
        if name in present
    }
    length = lists["request_id"].list.len()
    good = mask & length.is_not_null().to_numpy()
    for values in lists.values():
        good &= (values.is_null() | (values.list.len() == length)).fill_null(value=False).to_numpy()
    counts = length.fill_null(0).to_numpy() * good
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    total = int(offsets[-1])
    fields = []
    for field in MEMBER_TYPE:
        values = lists.get(field.name)
        if values is None:
            fields.append(pa.nulls(total, field.type))
            continue
        gaps = pl.Series(good & values.is_null().to_numpy())
        filled = pl.select(
            pl.when(gaps).then(pl.lit(None, values.dtype.inner).repeat_by(length.fill_null(0)))  # type: ignore[attr-defined]
            .when(pl.Series(good)).then(values)
        ).to_series()  # fmt: skip
        flat = filled.filter(good & (counts > 0)).explode(empty_as_null=False)
        fields.append(flat.to_arrow().cast(field.type))
    members = pa.StructArray.from_arrays(fields, fields=list(MEMBER_TYPE))
    columns.put_arrow("members", pa.ListArray.from_arrays(pa.array(offsets, mask=np.append(~good, False)), members))
    for name in MEMBERS:
        columns.attributes.understood(name, good)
    return good
