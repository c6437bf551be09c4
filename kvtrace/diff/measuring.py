"""Numbers of a run for the gates: a row a request (`key`, `value`), or one number for the whole run.

Every request has a row, also where its value was not observed (null). `key` pairs it with the same request of
another run: the workload key, else the id that the client sent; of several such ids none is trusted.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses import question
from kvtrace.analyses.blockers import shares
from kvtrace.analyses.exposure import partition
from kvtrace.analyses.ledger import COLUMNS as LEDGER
from kvtrace.analyses.ledger import column as ledger_column
from kvtrace.errors import QueryError, UsageError
from kvtrace.schema.vocabulary import EXPOSED_TRANSFER, FIRST_DATE_NS

if TYPE_CHECKING:
    from kvtrace.run import Run

_KEYS = """
    SELECT r.request_id, coalesce(r.workload_key, c.alias) AS key
    FROM request r LEFT JOIN (
        SELECT request_id, CASE WHEN count(DISTINCT alias) = 1 THEN min(alias) END AS alias
        FROM alias WHERE kind = 'client' AND request_id IS NOT NULL GROUP BY request_id
    ) c USING (request_id)
    WHERE r.evidence IS DISTINCT FROM 'predicted'
"""
_HELD = """
    SELECT request_id, sum(exposed_ns) AS ns, count(*) FILTER (exposed_ns IS NULL) > 0 AS unknown
    FROM read_parquet($held) WHERE "window" = 'e2e' AND class = 'queue_capacity' GROUP BY request_id
"""
_NONE_HELD = "SELECT NULL::VARCHAR AS request_id, 0 AS ns, false AS unknown WHERE false"
_EXPOSED = """
    WITH kept AS (
        SELECT request_id, class, exposed_ns FROM read_parquet($path)
        WHERE "window" = 'e2e' AND bound = 'exact' AND NOT censored
    ), held AS ({held}), own AS (
        SELECT request_id, coalesce(sum(exposed_ns) FILTER (list_contains($classes, class)), 0) AS ns
        FROM kept GROUP BY request_id
    )
    SELECT request_id,
        CASE WHEN NOT coalesce(h.unknown, false) THEN (o.ns + coalesce(h.ns, 0))::DOUBLE END AS value
    FROM own o LEFT JOIN held h USING (request_id)
"""

_CAN_LACK = """
    SELECT 1 WHERE EXISTS (SELECT 1 FROM span WHERE op = 'hold')
        AND EXISTS (SELECT 1 FROM span WHERE op = 'queue' AND reason = 'capacity')
"""
"""Who lacked blocks that a hold kept; without either `blockers` has nothing of `queue_capacity` to say."""

_BEFORE = """
    SELECT request_id, first_token_ns - start_ns AS ns FROM request
    WHERE first_token_ns < start_ns AND (first_token_ns < $dated_ns) = (start_ns < $dated_ns)
