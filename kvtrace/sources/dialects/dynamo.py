"""Dynamo's spans (1.5.1 and 1.6.1): the front end's, its router's inside it, and the workers'.

    http-request               |-----------------------------|   request, as the API saw it; ttft_ms
      kv_router.select_worker    |--|                            when a worker was chosen; no request id
      kv_router.route_request        |-----------------------|   which one, until its answer ended: `route`
        handle_payload                 |---------------------|   the worker's call: op null, it says no tokens

A route is the choice, not the answer after it: its row has the times of the `select_worker` beside it, and is
a point where that is missing. `overlap_blocks` is what the router credits, weighted and rounded to blocks
(33 host blocks are 24.75 and show as 25): a forecast, in tokens where the choice's debug event gives the size
of a block. request_id is the engine's own; the caller's and the API server's names of it are aliases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from kvtrace.sources.dialects.columns import ID_KIND, Columns

if TYPE_CHECKING:
    import numpy.typing as npt

    from kvtrace.sources.dialects.attributes import Mask

REQUEST, ROUTE, SELECT, CALL = (
    "http-request", "kv_router.route_request", "kv_router.select_worker", "handle_payload",
)  # fmt: skip
_ROUTER = (ROUTE, SELECT, "kv_router.compute_block_hashes", "kv_router.compute_seq_hashes",
           "kv_router.find_matches", "kv_router.schedule")  # fmt: skip
_INPUT = "event.[ROUTING_INPUT] request local hashes."
LONGEST_MS = 1e12
MAX_RANKS = 256
"""Workers with data-parallel ranks that one batch may name; more keep the process for an engine."""
_STATUS = {
    "success": "ok", "cancelled": "aborted", "canceled": "aborted", "aborted": "aborted", "error": "error",
    "failed": "error", "failure": "error", "timeout": "error",
}  # fmt: skip
_UUID = r"^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$"


def applies(columns: Columns) -> Mask:
    """Spans of these names as the tracing of Dynamo's runtime writes them."""
    target = columns.attributes.at("target") >= 0
    return columns.named(REQUEST, CALL, *_ROUTER) & target & (columns.attributes.at("busy_ns") >= 0)


def fill(columns: Columns, mask: Mask) -> None:
    """Requests, routes, and who saw the rest."""
    columns.put("evidence", "native", mask)
    columns.put("observer", "api", mask & columns.named(REQUEST))
    columns.put("observer", "worker", mask & columns.named(CALL))
    columns.put("observer", "router", mask & columns.named(*_ROUTER))
    served = _is(columns, "target", "request_span")
    request = mask & columns.named(REQUEST) & served
    route = mask & columns.named(ROUTE)
    call = mask & columns.named(CALL) & _is(columns, "endpoint", "generate")
    asked = request | route | call  # other calls have ids of their own, which are no requests
    columns.take("request_id", "request_id", asked)
    columns.put(ID_KIND, "internal", asked & columns.known("request_id"))
    columns.put("attribution", "request", asked & columns.known("request_id"))
    _engine(columns, "instance_id", None, call)
    if request.any():
        _request(columns, request)
    if route.any():
        _route(columns, route, mask & columns.named(SELECT))


def aliases(columns: Columns, mask: Mask, source: str) -> pl.DataFrame | None:
    """The caller's name of each request, and by Dynamo's rule the API server's; None without any."""
    served = mask & columns.named(REQUEST, CALL) & _is(columns, "target", "request_span")
    rows = pl.DataFrame(
        [columns.attributes.texts(name) for name in ("request_id", "x_request_id", "uri")]
    ).filter(pl.Series(served))
    client = rows.select("request_id", alias="x_request_id", kind=pl.lit("client"), evidence=pl.lit("native"))
    prefix = (
        pl.when(pl.col("uri").str.ends_with("/chat/completions"))
        .then(pl.lit("chatcmpl-"))
        .when(pl.col("uri").str.ends_with("/completions"))
        .then(pl.lit("cmpl-"))
    )
    external = rows.filter(pl.col("request_id").str.contains(_UUID)).select(
        "request_id",
        alias=prefix + pl.col("request_id"),
        kind=pl.lit("external"),
        evidence=pl.lit("derived"),
    )
    found = pl.concat([client, external]).drop_nulls().filter(pl.col("alias") != pl.col("request_id"))
    columns_of = ["alias", "kind", "request_id", "source", "evidence"]
    named = found.unique(maintain_order=True).with_columns(source=pl.lit(source)).select(columns_of)
    return named if named.height else None


