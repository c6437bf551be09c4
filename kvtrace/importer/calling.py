"""Names that are neither the engine's own id nor the API server's: a caller's, an answer's, a given one.

cmpl-req-000-0     external          known by the engine's rule (naming.py)
cmpl-req-000       response          the id in the body of the answer, without the prompt's number
     req-000       client            the caller's X-Request-Id
kvtrace-7          given            a source says so: a router's x_request_id, a client's own record
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.sources.dialects.columns import ID_KIND

if TYPE_CHECKING:
    from kvtrace.importer.facts import Facts

CLIENT = (r"(?s)^cmpl-(.+)-\d+$", r"(?s)^chatcmpl-(.+?)(?:_\d+)?$")
"""vLLM 0.32: the external id is the endpoint's prefix, the caller's id, and the prompt's number."""
RESPONSE = (r"(?s)^(cmpl-.+)-\d+$", r"(?s)^(chatcmpl-.+?)_\d+$")
"""vLLM 0.32: the id of the answer is the external id without the prompt's number."""
_FOREVER = 2**63 - 1
_LIFE = ["alias", "request_id", "start_ns", "end_ns"]


def client_id(column: str = "alias") -> pl.Expr:
    """The caller's id in an external id."""
    return pl.coalesce([pl.col(column).str.extract(rule, 1) for rule in CLIENT])


def _response_id(column: str = "alias") -> pl.Expr:
    return pl.coalesce([pl.col(column).str.extract(rule, 1) for rule in RESPONSE])


def called(facts: Facts, external: pl.DataFrame, requests: pl.DataFrame) -> pl.DataFrame:
    """What names of rows mean: (alias, request_id, start_ns, end_ns); one alias may mean several requests.

    `external` = (alias, request_id, start_ns, end_ns) of ids whose external name is known.
    """
    others = facts.table("others").select(alias="request_id").unique()
    unknown = others.join(external, left_on="alias", right_on="request_id", how="anti").join(
        external, on="alias", how="anti"
    )
    if not unknown.height:
        return external.select(_LIFE).clear()
    ruled = _ruled(external, requests)
    told = given(facts, external, requests).select("alias", "request_id")
    lives = facts.table("sessions").group_by("request_id").agg(pl.min("start_ns"), pl.max("end_ns"))
    told = told.join(lives, on="request_id", how="left").with_columns(
        pl.col("start_ns").fill_null(0), pl.col("end_ns").fill_null(_FOREVER)
    )
    whole = pl.concat([ruled, told.select(_LIFE)]).filter(pl.col("alias") != pl.col("request_id"))
    meant = whole.group_by("alias", "request_id").agg(pl.min("start_ns"), pl.max("end_ns"))
    return meant.join(unknown, on="alias", how="semi").sort("alias", "start_ns", "request_id")


def _ruled(external: pl.DataFrame, requests: pl.DataFrame) -> pl.DataFrame:
    """Callers' and answers' names that follow from external ids, also from ids without an internal one."""
    own = requests.filter(pl.col(ID_KIND) == "external").join(
        external, left_on="request_id", right_on="alias", how="anti"
    )
    single = own.filter(pl.len().over("request_id") == 1)
    alone = single.select(
        pl.col("request_id").alias("alias"), "request_id", "start_ns", pl.col("end_ns").fill_null(_FOREVER)
    )
    known = pl.concat([external.select(_LIFE), alone])
    return pl.concat(
        [known.with_columns(alias=rule).drop_nulls("alias") for rule in (client_id(), _response_id())]
    )


def given(facts: Facts, external: pl.DataFrame, requests: pl.DataFrame) -> pl.DataFrame:
    """Aliases that sources gave, under the id that their own request id means: the rows of `alias`.

    A source may itself know the request by another name: a client's record says its own id and the answer's.
    """
    told = facts.table("given").unique(maintain_order=True)
    if not told.height:
        return told
    known = pl.concat(
        [
            external.select("alias", "request_id"),
            _ruled(external, requests).select("alias", "request_id"),
            told.select("alias", "request_id"),
        ]
    )
    once = known.unique().filter((pl.len().over("alias") == 1) & (pl.col("alias") != pl.col("request_id")))
    meaning = once.rename({"alias": "request_id", "request_id": "meant"})
    for _ in range(2):  # a client's id means an answer's, which means the engine's
        told = told.join(meaning, on="request_id", how="left").with_columns(
            request_id=pl.coalesce("meant", "request_id")
        )
        told = told.drop("meant")
    return told.filter(pl.col("alias") != pl.col("request_id")).unique(maintain_order=True)