"""
"""First tokens before their arrival, by one clock: no question answers with them, and they may not pass."""


def values(run: Run, metric: str, known: pl.DataFrame | None = None) -> pl.DataFrame:
    """A metric's values, a row a request; a question without requests gives its rows without keys.

    Args:
        run: the run
        metric: which
        known: `keys` of the run, where somebody has asked already

    Raises:
        UsageError: a question has no such column, or it holds no numbers.
    """
    if metric in ("failed", "hung", "violations", "losses"):
        number = counted(run, metric)
        return pl.DataFrame({"key": [None], "value": [number]}, schema=_SCHEMA)
    if metric == "exposed_transfer_ns":
        return _exposed(run, known if known is not None else keys(run))
    name, dot, column = metric.partition(".")
    column = column or metric
    if not dot or name == "ledger":
        _numeric(metric, column, LEDGER)
        rows = ledger_column(run, column)
    else:
        rows = question(name)(run)
        _numeric(metric, column, rows.schema)
    told = rows.select(*(["request_id"] if "request_id" in rows.columns else []), value=pl.col(column))
    if "request_id" not in told.columns:
        return told.select(key=pl.lit(None, pl.String), value="value").cast(_SCHEMA)
    if column == "ttft_ns":
        before = pl.DataFrame(
            run.connection().sql(_BEFORE, params={"dated_ns": FIRST_DATE_NS}).to_arrow_table()
        )
        told = told.join(before, on="request_id", how="left").select("request_id", pl.coalesce("value", "ns"))
    known = known if known is not None else keys(run)
    return told.join(known, on="request_id", how="inner").select("key", "value").cast(_SCHEMA)


_SCHEMA = pl.Schema({"key": pl.String, "value": pl.Float64})


def keys(run: Run) -> pl.DataFrame:
    """Request -> what pairs it with the same request of another run; null: nothing does."""
    return run.connection().sql(_KEYS).pl()


def has_exact(run: Run) -> bool:
    """Whether the partition can be exact for any request: where no step was recorded it is for none."""
    return bool(run.connection().sql("SELECT 1 FROM span WHERE op = 'step' LIMIT 1").fetchall())


def held(run: Run) -> pl.DataFrame:
    """Time without GPU blocks that holds are to blame for, from arrival to finish.

    Columns:
        request_id: who lacked blocks while a hold kept some
        ns: its queue_capacity time that `blockers` gives to holds, ns
        unknown: whether some hold's part is not known
    """
    connection = run.connection()
    if not connection.sql(_CAN_LACK).fetchall():
        return connection.sql(_NONE_HELD).pl()
    return pl.DataFrame(connection.sql(_HELD, params={"held": str(shares(run))}).to_arrow_table())


def counted(run: Run, metric: str) -> int | None:
    """A count of the whole run; null: not observed.

    failed: requests that ended with an error. hung: requests whose end was not seen. violations: findings of
    lock_contract and compatibility. losses: lost records; what came twice is none. Else the sum of a column.

    Raises:
        UsageError: a question has no such column, or it holds no whole numbers.
    """
    if metric == "losses":
        lost = run.connection().sql(
            "SELECT coalesce(sum(count), 0)::BIGINT FROM loss WHERE cause IS DISTINCT FROM 'duplicate'"
        )
        return int(lost.fetchall()[0][0])
    if metric in ("failed", "hung"):
        where = "status = 'error'" if metric == "failed" else "end_ns IS NULL"
        told = "status" if metric == "failed" else "*"
        ((number, of),) = run.connection().sql(
            f"SELECT count(*) FILTER ({where}), count({told}) FROM request "  # noqa: S608 - words of ours alone
            "WHERE evidence IS DISTINCT FROM 'predicted'"
        ).fetchall()  # fmt: skip
        return int(number) if of else None
    if metric == "violations":
        found = [question(name)(run)["status"] for name in ("lock_contract", "compatibility")]
        judged = pl.concat(found).filter(pl.concat(found).is_in(["pass", "violated", "inconclusive"]))
        return int((judged == "violated").sum()) if judged.len() else None
    summed = values(run, metric)["value"]
    if summed.null_count() == summed.len():
        return None
    total = float(summed.sum())
    if not total.is_integer():
        raise UsageError(f"{metric}: is no count, its sum is {total}; gate it with [[gate]].")
    return int(total)


def by_query(run: Run, name: str, query: str) -> pl.DataFrame:
    """The user's own number of a run: the one cell of a guarded SELECT.

    Raises:
        QueryError: not one SELECT, refused, or not one row with one number.
    """
    rows = run.sql(query)
    if rows.shape != (1, 1) or not (rows.dtypes[0].is_numeric() or rows.dtypes[0] == pl.Null):
        raise QueryError(
            f"{name}: gives {rows.height} rows of {rows.width} columns; an SQL gate gives one number."
        )
    return pl.DataFrame({"key": [None], "value": [rows.item()]}, schema=_SCHEMA, strict=False)


def lossy(run: Run) -> bool:
    """Whether records of the run were lost."""
    return bool(counted(run, "losses"))


def _exposed(run: Run, known: pl.DataFrame) -> pl.DataFrame:
    """Exposed transfer of each request from arrival to finish; null unless it is exact and whole."""
    if not has_exact(run):
        return known.select("key", value=pl.lit(None)).cast(_SCHEMA)
    connection = run.connection()
    can_lack = connection.sql(_CAN_LACK).fetchall()
    query = _EXPOSED.format(held=_HELD if can_lack else _NONE_HELD)
    parameters = {"path": str(partition(run)), "classes": list(EXPOSED_TRANSFER)}
    parameters |= {"held": str(shares(run))} if can_lack else {}
    told = pl.DataFrame(connection.sql(query, params=parameters).to_arrow_table())
    return known.join(told, on="request_id", how="left").select("key", "value").cast(_SCHEMA)


def _numeric(metric: str, column: str, kinds: pl.Schema) -> None:
    there = [name for name, kind in kinds.items() if kind.is_numeric()]
    if column not in there:
        near = difflib.get_close_matches(column, there, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(there)}."
        raise UsageError(f"{metric}: {column} is no column with numbers; {hint}")
