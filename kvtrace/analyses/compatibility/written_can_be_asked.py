"""What is written has a name under which readers ask: no store that grows while hits stay 0.

    a (seed 1) writes k1 of content d      b (seed 2) asks k2 of content d: nothing     violated: hash_seed
    a (model m) writes k below m           b asks k below n: nothing                    violated: model
    a writes k, c finds k                  b asks k of another tenant: nothing          fits: k is of use

Judged a (writer, key space, tenant): of what it wrote nothing was ever found, and equal content, by the
digest of its tokens or by the hash of its chunk, was later asked for in vain under another name. Content
cannot be compared where chunks are of two lengths, or hashes of two kinds without digests: there two makers
of keys are told that share a tier, store, find nothing at all and differ in what the key of the very same
state is made of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvtrace.analyses._text import many
from kvtrace.analyses.compatibility._findings import Asked, Finding, judged
from kvtrace.analyses.compatibility._identities import RANDOM, Difference
from kvtrace.analyses.compatibility._keepers import keeper, product

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.run import Run

_SHARED = "(component LIKE 'lmcache%' OR tier IS NULL OR tier NOT IN ('gpu', 'host'))"
_VAIN = """
WITH shared AS (
    SELECT *, coalesce(tenant, '') AS salt, split_part(key_space, ':', 1) AS producer FROM written
    WHERE (component LIKE 'lmcache%' OR tier IS NULL OR tier NOT IN ('gpu', 'host'))
), part AS (
    SELECT key_space, key, salt, producer, writer, teller, any_value(component) AS component,
        min(time_ns) AS time_ns, max(tokens) AS tokens
    FROM shared GROUP BY key_space, key, salt, producer, writer, teller
), found AS (
    SELECT DISTINCT p.key_space, p.salt, p.writer, p.teller
    FROM part p JOIN asked a ON a.key_space = p.key_space AND a.key = p.key
        AND coalesce(a.tenant, '') = p.salt AND (a.found OR a.maybe_found) AND a.time_ns >= p.time_ns
    WHERE NOT EXISTS (SELECT 1 FROM apart x WHERE x.writer = p.writer AND x.reader = a.engine
        AND starts_with(coalesce(p.component, p.key_space), x.product))
), useless AS (
    SELECT p.* FROM part p WHERE NOT EXISTS (SELECT 1 FROM found f WHERE f.key_space = p.key_space
        AND f.salt = p.salt AND f.writer IS NOT DISTINCT FROM p.writer
        AND f.teller IS NOT DISTINCT FROM p.teller)
), last_ask AS (
    SELECT key_space, key, engine AS reader, coalesce(tenant, '') AS asked_salt,
        split_part(key_space, ':', 1) AS producer, max(time_ns) AS asked_ns, max(tokens) AS asked_tokens,
        arg_max(request_id, (time_ns, request_id)) AS request_id, max(answered_by) AS answered_by
    FROM wanted WHERE time_ns IS NOT NULL GROUP BY ALL
), of_name AS (
    SELECT * FROM last_ask QUALIFY row_number() OVER (
        PARTITION BY key_space, key, reader ORDER BY asked_ns DESC, asked_salt) <= 2
), of_content AS (
    SELECT l.*, c.token_digest FROM last_ask l JOIN content c USING (key_space, key)
    QUALIFY row_number() OVER (
        PARTITION BY token_digest, l.key_space, l.reader ORDER BY asked_ns DESC, l.key, asked_salt) <= 2
), vain AS (
    SELECT u.*, w.key_space AS asked_space, w.asked_salt, w.reader, w.request_id, w.asked_ns, w.asked_tokens,
        w.answered_by, false AS hashed_apart
    FROM useless u JOIN of_name w ON w.key = u.key AND w.producer = u.producer AND w.asked_ns >= u.time_ns
    WHERE w.key_space <> u.key_space OR w.asked_salt <> u.salt
        OR EXISTS (SELECT 1 FROM apart x WHERE x.writer = u.writer AND x.reader = w.reader
            AND starts_with(coalesce(u.component, u.key_space), x.product))
    UNION ALL
    SELECT u.*, w.key_space, w.asked_salt, w.reader, w.request_id, w.asked_ns, w.asked_tokens,
        w.answered_by, true
    FROM useless u JOIN content c ON c.key_space = u.key_space AND c.key = u.key
    JOIN of_content w ON w.token_digest = c.token_digest AND w.producer = u.producer AND w.key <> u.key
        AND w.asked_ns >= u.time_ns AND (w.key_space <> u.key_space OR w.reader IS DISTINCT FROM u.writer)
), once AS (
    SELECT writer, teller, reader, key_space, asked_space, salt <> asked_salt AS salted_apart, hashed_apart,
        key, salt, arg_max(asked_salt, (asked_ns, asked_salt)) AS asked_salt,
        any_value(component) AS component, max(answered_by) AS answered_by,
        coalesce(max(tokens), max(asked_tokens)) AS tokens,
        max(asked_ns) AS asked_ns, arg_max(request_id, (asked_ns, request_id)) AS request_id
    FROM vain GROUP BY ALL
)
SELECT writer, teller, reader, key_space, asked_space, salted_apart, hashed_apart,
    any_value(component) AS component, max(answered_by) AS answered_by, count(*) AS keys,
    CASE WHEN count(tokens) = count(*) THEN sum(tokens)::BIGINT END AS tokens, max(asked_ns) AS time_ns,
    arg_max(request_id, (asked_ns, key)) AS request_id, arg_max(key, (asked_ns, key)) AS key,
    list_sort(list_distinct(list(salt))) AS salts, list_sort(list_distinct(list(asked_salt))) AS asked_salts
