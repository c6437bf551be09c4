"""Completions of several prompts, or of several answers to one: one body, a request of the engine for each.

client   cmpl-a7     |---------------------------|    usage: the sum over the prompts
engine   cmpl-a7-0   |-----------------|              its own tokens
         cmpl-a7-1   |-------------|                  its own tokens; with n > 1: 0_cmpl-a7-0, 1_cmpl-a7-0

The call is no request: its row loses its op, and has the requests of its time as members. Its `usage` is
theirs together, and nobody's alone: vLLM 0.32 sums prompt and completion tokens (a prompt once whatever its
n), but its cached_tokens are those of one prompt, the last, or in a stream the first to answer
(completion/serving.py). A chat has one prompt and keeps its name: with n > 1 its row goes to one answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa

from kvtrace.importer.columns import holds
from kvtrace.sinks.parquet.arrow import MEMBER_TYPE

if TYPE_CHECKING:
    import numpy.typing as npt

_PROMPT = r"(?s)^(cmpl-.+)-\d+$"
"""vLLM 0.32: the external id of a completion's prompt is the answer's id and the number of the prompt."""
_CHILD = r"^(\d+)_(?:chat)?cmpl-"
_FOREVER = 2**63 - 1


def several_prompts(names: pl.DataFrame, external: pl.DataFrame) -> pl.DataFrame:
    """Those of some names (alias, request_id, start_ns, end_ns) that mean several requests of one call.

    `external` = (alias, request_id): what the API server calls a request; one that is not there has its own
    name. A call that is sent again under the same name has the same external names again.
    """
    known = external.select("request_id", name="alias").unique("request_id")
    named = names.join(known, on="request_id", how="left").with_columns(
        pl.coalesce("name", "request_id").alias("name")
    )
    part = pl.struct("name", pl.col("request_id").str.extract(_CHILD, 1))
    call = pl.coalesce(pl.col("name").str.extract(_PROMPT, 1), "name")
    counted = named.group_by("alias").agg(parts=part.n_unique(), calls=call.n_unique())
    found = counted.filter((pl.col("parts") > 1) & (pl.col("calls") == 1))
    return names.join(found, on="alias", how="semi")


def as_calls(chunk: pa.Table, calls: pl.DataFrame) -> pa.Table:
    """Rows of a call with several prompts: no request of their own, but the requests of their time."""
    if not calls.height or "request_id" not in chunk.column_names:
        return chunk
    at = np.flatnonzero(holds(chunk, "op", "request"))
    rows = pl.DataFrame(
        {"at": at, "alias": pl.Series(chunk["request_id"].take(pa.array(at)).cast(pa.string()))}
    )
    own = rows.join(calls.select("alias").unique(), on="alias", how="semi")["at"].to_numpy()
    if not own.size:
        return chunk
    members = _requests(chunk, own, calls)
    is_call = np.zeros(chunk.num_rows, bool)
    is_call[own] = True
    for column, words in (("op", None), ("attribution", "operation")):
        said = pl.Series(chunk[column].cast(pa.string())) if column in chunk.column_names else pl.lit(None)
        told = pl.select(
            pl.when(pl.Series(is_call)).then(pl.lit(words, pl.String)).otherwise(said)
        ).to_series()
        chunk = _with(chunk, column, told.to_arrow().cast(pa.string()).dictionary_encode())
    return _with(chunk, "members", _lists(chunk, members))


def _requests(chunk: pa.Table, own: npt.NDArray[np.int64], calls: pl.DataFrame) -> pl.DataFrame:
    """For each row (at) of a call the requests of its name that lived in its time; all, if none did."""
    taken = chunk.take(pa.array(own))
    ends = pl.Series(taken["end_ns"]) if "end_ns" in taken.column_names else pl.Series([None] * own.size)
    rows = pl.DataFrame(
        {"at": own, "alias": pl.Series(taken["request_id"].cast(pa.string())),
         "from_ns": pl.Series(taken["start_ns"]), "to_ns": ends.cast(pl.Int64).fill_null(_FOREVER)}
    )  # fmt: skip
    both = rows.join(calls, on="alias").with_columns(
        met=(pl.col("start_ns") < pl.col("to_ns"))
        & (pl.col("end_ns").fill_null(_FOREVER) > pl.col("from_ns"))
    )
    found = both.filter(pl.col("met") | ~pl.col("met").any().over("at"))
    return found.group_by("at").agg(pl.col("request_id").unique().sort())


def _lists(chunk: pa.Table, members: pl.DataFrame) -> pa.Array:
    """The column of members: those of calls, and what other rows have."""
    before = (
        chunk["members"].combine_chunks()
        if "members" in chunk.column_names
        else pa.nulls(chunk.num_rows, pa.list_(MEMBER_TYPE))
    )
    names = members["request_id"].explode(empty_as_null=False)
    fields = [
        names.to_arrow().cast(field.type) if field.name == "request_id" else pa.nulls(len(names), field.type)
        for field in before.type.value_type
    ]
    entries = pa.StructArray.from_arrays(fields, fields=list(before.type.value_type))
    offsets = np.concatenate([[0], np.cumsum(members["request_id"].list.len().to_numpy())]).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), entries, type=before.type)
    places = np.arange(chunk.num_rows)
    places[members["at"].to_numpy()] = chunk.num_rows + np.arange(members.height)
    return pa.concat_arrays([before, lists]).take(pa.array(places))


def _with(chunk: pa.Table, column: str, values: pa.Array) -> pa.Table:
    if column not in chunk.column_names:
        return chunk.append_column(column, values)
    at = chunk.column_names.index(column)
    return chunk.set_column(at, column, values.cast(chunk.schema.field(column).type))
