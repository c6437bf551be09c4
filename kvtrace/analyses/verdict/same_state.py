"""Was what a request read written as state of the very kind that it needs?

    engine a   writes k0 k1      r1 of engine b reads k0 k1     both said the same of their state: yes
                                                                they differ in dtype: no
    ?          writes k2         r2 reads k2                    who wrote it was not seen: unchecked

What an engine keeps in its own host memory, with nothing below it, is its own, whether keys were recorded or
not. With records lost, what holds of those that are left proves nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses._blended import blended
from kvtrace.analyses.compatibility._findings import Asked
from kvtrace.analyses.compatibility._keepers import product
from kvtrace.analyses.compatibility.read_as_written import MATCHED, unlike

if TYPE_CHECKING:
    from kvtrace.run import Run

_READS = f"""
{MATCHED}
SELECT request_id, writer, reader, component, key_space, count(*) AS reads
FROM matched GROUP BY ALL ORDER BY ALL
"""  # noqa: S608 - constants of a module

_OWN_MEMORY = """
WITH elsewhere AS (
    SELECT DISTINCT engine FROM span WHERE op IN ('load', 'store')
        AND (tier_from IN ('disk', 'peer', 'object') OR tier_to IN ('disk', 'peer', 'object'))
    UNION SELECT engine FROM block WHERE tier IN ('disk', 'peer', 'object')
)
SELECT t.request_id FROM transfer t JOIN read_parquet($served) s USING (request_id)
WHERE t.op = 'load' AND t.evidence IS DISTINCT FROM 'predicted'
GROUP BY t.request_id
HAVING bool_and(coalesce(t.tier_from = 'host' AND t.tier_to = 'gpu' AND t.observer = 'worker'
    AND t.engine = s.engine AND t.purpose IS DISTINCT FROM 'handoff'
    AND t.engine NOT IN (SELECT engine FROM elsewhere WHERE engine IS NOT NULL), false))
"""


def same_state(run: Run, served: str) -> pl.DataFrame:
    """(request_id, same_state, same_state_basis) of all that read, or blended; others have no row."""
    asked = Asked(run)
    connection = asked.connection
    reads = pl.DataFrame(connection.sql(_READS).to_arrow_table())
    own = pl.DataFrame(connection.sql(_OWN_MEMORY, params={"served": served}).to_arrow_table())
    mixed = blended(run).select("request_id")
    kinds = reads.select("writer", "reader", "component", "key_space").unique(maintain_order=True)
    told = [_kind(asked, *kind) for kind in kinds.iter_rows()]
    kinds = kinds.with_columns(
        pl.Series("differs", [one[0] for one in told], pl.String),
        pl.Series("unknown", [one[1] for one in told], pl.String),
    )
    known = reads.join(kinds, on=["writer", "reader", "component", "key_space"], nulls_equal=True)
    each = known.group_by("request_id").agg(
        pl.col("differs").drop_nulls().sort().first(), pl.col("unknown").drop_nulls().sort().first(),
        pl.col("reads").sum(), pl.col("writer").drop_nulls().unique().sort().first(),
    )  # fmt: skip
    maybe = connection.sql("SELECT DISTINCT request_id FROM asked WHERE maybe_read").pl()["request_id"]
    each = each.with_columns(
        unknown=pl.when(pl.col("unknown").is_null() & pl.col("request_id").is_in(maybe.to_list()))
        .then(pl.lit("how many tokens its keys are was not recorded, nor which of them it read"))
        .otherwise("unknown")
    )
    everyone = pl.concat([each.select("request_id"), own, mixed]).unique()
    rows = everyone.join(each, on="request_id", how="left").with_columns(
        own=pl.col("request_id").is_in(own["request_id"].to_list()),
        blended=pl.col("request_id").is_in(mixed["request_id"].to_list()),
    )
    return _answered(rows, asked.open)


def _kind(
    asked: Asked, writer: str | None, reader: str | None, component: str | None, space: str | None
) -> tuple[str | None, str | None]:
    """What differs between this writer and this reader, and what of it cannot be told; of both none: same."""
    if writer is None:
        return None, "who wrote it was not seen"
    if reader is None:
        return None, "which engine read it was not seen"
    if writer == reader:
        return None, None
    of = product(component, space)
    if not asked.identities.comparable(of, writer, reader):
        return None, f"written by {writer}, and one of both did not say what its state is"
    found = unlike(asked, of, writer, reader)
    differs = [f"{one.field}: {one.writer} written, {one.reader} read" for one in found]
    return ("; ".join(differs) or None), None


def _answered(rows: pl.DataFrame, lost: str | None) -> pl.DataFrame:
    told = pl.col("reads").is_not_null()
    written = pl.lit(" keys, written as what its engine reads")
    keys = pl.concat_str(pl.col("reads").cast(pl.String), written)
    proven = pl.when(pl.lit(lost is None))
    return rows.select(
        "request_id",
        same_state=pl.when(pl.col("differs").is_not_null()).then(pl.lit("no"))
        .when(pl.col("blended") | pl.col("unknown").is_not_null()).then(pl.lit("unchecked"))
        .when(told | pl.col("own")).then(proven.then(pl.lit("yes")).otherwise(pl.lit("unchecked")))
        .otherwise(pl.lit("unchecked")),
        same_state_basis=pl.when(pl.col("differs").is_not_null()).then("differs")
        .when(pl.col("blended")).then(pl.lit("blended: state of other positions, unverified"))
        .when(pl.col("unknown").is_not_null()).then("unknown")
        .when(told | pl.col("own")).then(pl.concat_str(
            pl.when(told).then(keys).otherwise(pl.lit("read from its engine's own host memory")),
            pl.lit(f"; {lost}" if lost else ""))),
    )  # fmt: skip
