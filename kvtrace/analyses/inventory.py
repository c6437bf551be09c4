"""What a run holds: engines, versions, counts, times, names, losses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import polars as pl

from kvtrace.analyses._blended import UNVERIFIED, blended, may_blend
from kvtrace.analyses._text import utc
from kvtrace.run.lasting import lasting
from kvtrace.schema.vocabulary import FIRST_DATE_NS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.run import Run

Row = tuple[str, str | None, int | None, str | None]
_COLUMNS = {"what": pl.String, "name": pl.String, "value": pl.Int64, "detail": pl.String}

_RUN_FACTS = (
    "run_id", "group", "workload", "kind", "created", "kvtrace_version", "synthetic", "content_kept",
)  # fmt: skip

_PRODUCTS = """
    SELECT 'product', coalesce(product, 'unknown'), count(*), version FROM process
    WHERE attributes['same_as'] IS NULL  -- another name of processes that are counted
    GROUP BY product, version ORDER BY 2, version
"""
_INSTRUMENTS = """
    SELECT 'instrument', entry.key, count(*), entry.value
    FROM (SELECT unnest(map_entries(instruments)) AS entry FROM process)
    GROUP BY entry.key, entry.value ORDER BY entry.key, entry.value
"""
_REQUESTS = """
    SELECT 'requests', unnest(['total', 'with_first_token', 'open']),
           unnest([count(*), count(first_token_ns), count(*) FILTER (end_ns IS NULL)]), NULL
    FROM request
"""
_SPANS = "SELECT 'spans', op, count(*), NULL FROM span WHERE op IS NOT NULL GROUP BY op ORDER BY op"
_SPANS_WITHOUT_OP = """
    SELECT 'spans_without_op', name, count(*), min(component) FROM span WHERE op IS NULL
    GROUP BY name ORDER BY count(*) DESC, name
"""
_TIMES = """
    SELECT min(first_ns), max(last_ns), count(*) FROM (
        SELECT start_ns AS first_ns, coalesce(end_ns, start_ns) AS last_ns FROM span
        UNION ALL SELECT time_ns, time_ns FROM block
        UNION ALL SELECT time_ns, time_ns FROM metric
        UNION ALL SELECT time_ns, time_ns FROM request_key
    ) WHERE first_ns IS NOT NULL
    GROUP BY first_ns < $dated_ns ORDER BY first_ns < $dated_ns
"""
"""Rows of 1970 are of a clock that counts from its own start: beside others they have no place in time."""
_ROWS = """
    SELECT 'rows', unnest(['span', 'block', 'request_key', 'metric', 'alias', 'identity', 'process', 'loss']),
        unnest([
        (SELECT count(*) FROM span), (SELECT count(*) FROM block), (SELECT count(*) FROM request_key),
        (SELECT count(*) FROM metric), (SELECT count(*) FROM alias), (SELECT count(*) FROM identity),
        (SELECT count(*) FROM process), (SELECT count(*) FROM loss)]), NULL
"""
_ALIASES = """
    SELECT 'aliases', kind, count(*), 'for ' || count(DISTINCT request_id)::VARCHAR || ' of '
        || (SELECT count(DISTINCT request_id) FROM span WHERE op = 'request')::VARCHAR || ' requests'
    FROM alias GROUP BY kind ORDER BY kind
"""
_ENGINES = """
    SELECT 'engine', engine, NULL::BIGINT, NULL::VARCHAR FROM (
        SELECT engine FROM span UNION SELECT engine FROM process
    ) WHERE engine IS NOT NULL ORDER BY engine
"""
_LOSSES = """
    SELECT 'losses', cause, sum(count)::BIGINT, source FROM loss GROUP BY source, cause ORDER BY cause, source
"""
_UNTIED = """
    SELECT 'losses', 'ambiguous_join', count(*), 'transfers that LMCache''s client and server name apart'
    FROM tie WHERE transfer_id IS NULL HAVING count(*) > 0 AND NOT EXISTS (
        FROM loss WHERE cause = 'ambiguous_join' AND op IN ('load', 'store'))
