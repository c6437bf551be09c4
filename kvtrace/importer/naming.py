"""One request under all of its names.

    cmpl-req-000-0-92cea7c0      internal: the engine's own id, LMCache's session
    cmpl-req-000-0               external: the API server's, on vLLM's span
         req-000                 client: the caller's X-Request-Id

Other names follow from an internal id by the engine's rule (vLLM 0.32), as rows of `alias`; rows are joined
through them. Where a name fits several requests, request rows and requests are paired in time order by the
overlap of their lifetimes, other rows go to the request they overlap most; what stays ambiguous keeps the
name it came with, and is counted. Requests that nothing tells apart but their spans become id#1, id#2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from kvtrace.importer.calling import called, client_id, given
from kvtrace.importer.pairing import pair
from kvtrace.importer.several_prompts import several_prompts
from kvtrace.sources.dialects.columns import ID_KIND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.importer.facts import Facts

INTERNAL = r"(?s)^(.+)-[0-9a-f]{8}$"
"""vLLM 0.32: the internal id is the external one and eight random hex digits."""
CHILD = r"(?s)^\d+_((?:chat)?cmpl-)"
"""vLLM 0.32: with n > 1 each answer is a request of its own, its number before its parent's id."""


@dataclass(frozen=True)
class Names:
    """Which request a name means.

    fixed: (alias, request_id) always the same one
    by_origin: (alias, origin, request_id) by the span that carries it, or that the row was derived from
    crowded: (alias, request_id, start_ns, end_ns) requests that share a name, for rows of other spans
    external: (alias, request_id) every external name, for the table of aliases
    given: rows of that table which sources gave themselves
    answers: (alias, request_id) of names in answers, and other names that rows carry
    calls: (alias, request_id, start_ns, end_ns) those of them that mean all prompts of one call
    ambiguous: request rows that no request could be found for
    """

    fixed: pl.DataFrame
    by_origin: pl.DataFrame
    crowded: pl.DataFrame
    external: pl.DataFrame
    given: pl.DataFrame
    answers: pl.DataFrame
    calls: pl.DataFrame
    ambiguous: int


def resolve(facts: Facts, asked: pl.DataFrame) -> Names:
    """Find out what every name means; `asked` = (request_id, time_ns) of hash logs."""
    requests = _requests(facts)
    external = _external(facts, asked, requests)
    order = ["alias", "start_ns", "end_ns"]
    own = ["alias", "request_id", "start_ns", "end_ns"]
    callings = called(facts, external, requests).select(own)
    calls = several_prompts(callings, external)
    single = callings.join(calls.select("alias").unique(), on="alias", how="anti")
    names = pl.concat([external.select(own), single])
    claims = requests.join(names, left_on="request_id", right_on="alias", how="semi").select(
        "origin", "start_ns", "end_ns", "observer", alias="request_id"
    )
    several = pl.concat([_repeated(names), _repeated(claims, "observer")]).unique()
    crowded = names.join(several, on="alias", how="semi").sort(order)
    fixed = names.join(several, on="alias", how="anti").select("alias", "request_id")
    shared = claims.join(several, on="alias", how="semi").sort([*order, "origin"])
    paired, ambiguous = _paired(shared, crowded)
    numbered = _numbered(requests, fixed, paired)
    return Names(
        fixed,
        pl.concat([paired, numbered.select("alias", "origin", "request_id")]),
        _lifetimes(crowded, numbered, paired.join(claims, on=["alias", "origin"])),
        pl.concat([external.select("alias", "request_id"), numbered.select("alias", "request_id")]),
        given(facts, external, requests),
        callings.select("alias", "request_id"),
        calls,
        ambiguous,
    )