def _request(columns: Columns, mask: Mask) -> None:
    """Tokens, first token and outcome; its engine is the worker that decoded.

    1.5.1 leaves both counts at 0 for /v1/completions: no prompt has 0 tokens, so nobody counted.
    """
    columns.put("op", "request", mask)
    tokens, told = columns.attributes.integers("input_tokens")
    counted = mask & ~(told & (tokens == 0))
    columns.take("input_tokens", "prompt_tokens", counted)
    columns.take("output_tokens", "output_tokens", counted)
    _engine(columns, "prefill_worker_id", None, mask)
    _engine(columns, "decode_worker_id", None, mask)
    outcome, words = columns.attributes.words("request.outcome")
    for number, word in enumerate(words):
        if word in _STATUS:
            columns.put("status", _STATUS[word], mask & (outcome == number))
    columns.put("status", "error", mask & (columns.status_code == 2))
    milliseconds = columns.attributes.floats("ttft_ms")
    start, _ = columns.number("start_ns")
    end, ended = columns.number("end_ns")
    fits = mask & (milliseconds >= 0) & (milliseconds < LONGEST_MS)
    token = start + np.rint(np.where(fits, milliseconds, 0) * 1e6).astype(np.int64)
    believed = fits & (~ended | (token <= end)) & (token >= start)
    columns.put_numbers("first_token_ns", token, believed)
    columns.refuse("negative_duration", "request", mask & ~np.isnan(milliseconds) & ~believed,
                   "first tokens outside of their request")  # fmt: skip
    columns.attributes.understood("ttft_ms", believed)


def _route(columns: Columns, mask: Mask, select: Mask) -> None:
    """A choice: its worker, its attempt counted from 1, what it asked and what it was credited."""
    columns.put("op", "route", mask)
    columns.put("outcome", "ok", mask)
    _engine(columns, "worker_id", "dp_rank", mask)
    attempt, known = columns.attributes.integers("request.attempt")
    sane = mask & known & (attempt >= 0) & (attempt < 2**31)
    columns.put_numbers("attempt", attempt + 1, sane)
    start, _ = columns.number("start_ns")
    columns.put_numbers("end_ns", start.copy(), mask)
    choice = _choices(columns, mask, select)
    for column in ("start_ns", "end_ns", "requested_tokens", "predicted_tokens"):
        found = choice[column]
        columns.put_numbers(column, found.fill_null(0).to_numpy(), mask & found.is_not_null().to_numpy())


def _choices(columns: Columns, mask: Mask, select: Mask) -> pl.DataFrame:
    """A row a span: of each route the times and tokens of the last choice beside it that began before it.

    A choice is that of the first route after it: of another one the choice was not recorded.
    """
    spans = columns.batch.spans
    numbers = {
        "size": columns.attributes.integers(f"{_INPUT}block_size"),
        "isl": columns.attributes.integers(f"{_INPUT}isl_tokens"),
        "overlap": columns.attributes.integers("overlap_blocks"),
    }
    rows = pl.DataFrame(
        {
            "row": np.arange(columns.rows),
            "trace": spans["trace_id"].combine_chunks().indices.to_numpy(zero_copy_only=False),
            "parent": pl.Series(spans["parent_span_id"]),
            "start": columns.number("start_ns")[0].copy(),
            "end": columns.number("end_ns")[0].copy(),
            **{name: _sane(*given) for name, given in numbers.items()},
        }
    ).sort("start", "row")
    chosen = rows.filter(pl.Series(select).gather(rows["row"]) & pl.col("parent").is_not_null())
    routes = rows.filter(pl.Series(mask).gather(rows["row"])).select(
        "row", "trace", "parent", "start", "overlap"
    )
    pairs = routes.join_asof(
        chosen.select("trace", "parent", "start", "end", "size", "isl", begun="start", choice="row"),
        on="start", by=["trace", "parent"], check_sortedness=False,
    ).filter(pl.col("choice").is_null() | pl.col("choice").is_first_distinct())  # fmt: skip
    found = pairs.select(
        "row", start_ns="begun", end_ns="end", requested_tokens="isl",
        predicted_tokens=pl.col("overlap") * pl.col("size"),
    )  # fmt: skip
    return pl.DataFrame({"row": np.arange(columns.rows)}).join(
        found, on="row", how="left", maintain_order="left"
    )


def _sane(values: npt.NDArray[np.int64], valid: Mask) -> pl.Series:
    """Counts that can be multiplied without leaving 64 bits; null otherwise."""
    fits = valid & (values >= 0) & (values < 2**31)
    return pl.DataFrame({"value": values, "fits": fits}).select(
        pl.when("fits").then("value")
    ).to_series()  # fmt: skip


def _engine(columns: Columns, worker: str, rank: str | None, mask: Mask) -> None:
    """One worker is one engine, a data-parallel rank other than 0 another; the ids stay attributes."""
    ranked = np.zeros(columns.rows, bool)
    if rank is not None:
        texts = columns.attributes.texts(rank)
        ranked = mask & (texts.is_not_null() & (texts != "0")).to_numpy()
    columns.take(worker, "engine", mask & ~ranked)
    columns.attributes.misunderstood(worker, mask)
    if rank is not None and ranked.any():
        names = (columns.attributes.texts(worker) + "/" + columns.attributes.texts(rank)).to_list()
        for name in list(dict.fromkeys(names[row] for row in np.flatnonzero(ranked)))[:MAX_RANKS]:
            if name is not None:
                columns.put("engine", name, ranked & np.array([other == name for other in names]))


def _is(columns: Columns, attribute: str, word: str) -> Mask:
    """Spans whose attribute is a word."""
    return (columns.attributes.texts(attribute) == word).fill_null(value=False).to_numpy()