"""
"""Of a run that was never imported; `kvtrace import` counts them itself."""


def inventory(run: Run) -> pl.DataFrame:
    """What does this run hold?

    Spans without an operation are a producer's own roots and start-up work, or spans that no rule knows.
    Counts are of rows that are there; what could be there and is not, and what would fill it, is the
    question coverage. A recording that goes on, or that was cut off, has the state of this moment first,
    with how many processes write now. A run that blended says how many requests, and that this is unverified:
    the question blend compares. Losses of cause `duplicate` are counted and are no loss. An empty
    run has its counts, which are 0: that nothing was recorded is known.

    Columns:
        what: run, input, engine, product, instrument, requests, spans, spans_without_op, time, rows,
            aliases, losses or content_dropped
        name: which one: an operation, a table, a cause, an attribute
        value: the count, or unix ns for time (rows for without_date: their clocks count from their own
            start, at 1970); null where the fact is a text
        detail: the fact as text: a version, a state, a source, a time in ISO UTC
    """
    rows = [*_state(run), *_from_run_file(run.meta), *_blended(run)]
    connection = run.connection()
    if not any(row[0] == "engine" for row in rows):  # run.json knows their versions, spans their names alone
        rows += connection.sql(_ENGINES).fetchall()
    for query in (_PRODUCTS, _INSTRUMENTS, _REQUESTS, _SPANS, _SPANS_WITHOUT_OP):
        rows += connection.sql(query).fetchall()
    rows += _times(connection.sql(_TIMES, params={"dated_ns": FIRST_DATE_NS}).fetchall())
    for query in (_ROWS, _ALIASES, _LOSSES, _UNTIED):
        rows += connection.sql(query).fetchall()
    dropped = run.meta.get("content_dropped") or {}
    rows += [("content_dropped", name, int(count), None) for name, count in sorted(dropped.items())]
    return pl.DataFrame(rows, schema=_COLUMNS, orient="row")


def _times(clocks: list[tuple[int, int, int]]) -> Iterator[Row]:
    """From when to when, by the clock with a date where there is one."""
    if not clocks:
        return
    (first_ns, last_ns, _), *dateless = clocks
    duration_ns = last_ns - first_ns
    yield "time", "first_ns", first_ns, utc(first_ns)
    yield "time", "last_ns", last_ns, utc(last_ns)
    yield "time", "duration_ns", duration_ns if duration_ns < 2**63 else None, None
    for *_, count in dateless:
        yield "time", "without_date", count, f"rows of clocks without a date, not in these times: {count:,}"


def _state(run: Run) -> Iterator[Row]:
    """What a person must know before reading any number: it grows yet, or nobody saw its end."""
    found = lasting(run)
    if found is None:
        return
    if not found.goes_on:
        said = "cut off: kvtrace run was killed; all that was recorded is here, its exit code is not"
    elif found.writers:
        said = "being recorded; this is what there is at this moment"
    else:
        said = "being recorded; no engine has begun to write"
    yield "run", "state", found.writers if found.goes_on else None, said


def _blended(run: Run) -> Iterator[Row]:
    """Requests that were given state of chunks that are no prefix, which no number here calls exact."""
    requests = blended(run).height
    if requests or may_blend(run):
        yield "run", "blended", requests or None, UNVERIFIED


def _from_run_file(meta: dict[str, Any]) -> Iterator[Row]:
    """Facts of run.json: who recorded what."""
    yield "run", "schema_version", meta["schema_version"], None
    facts = {name: meta.get(name) for name in _RUN_FACTS}
    facts |= {name: (meta.get("recording") or {}).get(name) for name in ("scenario", "captured")}
    for name, value in facts.items():
        if value is not None:
            yield "run", name, None, _text(value)
    for entry in meta.get("inputs") or []:
        remarks = [entry.get("format"), *(entry.get("notes") or [])]
        rows = (entry.get("spans") or 0) + (entry.get("other_rows") or 0)
        yield "input", entry.get("name"), rows, "; ".join(_text(part) for part in remarks if part) or None
    engines = meta.get("engines") or []
    entries = (
        [{"engine": name, **_described(facts)} for name, facts in engines.items()]
        if isinstance(engines, dict)
        else engines
    )
    for entry in entries:
        said = {key: _text(value) for key, value in _described(entry).items() if value is not None}
        engine = next((said.pop(key) for key in ("engine", "name", "product") if key in said), None)
        version = said.pop("version", None)
        parts = [version, *(f"{key}={text}" for key, text in said.items())]
        yield "engine", engine, None, ", ".join(part for part in parts if part) or None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _described(facts: Any) -> dict[str, Any]:
    """An engine's entry, whether it is an object or only a version."""
    return dict(facts) if isinstance(facts, dict) else {"version": str(facts)}
