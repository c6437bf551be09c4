"""Which requests are meant: by any of their names, or the slowest ones."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from kvtrace.analyses._text import listed, many, visible
from kvtrace.errors import UsageError
from kvtrace.schema.vocabulary import FIRST_DATE_NS

if TYPE_CHECKING:
    import duckdb

_NAMED = """
SELECT request_id, 0 AS place FROM request WHERE request_id = $name
UNION ALL
SELECT DISTINCT a.request_id, 1 FROM alias a JOIN request r USING (request_id)
WHERE a.alias = $name AND a.request_id <> $name
ORDER BY place, request_id
"""
_NEAR = """
SELECT name FROM (SELECT request_id AS name FROM request UNION SELECT alias FROM alias)
ORDER BY jaro_winkler_similarity(name, $name) DESC, name LIMIT 5
"""
_SLOWEST = """
WITH last AS (
    SELECT start_ns < $dated_ns AS is_dateless, max(greatest(start_ns, end_ns)) AS last_ns
    FROM span WHERE op IS NOT NULL GROUP BY is_dateless
), asked AS (
    SELECT r.*, last_ns, evidence IS NOT DISTINCT FROM 'predicted' AS is_predicted
    FROM request r JOIN last ON (start_ns < $dated_ns) = is_dateless
)
SELECT request_id FROM asked
WHERE NOT is_predicted OR NOT EXISTS (FROM asked WHERE NOT is_predicted)
ORDER BY coalesce(ttft_ns, coalesce(end_ns, last_ns)::HUGEINT - start_ns) DESC, request_id LIMIT $most
"""
"""What only a workload trace or a simulation says happened to nobody: it is asked for where nothing else is.
Rows of 1970 are of a clock without a date: nothing of 2026 is their last record."""


def named(connection: duckdb.DuckDBPyConnection, name: str, *, asker: str = "explain") -> str:
    """The request of this id or alias; an id goes before other requests' aliases.

    `asker` is who complains when there is none.

    Raises:
        UsageError: no request has this name, or several do.
    """
    found = connection.sql(_NAMED, params={"name": name}).fetchall()
    ids = [request for request, place in found if place == found[0][1]]
    if len(ids) > 1:
        which = listed([visible(request) for request in ids])
        raise UsageError(
            f"{asker}: {visible(name)} names {many(len(ids), 'request')}: {which}; give one of these ids."
        )
    if not ids:
        every = [near for (near,) in connection.sql(_NEAR, params={"name": name}).fetchall()]
        near = difflib.get_close_matches(name, every, n=1)
        hint = f"Did you mean {visible(near[0])}?" if near else "kvtrace sql RUN 'FROM request' lists them."
        raise UsageError(f"{asker}: no request of this run has the id or alias {visible(name)}. {hint}")
    return str(ids[0])


def slowest(connection: duckdb.DuckDBPyConnection, most: int) -> list[str]:
    """The requests that waited longest for their first token.

    One that never got it counts with the time to its end, or to the run's last record.
    """
    return [
        request
        for (request,) in connection.sql(
            _SLOWEST, params={"most": most, "dated_ns": FIRST_DATE_NS}
        ).fetchall()
    ]
