"""Spans with `kvtrace.op`, from anyone: every column has one attribute (schema/attributes.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa

from kvtrace.schema.attributes import ALIASES, CANONICAL, FOUND_BY_TIER_PREFIX, MEMBERS, OP
from kvtrace.schema.vocabulary import OPS, TIERS
from kvtrace.sinks.parquet.arrow import MEMBER_TYPE
from kvtrace.sources.dialects.attributes import Mask, map_array

if TYPE_CHECKING:
    from kvtrace.sources.dialects.columns import Columns


def applies(columns: Columns) -> Mask:
    """Spans that name one of our operations."""
    found, words = columns.attributes.words(OP)
    known = np.array([*(word in OPS for word in words), False])
    return known[found]


def fill(columns: Columns, mask: Mask) -> None:
    """Every attribute of ours goes to its column; what does not fit stays an attribute."""
    present = columns.attributes.names()
    for attribute, column in CANONICAL.items():
        if attribute in present:
            columns.take(attribute, column, mask)
    for name in ALIASES["request_id"]:
        columns.take(name, "request_id", mask & ~columns.known("request_id"))
    columns.put("evidence", "native", mask & ~columns.known("evidence"))
    _, ended = columns.number("end_ns")
    columns.put("outcome", "open", mask & ~ended & ~columns.known("outcome"))
    believe_first_token(columns, mask)
    _found_by_tier(columns, mask, present)
    with_members = _members(columns, mask, present)
    pinned = mask & ~columns.known("attribution")
    has_id = columns.known("request_id")
    columns.put("attribution", "request", pinned & has_id)
    columns.put("attribution", "operation", pinned & ~has_id & with_members)


def _found_by_tier(columns: Columns, mask: Mask, present: set[str]) -> None:
    """`kvtrace.found_tokens.<tier>` -> one map."""
    names = {FOUND_BY_TIER_PREFIX + tier: tier for tier in TIERS}
    put_tiers(columns, {name: tier for name, tier in names.items() if name in present}, mask)


def believe_first_token(columns: Columns, mask: Mask) -> None:
    """A first token before the arrival or after the finish is none: it stays an attribute, and is counted."""
    token, known = columns.number("first_token_ns")
    start, _ = columns.number("start_ns")
    end, ended = columns.number("end_ns")
    wrong = mask & known & ((token < start) | (ended & (token > end)))
    known &= ~wrong
    columns.attributes.misunderstood("kvtrace.first_token_ns", wrong)
    columns.refuse("negative_duration", "request", wrong, "first tokens outside of their request")


def put_tiers(columns: Columns, names: dict[str, str], mask: Mask) -> None:
    """Fill found_by_tier from attributes, one a tier."""
    rows, keys, values = [], [], []
    for name, tier in names.items():
        tokens, valid = columns.attributes.integers(name)
        own = mask & valid
        columns.attributes.understood(name, own)
        at = np.flatnonzero(own)
        rows.append(at)
        keys.extend([tier] * at.size)
        values.append(tokens[at])
    if not rows:
        return
    row = np.concatenate(rows)
    order = np.argsort(row, kind="stable")
    tiers = pa.array(keys, pa.string()).take(pa.array(order))
    tokens_found = pa.array(np.concatenate(values)[order], pa.int64())
    columns.put_nested("found_by_tier", map_array(columns.rows, row[order], tiers, tokens_found))


def _lists(text: pl.Series, field: pa.DataType) -> pl.Series:
    """JSON arrays -> lists; null where the text is none."""
    kind = pl.List(pl.Int64 if pa.types.is_integer(field) else pl.String)
    try:
        return text.str.json_decode(kind)
    except pl.exceptions.PolarsError:
        rows = [_one(value, kind) for value in text]
        return pl.Series(rows, dtype=kind)


def _as_texts(value: str, kind: pl.List) -> list[object] | None:
    """An array of numbers that came as texts, each a whole number."""
    texts = pl.Series([value], dtype=pl.String).str.json_decode(pl.List(pl.String)).to_list()[0]
    numbers = pl.Series(texts, dtype=pl.String).cast(kind.inner, strict=False)
    return (
        None
        if texts is None or numbers.null_count() > sum(item is None for item in texts)
        else numbers.to_list()
    )


def _one(value: str | None, kind: pl.List) -> list[object] | None:
    try:
        found: list[object] | None = pl.Series([value], dtype=pl.String).str.json_decode(kind).to_list()[0]
    except pl.exceptions.PolarsError:
        try:
            return None if value is None else _as_texts(value, kind)
        except pl.exceptions.PolarsError:
            return None
    return found


def _members(columns: Columns, mask: Mask, present: set[str]) -> Mask:
    """Arrays of equal length -> members; arrays that disagree stay attributes."""
    ids_name = next(iter(MEMBERS))
    nobody = np.zeros(columns.rows, bool)
    if ids_name not in present:
        return nobody
    lists = {
        field: _lists(columns.attributes.texts(name), MEMBER_TYPE.field(field).type)
        for name, field in MEMBERS.items()
        if name in present
    }
    length = lists["request_id"].list.len()
    good = mask & length.is_not_null().to_numpy()
    for name, field in MEMBERS.items():
        if field in lists:
            absent = columns.attributes.at(name) < 0
            good &= absent | (lists[field].list.len() == length).fill_null(value=False).to_numpy()
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
    columns.put_nested(
        "members", pa.ListArray.from_arrays(pa.array(offsets, mask=np.append(~good, False)), members)
    )
    for name in MEMBERS:
        columns.attributes.understood(name, good)
    refused = mask & (columns.attributes.at(ids_name) >= 0) & ~good
    for op in ("step", "wait", None):
        own = refused & (
            columns.is_word("op", op)
            if op
            else ~columns.is_word("op", "step") & ~columns.is_word("op", "wait")
        )
        columns.refuse("undecodable", op or "load", own, "members whose arrays differ in length, or are none")
    return good
