"""What is read was written by an engine whose state is of the same kind.

    a (dtype bfloat16) writes k            b (dtype float16) reads k       violated: nobody compares dtypes
    a writes k      b writes k             b reads k                       fits: the later write is its own
    a (model m) writes k of m              b (model n) reads k of n        other keys: nothing to compare
    a prefills for a user and hands over   b decodes for the user          compared, where only a fits

A read is of the last write before it by an engine whose keys are the reader's: what the key keeps apart (TP
in LMCache's) is not read, though the hash of its chunk is the same: where only such a write was seen, the
writer was not. What a backend converts, and degrees of parallelism that key or backend vouch for, are no
difference: where they let it pass, it fits (MLA).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses._text import many
from kvtrace.analyses.compatibility._findings import Asked, Finding, judged
from kvtrace.analyses.compatibility._keepers import dealt_with, product

if TYPE_CHECKING:
    from kvtrace.analyses.compatibility._identities import Difference
    from kvtrace.run import Run

MATCHED = """
WITH reading AS (
    SELECT request_id, key_space, key, tokens, read_ns, engine AS reader, coalesce(tenant, '') AS tenant
    FROM asked WHERE read AND read_ns IS NOT NULL
), writing AS (
    SELECT key_space, key, coalesce(tenant, '') AS tenant, writer, component, time_ns FROM written
    WHERE writer IS NOT NULL
), apart_from_some AS (
    SELECT DISTINCT reader FROM apart
), fitting AS (
    SELECT w.*, e.reader FROM writing w
    CROSS JOIN (SELECT reader FROM apart_from_some WHERE reader IN (SELECT reader FROM reading)) e
    WHERE NOT EXISTS (SELECT 1 FROM apart x WHERE x.writer = w.writer AND x.reader = e.reader
        AND starts_with(coalesce(w.component, w.key_space), x.product))
), any_write AS (
    SELECT key_space, key, tenant, time_ns,
        CASE WHEN count(DISTINCT writer) = 1 THEN min(writer) END AS writer, min(component) AS component
    FROM writing GROUP BY ALL
), fit AS (
    SELECT key_space, key, tenant, reader, time_ns,
        CASE WHEN count(DISTINCT writer) = 1 THEN min(writer) END AS writer, min(component) AS component
    FROM fitting GROUP BY ALL
), matched AS (
    SELECT r.*, CASE WHEN s.reader IS NULL THEN w.writer ELSE f.writer END AS writer,
        CASE WHEN s.reader IS NULL THEN w.component ELSE f.component END AS component
    FROM reading r LEFT JOIN apart_from_some s ON s.reader = r.reader
    ASOF LEFT JOIN fit f ON f.key_space = r.key_space AND f.key = r.key AND f.tenant = r.tenant
        AND f.reader = r.reader AND f.time_ns <= r.read_ns
    ASOF LEFT JOIN any_write w ON w.key_space = r.key_space AND w.key = r.key AND w.tenant = r.tenant
        AND w.time_ns <= r.read_ns
)
"""
"""`matched`: every key that a request read, with the write that it read.

Of writers at one instant nobody knows whose state lies there. Where only writes of other keys were seen,
what it read was written before the records began.
"""
_PAIRS = f"""
{MATCHED}
SELECT writer, reader, component, key_space,
    count(*) AS reads, count(DISTINCT key) AS keys,
    CASE WHEN count(tokens) = count(*) THEN sum(tokens)::BIGINT END AS tokens,
    min(read_ns) AS time_ns, arg_min(request_id, (read_ns, request_id, key)) AS request_id,
    arg_min(key, (read_ns, request_id, key)) AS key
