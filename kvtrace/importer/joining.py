"""Joins over everything that was staged: one request under all of its names, one span once, and what one
source says is missing from another.

    cmpl-req-000-0-92cea7c0      internal: the engine's own id, LMCache's session
    cmpl-req-000-0               external: the API server's, on vLLM's span
         req-000                 client: the caller's X-Request-Id

Other names follow from an internal id by the engine's rule (vLLM 0.32), as rows of `alias`; rows are joined
through them. Where a name fits several requests, rows and requests are paired in time order by the overlap of
their lifetimes; what stays ambiguous keeps its own name and is counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import polars as pl

from kvtrace.importer.contradictions import missing_spans
from kvtrace.importer.pairing import pair
from kvtrace.importer.staging import Staging
from kvtrace.sources.losses import Loss

MEMORY_LIMIT = "400MB"
IMPORT = "import"
"""Source of the losses that only the join of all inputs shows."""

INTERNAL = r"^(.+)-[0-9a-f]{8}$"
"""vLLM 0.32: the internal id is the external one and eight random hex digits."""
CLIENT = r"^(?:cmpl-(.+)-\d+|chatcmpl-(.+?)(?:_\d+)?)$"
"""vLLM 0.32: the external id is the endpoint's prefix, the caller's id, and the prompt's number."""

_IDS = """
CREATE TEMP TABLE internal AS
SELECT request_id, min(start_ns) AS start_ns, max(coalesce(end_ns, start_ns)) AS end_ns FROM (
    SELECT request_id, start_ns, end_ns FROM staged WHERE id_kind = 'internal' AND request_id IS NOT NULL
    UNION ALL SELECT request_id, time_ns, time_ns FROM asked
) GROUP BY request_id;
CREATE TEMP TABLE external AS
SELECT regexp_extract(request_id, $internal, 1) AS alias, request_id, start_ns, end_ns FROM internal
WHERE regexp_matches(request_id, $internal);
CREATE TEMP TABLE named AS
SELECT request_id AS alias, start_ns, any_value(end_ns) AS end_ns FROM staged
WHERE id_kind IS DISTINCT FROM 'internal' AND op = 'request'
  AND request_id IN (SELECT alias FROM external)
GROUP BY ALL;
"""


@dataclass
class Joined:
    """What the joins found, on a connection that holds the staged rows."""

    connection: duckdb.DuckDBPyConnection
    aliases: pl.DataFrame = field(default_factory=pl.DataFrame)
    losses: list[Loss] = field(default_factory=list)


def join(staging: Staging) -> Joined:
    """Join everything that was staged."""
    connection = open_staged(staging.files(), staging.folder)
    asked = pl.DataFrame(staging.asked, schema={"request_id": pl.String, "time_ns": pl.Int64}, orient="row")
    connection.register("asked_rows", asked)
    connection.execute("CREATE TEMP TABLE asked AS SELECT * FROM asked_rows")
    joined = Joined(connection)
    joined.losses.extend(_duplicates(connection))
    for statement in _IDS.replace("$internal", f"'{INTERNAL}'").split(";\n"):
        if statement.strip():
            connection.execute(statement)
    joined.losses.extend(_resolve(connection))
    joined.aliases = _aliases(connection)
    joined.losses.extend(missing_spans(connection, IMPORT))
    return joined


def open_staged(files: list[str], folder: Path) -> duckdb.DuckDBPyConnection:
    """A database whose view `staged` is the staged rows, bounded in memory."""
    spill = folder / "spill"
    connection = duckdb.connect(":memory:", config={"memory_limit": MEMORY_LIMIT, "temp_directory": str(spill)})
    connection.execute("SET preserve_insertion_order = false")
    if files:
        listed = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
        source = f"read_parquet([{listed}], file_row_number = true)"
        connection.execute(f"CREATE VIEW staged_all AS SELECT * EXCLUDE (file_row_number), file_row_number AS row FROM {source}")  # noqa: S608 - our own names
    else:
        from kvtrace.sources.dialects import STAGED  # noqa: PLC0415

        connection.register("nothing", STAGED.empty_table())
        connection.execute("CREATE VIEW staged_all AS SELECT *, 0 AS row FROM nothing")
    return connection