FROM once
GROUP BY writer, teller, reader, key_space, asked_space, salted_apart, hashed_apart
ORDER BY time_ns, writer, teller, reader, key_space, asked_space, salted_apart, hashed_apart
"""
_USE = """
WITH useful AS (
    SELECT component, teller AS engine, count(DISTINCT key) AS stored FROM written
    WHERE tier IN ('peer', 'disk', 'object') AND teller IS NOT NULL GROUP BY ALL
    UNION ALL
    SELECT component, engine, count(*) FROM span
    WHERE op = 'store' AND tier_to IN ('peer', 'disk', 'object') AND engine IS NOT NULL
        AND coalesce(outcome, 'ok') IN ('ok', 'partial') AND evidence IS DISTINCT FROM 'predicted'
    GROUP BY ALL
)
SELECT component, engine, sum(stored)::BIGINT FROM useful GROUP BY ALL ORDER BY ALL
"""
_ASKING = """
SELECT engine, count(*) FILTER (found_tokens = 0) AS misses, coalesce(sum(found_tokens)::DOUBLE, 0) AS found,
    min(start_ns) AS time_ns, arg_min(request_id, start_ns) AS request_id
FROM span WHERE op = 'lookup' AND engine IS NOT NULL AND found_tokens IS NOT NULL
    AND coalesce(requested_tokens, 1) > 0 AND evidence IS DISTINCT FROM 'predicted'
