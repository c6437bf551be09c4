"""The small tables of several inputs as one: a row that a second input has again counts once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from kvtrace.sinks.parquet.arrow import conform

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_SAME = {"alias": ["alias", "kind", "request_id"]}
"""What makes two rows one, where it is less than all of them: a name that was seen need not be derived."""


def gathered(inputs: list[list[pa.Table]], made: Iterable[pa.Table], table: str) -> Iterator[pa.Table]:
    """Rows of a table that runs gave, input by input, and then those made here.

    Rows that look alike within one input all count (two losses, two samples); what an earlier input had
    already does not count again.
    """
    if not inputs:
        yield from (conform(part, table) for part in made)
        return
    sides = [[conform(part, table) for part in side] for side in (*inputs, list(made))]
    wholes = [pa.concat_tables(side).combine_chunks() for side in sides if side]
    if table == "process":
        yield _one_a_process(wholes)
        return
    seen: pl.DataFrame | None = None
    for whole in wholes:
        rows = _comparable(whole)
        if seen is None:
            fresh, seen = rows, rows
        else:
            same = _SAME.get(table) or [name for name in rows.columns if name != "at"]
            fresh = rows.join(seen, on=same, how="anti", nulls_equal=True)
            seen = pl.concat([seen, fresh])
        yield whole.take(pa.array(fresh["at"].cast(pl.Int64).sort().to_arrow()))


def _comparable(rows: pa.Table) -> pl.DataFrame:
    """What makes a row, with its number `at`: every column but the run it came from; maps as text."""
    columns: dict[str, Any] = {"at": pl.int_range(rows.num_rows, eager=True)}
    for name in rows.column_names:
        if name == "run_id":
            continue
        values = rows[name]
        if pa.types.is_map(values.type):
            texts = [None if item is None else json.dumps(sorted(item)) for item in values.to_pylist()]
            columns[name] = pl.Series(texts, dtype=pl.String)
        else:
            columns[name] = pl.Series(values)
    return pl.DataFrame(columns)


def _one_a_process(wholes: list[pa.Table]) -> pa.Table:
    """Several inputs know the same process: what is known first stays, times cover all of them."""
    whole = pa.concat_tables(wholes).combine_chunks()
    found: dict[str | None, dict[str, Any]] = {}
    for row in whole.to_pylist():
        known = found.setdefault(row["process"], dict(row))
        known.update({name: value for name, value in row.items() if known[name] is None})
        for name, choose in (("first_ns", min), ("last_ns", max)):
            times = [time for time in (known[name], row[name]) if time is not None]
            known[name] = choose(times) if times else None
    columns = [pa.array([row[field.name] for row in found.values()], field.type) for field in whole.schema]
    return pa.Table.from_arrays(columns, schema=whole.schema)