def _paired(claims: pl.DataFrame, crowded: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Request rows and requests, one to one in time order, for each observer by itself: all may see one."""
    found, left = pair(claims.clear(), crowded)
    for _, part in claims.group_by("observer", maintain_order=True):
        own, unclear = pair(part, crowded)
        found, left = pl.concat([found, own]), left + unclear
    return found, left


def _requests(facts: Facts) -> pl.DataFrame:
    """Request rows with a name, each span once."""
    named = facts.table("requests").filter(pl.col("request_id").is_not_null())
    return named.unique(["request_id", "origin", ID_KIND], keep="first", maintain_order=True)


def _lifetimes(*seen: pl.DataFrame) -> pl.DataFrame:
    """From when to when requests that share a name lived, as far as anybody saw; open ones live on."""
    columns = ["alias", "request_id", "start_ns", pl.col("end_ns").fill_null(2**63 - 1)]
    lives = pl.concat([part.select(columns) for part in seen])
    return lives.group_by("alias", "request_id").agg(pl.min("start_ns"), pl.max("end_ns"))


def _repeated(names: pl.DataFrame, *apart: str) -> pl.DataFrame:
    """Aliases that occur more than once, within each of some columns' values."""
    return names.group_by("alias", *apart).len().filter(pl.col("len") > 1).select("alias")


def _external(facts: Facts, asked: pl.DataFrame, requests: pl.DataFrame) -> pl.DataFrame:
    """External names of internal ids, with the time over which the ids were seen.

    An id is internal when the producer is known to write internal ids, or when it is an external one that
    the engine's own span carries, or a run says of it, and eight hex digits.
    """
    lines = asked.select("request_id", start_ns="time_ns", end_ns="time_ns")
    sure = pl.concat([facts.table("sessions"), lines])
    parent = pl.col("request_id").str.replace(CHILD, "$1")
    alias = parent.str.extract(INTERNAL, 1).alias("alias")
    carried = requests.filter(pl.col(ID_KIND) == "external").select(alias="request_id").unique()
    like = facts.table("others").select("request_id", "start_ns", "end_ns").with_columns(alias)
    told = like.join(facts.table("outside"), on=["alias", "request_id"], how="semi").drop("alias")
    like = like.join(carried, on="alias", how="semi").drop("alias")
    known = pl.concat([sure, like, told]).group_by("request_id").agg(pl.min("start_ns"), pl.max("end_ns"))
    return known.with_columns(alias).drop_nulls("alias").sort("request_id")


def _numbered(requests: pl.DataFrame, fixed: pl.DataFrame, paired: pl.DataFrame) -> pl.DataFrame:
    """External ids that several requests carry and that no internal id tells apart: id#1, id#2."""
    own = requests.filter(pl.col(ID_KIND) == "external").select(
        "origin", "start_ns", "end_ns", alias="request_id"
    )
    rows = own.join(_repeated(own), on="alias", how="semi").join(fixed, on="alias", how="anti")
    rows = rows.join(paired, on=["alias", "origin"], how="anti").sort("alias", "start_ns", "origin")
    number = (pl.int_range(pl.len()).over("alias") + 1).cast(pl.String)
    return rows.select("alias", "origin", "start_ns", "end_ns", request_id=pl.col("alias") + "#" + number)


def aliases(facts: Facts, names: Names) -> Iterator[pl.DataFrame]:
    """Every other name of every request, a kind at a time: derived by a rule, or given on a span."""
    requests = _requests(facts)
    own = known_meaning(requests.rename({"request_id": "alias"}), names)
    given = own.filter(pl.col(ID_KIND) == "external").select("alias", request_id="meant")
    external = pl.concat([names.external, given]).unique()
    yield _alias_rows(external.filter(pl.col("alias") != pl.col("request_id")), "external", "vllm", "derived")
    clients = external.with_columns(alias=client_id()).drop_nulls("alias")
    yield _alias_rows(clients, "client", "vllm", "derived")
    traces = own.filter(pl.col("trace_id").is_not_null()).select(alias="trace_id", request_id="meant")
    yield _alias_rows(traces, "trace", "otlp", "native")
    yield names.given
    told = pl.concat([clients.select("alias", "request_id"), names.given.select("alias", "request_id")])
    answers = names.answers.join(told, on=["alias", "request_id"], how="anti")
    yield _alias_rows(answers, "response", "vllm", "derived")


def _alias_rows(names: pl.DataFrame, kind: str, source: str, evidence: str) -> pl.DataFrame:
    """Rows of the table `alias`."""
    words = {"kind": kind, "source": source, "evidence": evidence}
    rows = names.select("alias", "request_id").unique().sort("request_id", "alias")
    return rows.with_columns(**{column: pl.lit(word) for column, word in words.items()})


def known_meaning(rows: pl.DataFrame, names: Names) -> pl.DataFrame:
    """Add `meant` to rows (alias, origin): what the name means here; the alias itself where nobody says."""
    found = rows.join(
        names.by_origin.rename({"request_id": "here"}),
        on=["alias", "origin"],
        how="left",
        maintain_order="left",
    ).join(names.fixed.rename({"request_id": "always"}), on="alias", how="left", maintain_order="left")
    return found.with_columns(meant=pl.coalesce("here", "always", "alias")).drop("here", "always")


def by_overlap(rows: pl.DataFrame, crowded: pl.DataFrame) -> pl.DataFrame:
    """For rows (at, alias, start_ns, end_ns): (at, request_id) of the request each overlaps most.

    A tie, and a row that overlaps none, has a null request_id; names that nobody shares are left out.
    """
    overlap = pl.min_horizontal(pl.col("end_ns").fill_null(2**63 - 1), "end_ns_right") - pl.max_horizontal(
        "start_ns", "start_ns_right"
    )
    both = rows.join(crowded, on="alias").with_columns(overlap=overlap)
    best = both.filter(pl.col("overlap") >= 0).filter(pl.col("overlap") == pl.max("overlap").over("at"))
    decided = best.group_by("at").agg(pl.len(), pl.first("request_id")).filter(pl.col("len") == 1)
    return both.select("at").unique().join(decided.select("at", "request_id"), on="at", how="left")
