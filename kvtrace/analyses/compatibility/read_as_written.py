"""What is read was written by an engine whose state is of the same kind.

    a (dtype bfloat16) writes k            b (dtype float16) reads k       violated: nobody compares dtypes
    a writes k      b writes k             b reads k                       fits: the later write is its own
    a (model m) writes k of m              b (model n) reads k of n        other keys: nothing to compare

A read is of the last write before it by an engine whose keys are the reader's: what the key keeps apart (TP
in LMCache's) is not read, though the hash of its chunk is the same. Degrees of parallelism that key or
backend vouch for are no difference: where they let it pass, blocks do not depend on them (MLA).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses._text import many
from kvtrace.analyses.compatibility._findings import Asked, Finding, judged
from kvtrace.analyses.compatibility._keepers import product

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
), fitting AS (
    SELECT w.*, e.reader FROM writing w CROSS JOIN (SELECT DISTINCT reader FROM reading
        WHERE reader IN (SELECT reader FROM apart)) e
    WHERE NOT EXISTS (SELECT 1 FROM apart x WHERE x.writer = w.writer AND x.reader = e.reader
        AND starts_with(coalesce(w.component, w.key_space), x.product))
), matched AS (
    SELECT r.*, f.writer AS fit, f.component AS fit_in, w.writer AS any_writer, w.component AS any_in
    FROM reading r
    ASOF LEFT JOIN fitting f ON f.key_space = r.key_space AND f.key = r.key AND f.tenant = r.tenant
        AND f.reader = r.reader AND f.time_ns <= r.read_ns
    ASOF LEFT JOIN writing w ON w.key_space = r.key_space AND w.key = r.key AND w.tenant = r.tenant
        AND w.time_ns <= r.read_ns
)
"""
"""`matched`: every key that a request read, with the write that it read."""
_PAIRS = f"""
{MATCHED}
SELECT coalesce(fit, any_writer) AS writer, reader, coalesce(fit_in, any_in) AS component, key_space,
    count(*) AS reads, count(DISTINCT key) AS keys,
    CASE WHEN count(tokens) = count(*) THEN sum(tokens)::BIGINT END AS tokens,
    min(read_ns) AS time_ns, arg_min(request_id, (read_ns, request_id, key)) AS request_id,
    arg_min(key, (read_ns, request_id, key)) AS key
FROM matched GROUP BY ALL ORDER BY time_ns, writer, reader, component, key_space
"""  # noqa: S608 - constants of this module
_DEGREES = ("tensor_parallel_size", "pipeline_parallel_size")
_STOPPED = {
    "key": "; the key holds it, and should have stopped that",
    "backend": "; the backend compares it, and should have stopped that",
    "nobody": "; neither the key nor the backend looks at it",
    None: "; whether anybody looks at it is not known",
}


def read_as_written(run: Run, asked: Asked) -> list[Finding]:
    """A row a field in which a writer and a reader differ."""
    rows = asked.connection.sql(_PAIRS).fetchall()
    if not rows:
        return [_silent(run, asked)]
    violations: list[Finding] = []
    same = unknown = silent = 0
    for writer, reader, component, space, reads, keys, tokens, time_ns, request_id, key in rows:
        if writer is None or reader is None:
            unknown += reads
            continue
        if writer != reader and not (asked.identities.knows(writer) and asked.identities.knows(reader)):
            silent += reads
            continue
        of = product(component, space)
        found = [each for each in asked.identities.differences(of, writer, reader) if not agnostic(each)]
        same += reads if not found else 0
        violations += [
            Finding(
                "violated", _said(each, keys, writer, reader), "derived", request_id, key, time_ns,
                each.field, each.writer, each.reader, tokens, each.enforced_by,
            )
            for each in found
        ]  # fmt: skip
    if not (violations or same):
        return [Finding("unobserved", f"{many(unknown + silent, 'read')}, and of none both sides are known")]
    held = Finding("pass", f"{many(same, 'read')} of keys whose writer's state is the reader's", "derived")
    undecided = (
        asked.lost,
        f"{many(unknown, 'read')} of keys whose writer was not seen" if unknown else None,
        f"{many(silent, 'read')} between engines that did not say what their state is" if silent else None,
    )
    return judged(violations, undecided, held)


def agnostic(each: Difference) -> bool:
    """Whether it is kept apart by key or backend, which let pass what does not depend on it."""
    return each.field in _DEGREES and each.enforced_by in ("key", "backend")


def _said(each: Difference, keys: int, writer: str, reader: str) -> str:
    return (
        f"{many(keys, 'key')} written by {writer} with {each.field} {each.writer} and read by {reader} with "
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