GROUP BY engine ORDER BY engine
"""


def written_can_be_asked(run: Run, asked: Asked) -> list[Finding]:
    """A row a field that keeps readers from the state that was written, a writer and a reader."""
    written, makers, named, digests = _numbers(asked)
    violations = [*_in_vain(asked), *_never_alike(asked)]
    if not (written or violations):
        return [_silent(run)]
    answered = "SELECT (SELECT count(found) FROM asked) + (SELECT count(*) FROM wanted)"
    ((asks,),) = asked.connection.sql(answered).fetchall()
    if not (violations or asks):
        told = f"{many(written, 'key')} written; what was asked for and found was not recorded"
        return [Finding("unobserved", told)]
    blind = makers > 1 and named < makers and not digests
    ((untold,),) = asked.connection.sql("SELECT count(*) FROM asked WHERE maybe_found").fetchall()
    undecided = (
        asked.open,
        f"whether {many(untold, 'key')} asked for had been found is not known" if untold else None,
        f"{makers} makers of keys, and not all said how they hash" if blind else None,
    )
    told = f"{many(written, 'key')} written, none whose content was asked for under another name in vain"
    return judged(violations, undecided, Finding("pass", told, "derived"))


def _numbers(asked: Asked) -> tuple[int, int, int, int]:
    """Keys written to shared tiers, makers of keys among their tellers, those that said how, digests."""
    query = f"SELECT count(DISTINCT (key_space, key)) FROM written WHERE {_SHARED}"  # noqa: S608 - no input
    ((written,),) = asked.connection.sql(query).fetchall()
    makers = [
        (component, name)
        for component, name in asked.connection.sql(
            f"SELECT DISTINCT component, teller FROM written WHERE {_SHARED}"  # noqa: S608 - no input
        ).fetchall()
    ]
    own = {asked.identities.own(product(component, None), name) for component, name in makers}
    ((digests,),) = asked.connection.sql("SELECT count(*) FROM content").fetchall()
    return written, len(own), sum(asked.identities.knows(name) for name in own), digests


def _in_vain(asked: Asked) -> Iterator[Finding]:
    for row in asked.connection.sql(_VAIN).pl().to_dicts():
        for each in _why(asked, row):
            yield Finding(
                "violated", _said(each, row), "derived", row["request_id"], row["key"], row["time_ns"],
                each.field, each.writer, each.reader, row["tokens"], each.enforced_by,
            )  # fmt: skip


def _why(asked: Asked, row: dict[str, Any]) -> list[Difference]:
    """What makes the two names differ; where a side does not say how it hashes the hash as such.

    Nothing where both hash alike: equal tokens of another salt, LoRA or image are other state.
    """
    of = product(row["component"], row["key_space"])
    found: dict[str, Difference] = {}
    spaces = _of_space(row["key_space"]), _of_space(row["asked_space"])
    for field, ours, theirs in zip(("hash_algorithm", "model"), *spaces, strict=True):
        if ours != theirs and "unknown" not in (ours, theirs):
            found[field] = Difference(field, ours, theirs, keeper(of, field, "key"))
    if row["salted_apart"]:
        ours, theirs = _salts(row["salts"]), _salts(row["asked_salts"])
        found["cache_salt"] = Difference("cache_salt", ours, theirs, keeper(of, "cache_salt", "key"))
    if row["hashed_apart"]:
        makers = row["teller"] or row["writer"], row["answered_by"]
        for each in asked.identities.technical(of, *makers):
            found.setdefault(each.field, each)
        if not found and asked.identities.hash_alike(of, *makers):
            return []
    elif not found:
        for each in asked.identities.differences(of, row["writer"], row["reader"]):
            if each.enforced_by == "key":
                found[each.field] = each
    return list(found.values()) or [Difference("hash", "unknown", "unknown", "key")]


def _salts(found: list[str]) -> str:
    """One tenant's digest, or how many they are; salts are secrets and never recorded."""
    return f"{len(found):,} salts" if len(found) > 1 else found[0].rpartition(":")[2] or "none"


def _of_space(key_space: str | None) -> tuple[str, str]:
    """Algorithm and model of a key space; a model's name may hold colons."""
    _, _, rest = (key_space or "").partition(":")
    algorithm, _, model = rest.partition(":")
    return algorithm or "unknown", model or "unknown"


def _said(each: Difference, row: dict[str, Any]) -> str:
    writer, reader = row["writer"] or row["teller"] or "unknown", row["reader"] or "unknown"
    wrote = (
        f"{many(row['keys'], 'key')} written by {writer} and never found, of content that {reader} asked for"
    )
    return f"{wrote} under another key in vain: {_differs(each)}"


def _differs(each: Difference) -> str:
    if each.field == "hash":
        return "the hash differs, its algorithm or its seed; neither side said which"
    if each.writer == each.reader == RANDOM:
        return f"every process draws its own {each.field}"
    return f"{each.field} is {each.writer} where it was written and {each.reader} where it was asked for"


def _never_alike(asked: Asked) -> Iterator[Finding]:
    """Makers of keys that share a tier, of which one stores what the other can never ask for."""
    asking = {row[0]: row[1:] for row in asked.connection.sql(_ASKING).fetchall()}
    for component, writer, stored in asked.connection.sql(_USE).fetchall():
        of = product(component, None)
        if asking.get(writer, (0, 0.0))[1] > 0:
            continue
        for reader, (misses, found, time_ns, request_id) in asking.items():
            if (
                found
                or not misses
                or any(each.field == "model" for each in asked.identities.differences(of, writer, reader))
            ):
                continue
            for each in asked.identities.technical(of, writer, reader):
                told = (
                    f"{many(stored, 'store')} of {writer} into {component}, and {many(misses, 'lookup')} of "
                    f"{reader}, none of which found anything: {_differs(each)}"
                )
                yield Finding(
                    "violated", told, "derived", request_id, None, time_ns, each.field, each.writer,
                    each.reader, None, each.enforced_by,
                )  # fmt: skip


def _silent(run: Run) -> Finding:
    stores = "SELECT count(*) FROM span WHERE op = 'store' AND evidence IS DISTINCT FROM 'predicted'"
    ((stored,),) = run.connection().sql(stores).fetchall()
    if stored:
        return Finding("unobserved", f"{many(stored, 'store')}, none of them with a key that engines share")
    return Finding("not_applicable", "no state in a tier that engines share")