def _duplicates(connection: duckdb.DuckDBPyConnection) -> list[Loss]:
    """Rows with the (trace_id, span_id) of an earlier one count once: `staged` is what remains."""
    connection.execute(
        "CREATE TEMP TABLE twice AS SELECT DISTINCT hash(trace_id, span_id) AS h FROM staged_all "
        "WHERE span_id IS NOT NULL AND trace_id IS NOT NULL GROUP BY h, hash(span_id, trace_id) HAVING count(*) > 1"
    )
    found = connection.sql("SELECT count(*) AS n FROM twice").pl().item()
    if not found:
        connection.execute("CREATE VIEW staged AS SELECT * EXCLUDE (row) FROM staged_all")
        return []
    connection.execute(
        """
        CREATE TEMP TABLE extra AS
        SELECT * EXCLUDE (row), row_number() OVER (PARTITION BY trace_id, span_id ORDER BY start_ns, end_ns, row) AS copy
        FROM staged_all WHERE hash(trace_id, span_id) IN (SELECT h FROM twice) AND span_id IS NOT NULL AND trace_id IS NOT NULL;
        CREATE VIEW staged AS
        SELECT * EXCLUDE (row) FROM staged_all
        WHERE span_id IS NULL OR trace_id IS NULL OR hash(trace_id, span_id) NOT IN (SELECT h FROM twice)
        UNION ALL SELECT * EXCLUDE (copy) FROM extra WHERE copy = 1
        """
    )
    rows = connection.sql(
        "SELECT process, count(*)::BIGINT AS n, min(start_ns) AS low, max(start_ns) AS high FROM extra "
        "WHERE copy > 1 AND evidence IS DISTINCT FROM 'derived' GROUP BY process ORDER BY process"
    ).pl()
    return [
        Loss(IMPORT, "duplicate", n, process=process, from_ns=low, to_ns=high, detail="spans that arrived twice")
        for process, n, low, high in rows.iter_rows()
    ]


def _resolve(connection: duckdb.DuckDBPyConnection) -> list[Loss]:
    """Fill `resolved`: (alias, start of the row or null for any) -> request_id."""
    connection.execute(
        """
        CREATE TEMP TABLE one_to_one AS
        SELECT alias FROM external GROUP BY alias HAVING count(*) = 1
        INTERSECT SELECT alias FROM (
            SELECT alias FROM external EXCEPT SELECT alias FROM named GROUP BY alias HAVING count(*) > 1)
        """
    )
    several = "NOT IN (SELECT alias FROM one_to_one) ORDER BY alias, start_ns, end_ns"
    rows = connection.sql(f"SELECT alias, start_ns, end_ns FROM named WHERE alias {several}").pl()  # noqa: S608 - a constant
    requests = connection.sql(f"SELECT alias, request_id, start_ns, end_ns FROM external WHERE alias {several}").pl()  # noqa: S608
    pairs, ambiguous = pair(rows, requests)
    connection.register("pairs", pairs)
    connection.execute(
        """
        CREATE TEMP TABLE resolved AS
        SELECT alias, NULL::BIGINT AS start_ns, request_id FROM external WHERE alias IN (SELECT alias FROM one_to_one)
        UNION ALL SELECT alias, start_ns, request_id FROM pairs
        """
    )
    connection.execute(
        """
        CREATE TEMP TABLE numbered AS
        SELECT request_id AS alias, start_ns, request_id || '#' || row_number() OVER (
            PARTITION BY request_id ORDER BY start_ns) AS request_id
        FROM (SELECT DISTINCT request_id, start_ns FROM staged WHERE op = 'request' AND id_kind = 'external'
              AND request_id IN (SELECT request_id FROM staged WHERE op = 'request' AND id_kind = 'external'
                                 GROUP BY request_id HAVING count(DISTINCT start_ns) > 1)
        ) s
        WHERE NOT EXISTS (SELECT 1 FROM resolved r WHERE r.alias = s.request_id
                          AND (r.start_ns IS NULL OR r.start_ns = s.start_ns))
        """
    )
    connection.execute("INSERT INTO resolved SELECT alias, start_ns, request_id FROM numbered")
    if not ambiguous:
        return []
    detail = "names that fit several requests equally well, or none in time"
    return [Loss(IMPORT, "ambiguous_join", ambiguous, op="request", detail=detail)]


def _aliases(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Every other name of every request: derived by the engine's rule, or given on its span."""
    return connection.sql(
        f"""
        WITH external_names AS (
            SELECT alias, request_id, 'external' AS kind FROM external
            UNION SELECT alias, request_id, 'external' FROM numbered
            UNION SELECT request_id, request_id, 'external' FROM staged
            WHERE id_kind = 'external' AND op = 'request' AND request_id NOT IN (SELECT alias FROM resolved)
        ), clients AS (
            SELECT coalesce(nullif(regexp_extract(alias, '{CLIENT}', 1), ''),
                            nullif(regexp_extract(alias, '{CLIENT}', 2), '')) AS alias, request_id
            FROM external_names
        )
        SELECT alias, kind, request_id, 'vllm' AS source, 'derived' AS evidence
        FROM external_names WHERE alias != request_id
        UNION ALL SELECT alias, 'client', request_id, 'vllm', 'derived' FROM clients WHERE alias IS NOT NULL
        UNION ALL SELECT DISTINCT s.trace_id, 'trace', coalesce(r.request_id, s.request_id), 'otlp', 'native'
        FROM staged s LEFT JOIN resolved r
          ON s.request_id = r.alias AND (r.start_ns IS NULL OR r.start_ns = s.start_ns)
        WHERE s.op = 'request' AND s.trace_id IS NOT NULL AND s.request_id IS NOT NULL
        ORDER BY 3, 2, 1
        """  # noqa: S608 - constants of this module
    ).pl()