FROM matched GROUP BY ALL ORDER BY time_ns, writer, reader, component, key_space
"""  # noqa: S608 - constants of this module
_HANDED = """
WITH named AS (
    SELECT request_id, any_value(user_request_id) AS person FROM span
    WHERE op = 'request' AND request_id IS NOT NULL GROUP BY request_id
), handed AS (
    SELECT s.request_id, o.engine AS reader, any_value(s.component) AS component, max(s.tokens) AS tokens,
        min(s.start_ns) AS time_ns
    FROM span s JOIN owner o USING (request_id)
    WHERE s.op = 'load' AND s.purpose = 'handoff' AND coalesce(s.outcome, 'ok') IN ('ok', 'partial')
        AND s.evidence IS DISTINCT FROM 'predicted' AND s.start_ns IS NOT NULL
    GROUP BY s.request_id, o.engine
), giving AS (
    SELECT h.request_id, CASE WHEN count(DISTINCT g.engine) = 1 THEN any_value(g.engine) END AS writer
    FROM handed h JOIN named n USING (request_id)
    JOIN named p ON p.person = n.person AND p.request_id <> n.request_id
    JOIN owner g ON g.request_id = p.request_id AND g.engine <> h.reader
    GROUP BY h.request_id
)
SELECT g.writer, h.reader, h.component, NULL::VARCHAR AS key_space, count(*) AS reads, NULL::BIGINT AS keys,
    CASE WHEN count(h.tokens) = count(*) THEN sum(h.tokens)::BIGINT END AS tokens, min(h.time_ns) AS time_ns,
    arg_min(h.request_id, (h.time_ns, h.request_id)) AS request_id, NULL::VARCHAR AS key
FROM handed h LEFT JOIN giving g USING (request_id) GROUP BY ALL ORDER BY time_ns, writer, reader, component
"""
"""Prefill hands its state to decode: of no key, by the requests of one user."""
_STOPPED = {
    "key": "; the key holds it, and should have stopped that",
    "backend": "; the backend compares it, and should have stopped that",
    "nobody": "; neither the key nor the backend looks at it",
    None: "; whether anybody looks at it is not known",
}


def read_as_written(run: Run, asked: Asked) -> list[Finding]:
    """A row a field in which a writer and a reader differ."""
    rows = [row for query in (_PAIRS, _HANDED) for row in asked.connection.sql(query).fetchall()]
    if not rows:
        return [_silent(run, asked)]
    violations: list[Finding] = []
    same = unknown = silent = 0
    for writer, reader, component, space, reads, keys, tokens, time_ns, request_id, key in rows:
        if writer is None or reader is None:
            unknown += reads
            continue
        of = product(component, space)
        if not asked.identities.comparable(of, writer, reader):
            silent += reads
            continue
        found = unlike(asked, of, writer, reader)
        same += reads if not found else 0
        violations += [
            Finding(
                "violated", _said(each, keys, reads, writer, reader), "derived", request_id, key, time_ns,
                each.field, each.writer, each.reader, tokens, each.enforced_by,
            )
            for each in found
        ]  # fmt: skip
    if not (violations or same):
        return [Finding("unobserved", f"{many(unknown + silent, 'read')}, and of none both sides are known")]
    maybe_read = "SELECT count(*) FROM asked WHERE maybe_read"
    ((maybe,),) = asked.connection.sql(maybe_read).fetchall()
    held = Finding("pass", f"{many(same, 'read')} of state whose writer's kind is the reader's", "derived")
    undecided = (
        asked.open,
        f"{many(unknown, 'read')} of state whose writer was not seen" if unknown else None,
        f"{many(maybe, 'key')} that may have been read, of how many tokens is not known" if maybe else None,
        f"{many(silent, 'read')} between engines that did not say what their state is" if silent else None,
    )
    return judged(violations, undecided, held)


def unlike(asked: Asked, of: str, writer: str, reader: str) -> list[Difference]:
    """In what the state of two engines differs, less what this product converts or vouches for."""
    return [
        each
        for each in asked.identities.differences(of, writer, reader)
        if not dealt_with(of, each.field, each.enforced_by)
    ]


def _said(each: Difference, keys: int | None, reads: int, writer: str, reader: str) -> str:
    what = f"{many(reads, 'handoff')} of state" if keys is None else many(keys, "key")
    return (
        f"{what} written by {writer} with {each.field} {each.writer} and read by {reader} with "
        f"{each.reader}{_STOPPED[each.enforced_by]}"
    )


def _silent(run: Run, asked: Asked) -> Finding:
    """Why there is no read of a key: none of anything, or the keys were not recorded."""
    loads = """SELECT count(*) FROM transfer WHERE op = 'load' AND tier_from IS DISTINCT FROM 'gpu'
        AND evidence IS DISTINCT FROM 'predicted'"""
    ((loaded,),) = run.connection().sql(loads).fetchall()
    if loaded:
        return Finding("unobserved", f"{many(loaded, 'load')}, and which keys they read was not recorded")
    ((written,),) = asked.connection.sql("SELECT count(*) FROM written").fetchall()
    if written:
        return Finding("unobserved", "nothing was read back")
    return Finding("not_applicable", "no state outside the GPU in this run")
