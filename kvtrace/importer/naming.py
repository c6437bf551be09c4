"""One request under all of its names.

    cmpl-req-000-0-92cea7c0      internal: the engine's own id, LMCache's session
    cmpl-req-000-0               external: the API server's, on vLLM's span
         req-000                 client: the caller's X-Request-Id

Other names follow from an internal id by the engine's rule (vLLM 0.32), as rows of `alias`; rows are joined
through them. Where a name fits several requests, rows and requests are paired in time order by the overlap of
their lifetimes; what stays ambiguous keeps its own name, numbered, and is counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from kvtrace.importer.pairing import pair
from kvtrace.sources.dialects.columns import ID_KIND
from kvtrace.sources.losses import JOIN, Loss

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.importer.facts import Facts

INTERNAL = r"^(.+)-[0-9a-f]{8}$"
"""vLLM 0.32: the internal id is the external one and eight random hex digits."""
CLIENT = (r"^cmpl-(.+)-\d+$", r"^chatcmpl-(.+?)(?:_\d+)?$")
"""vLLM 0.32: the external id is the endpoint's prefix, the caller's id, and the prompt's number."""


@dataclass(frozen=True)
class Names:
    """Which request a name means: always the same one, or by the start of the row that carries it."""

    fixed: pl.DataFrame
    by_start: pl.DataFrame
    external: pl.DataFrame
    losses: list[Loss]


def resolve(facts: Facts, asked: pl.DataFrame) -> Names:
    """Find out what every name means; `asked` = (request_id, time_ns) of hash logs."""
    requests = facts.table("requests").filter(pl.col("request_id").is_not_null())
    known = _internal(facts, asked)
    external = known.with_columns(alias=pl.col("request_id").str.extract(INTERNAL, 1)).drop_nulls("alias")
    rows = (
        requests.join(external, left_on="request_id", right_on="alias", how="semi")
        .select(alias="request_id", start_ns="start_ns", end_ns="end_ns")
        .unique(subset=["alias", "start_ns"], keep="first")
    )
    crowded = pl.concat(
        [
            external.group_by("alias").len().filter(pl.col("len") > 1).select("alias"),
            rows.group_by("alias").len().filter(pl.col("len") > 1).select("alias"),
        ]
    )["alias"].unique()
    several = pl.col("alias").is_in(crowded.implode())
    fixed = external.filter(~several).select("alias", "request_id")
    order = ["alias", "start_ns", "end_ns"]
    paired, ambiguous = pair(rows.filter(several).sort(order), external.filter(several).sort(order))
    numbered = _numbered(requests, fixed, paired)
    by_start = pl.concat([paired, numbered])
    clients, unclear = _clients(facts, external)
    fixed = pl.concat([fixed, clients])
    ambiguous += unclear
    losses = []
    if ambiguous:
        detail = "names that fit several requests equally well, or none in time"
        losses.append(Loss(JOIN, "ambiguous_join", ambiguous, op="request", detail=detail))
    known_names = pl.concat([external.select("alias", "request_id"), numbered.select("alias", "request_id")])
    return Names(fixed, by_start, known_names, losses)


def _internal(facts: Facts, asked: pl.DataFrame) -> pl.DataFrame:
    """Internal ids with the time over which they were seen."""
    lines = asked.select("request_id", start_ns="time_ns", end_ns="time_ns")
    seen = pl.concat([facts.table("sessions"), lines])
    return seen.group_by("request_id").agg(pl.min("start_ns"), pl.max("end_ns")).sort("request_id")


def _clients(facts: Facts, external: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Rows that carry the caller's own id: the request it means, or how many rows fit several."""
    others = facts.table("others").group_by("request_id").agg(pl.sum("rows"))
    unknown = others.join(external, on="request_id", how="anti").join(
        external, left_on="request_id", right_on="alias", how="anti"
    )
    if not unknown.height:
        return pl.DataFrame(schema={"alias": pl.String, "request_id": pl.String}), 0
    named = external.select("request_id", alias=_client()).drop_nulls("alias")
    found = named.join(unknown.select("rows", alias="request_id"), on="alias")
    counted = found.group_by("alias").agg(pl.len(), pl.first("request_id"), pl.first("rows"))
    several = counted.filter(pl.col("len") > 1)
    return counted.filter(pl.col("len") == 1).select("alias", "request_id"), int(several["rows"].sum())


def _client() -> pl.Expr:
    """The caller's id in an external id."""
    return pl.coalesce([pl.col("alias").str.extract(rule, 1) for rule in CLIENT])


def _numbered(requests: pl.DataFrame, fixed: pl.DataFrame, paired: pl.DataFrame) -> pl.DataFrame:
    """External ids that several requests carry and that nothing tells apart: id#1, id#2 in time order."""
    own = requests.filter(pl.col(ID_KIND) == "external").unique(subset=["request_id", "start_ns"])
    crowded = own.group_by("request_id").len().filter(pl.col("len") > 1).select("request_id")
    rows = own.join(crowded, on="request_id", how="semi").select(alias="request_id", start_ns="start_ns")
    rows = (
        rows.join(fixed, on="alias", how="anti")
        .join(paired, on=["alias", "start_ns"], how="anti")
        .sort("alias", "start_ns")
    )
    number = (pl.int_range(pl.len()).over("alias") + 1).cast(pl.String)
    return rows.with_columns(request_id=pl.col("alias") + "#" + number)


def aliases(facts: Facts, names: Names) -> Iterator[pl.DataFrame]:
    """Every other name of every request, a kind at a time: derived by a rule, or given on a span."""
    requests = facts.table("requests").filter(pl.col("request_id").is_not_null())
    own = meaning(requests.rename({"request_id": "alias"}), names.fixed, names.by_start)
    given = own.filter(pl.col(ID_KIND) == "external").select("alias", request_id="meant")
    external = pl.concat([names.external, given]).unique()
    yield _alias_rows(external.filter(pl.col("alias") != pl.col("request_id")), "external", "vllm", "derived")
    yield _alias_rows(external.with_columns(alias=_client()).drop_nulls("alias"), "client", "vllm", "derived")
    traces = own.filter(pl.col("trace_id").is_not_null()).select(alias="trace_id", request_id="meant")
    yield _alias_rows(traces, "trace", "otlp", "native")


def _alias_rows(names: pl.DataFrame, kind: str, source: str, evidence: str) -> pl.DataFrame:
    """Rows of the table `alias`."""
    words = {"kind": kind, "source": source, "evidence": evidence}
    rows = names.select("alias", "request_id").unique().sort("request_id", "alias")
    return rows.with_columns(**{column: pl.lit(word) for column, word in words.items()})


def meaning(rows: pl.DataFrame, fixed: pl.DataFrame, by_start: pl.DataFrame) -> pl.DataFrame:
    """Add `meant`: the request that (alias, start_ns) means, the alias itself where nobody else claims it."""
    found = rows.join(fixed.rename({"request_id": "fixed"}), on="alias", how="left", maintain_order="left")
    if by_start.height:
        found = found.join(
            by_start.rename({"request_id": "timed"}),
            on=["alias", "start_ns"],
            how="left",
            maintain_order="left",
        )
    else:
        found = found.with_columns(timed=pl.lit(None, dtype=pl.String))
    return found.with_columns(meant=pl.coalesce("timed", "fixed", "alias")).drop("timed", "fixed")
