"""The question `blend`: is reuse of chunks that are no prefix close enough to computing them?

pairs.py       the file of pairs, JSONL or Parquet
judging.py     what was measured, against the thresholds
What is measured, and logits in files, are in analyses/_logits.
"""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path  # noqa: TC003 - the command line reads annotations
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from kvtrace.analyses._blended import blended
from kvtrace.analyses._logits import Distance, matrix_of, of_logits, of_tokens, torch_or_none
from kvtrace.analyses.blend.judging import judged, of_run, read_thresholds
from kvtrace.analyses.blend.pairs import Pair, read_pairs
from kvtrace.errors import InputError, UsageError
from kvtrace.run.derived import spilling

if TYPE_CHECKING:
    from kvtrace.run import Run

COLUMNS = pl.Schema(
    {
        "request_id": pl.String,
        "seen_blended": pl.Boolean,
        "compared": pl.String,
        "positions": pl.Int64,
        "left_out": pl.Int64,
        "top1_agreement": pl.Float64,
        "kl_mean": pl.Float64,
        "kl_max": pl.Float64,
        "logit_diff_mean": pl.Float64,
        "logit_diff_max": pl.Float64,
        "recompute_ratio": pl.Float64,
        "quality_full": pl.Float64,
        "quality_blended": pl.Float64,
        "quality_drop": pl.Float64,
        "e2e_ns": pl.Int64,
        "full_e2e_ns": pl.Int64,
        "verdict": pl.String,
        "because": pl.String,
        "run_verdict": pl.String,
    }
)

_KEPT = (
    "request_id", *Distance.__dataclass_fields__, "recompute_ratio", "quality_full", "quality_blended",
    "full_e2e_ns",
)  # fmt: skip
_PAIR = pl.Schema([*((name, COLUMNS[name]) for name in _KEPT), ("blended_e2e_ns", COLUMNS["e2e_ns"])])
"""What is kept of a pair."""

_ROWS = """
WITH named AS (
    SELECT alias, any_value(request_id) AS name FROM alias WHERE alias IN (SELECT request_id FROM given)
    GROUP BY alias HAVING count(DISTINCT request_id) = 1
), own AS (
    SELECT g.* REPLACE (CASE WHEN g.request_id IN (
        SELECT request_id FROM request UNION ALL SELECT request_id FROM seen) THEN g.request_id
        ELSE coalesce(n.name, g.request_id) END AS request_id)
    FROM given g LEFT JOIN named n ON n.alias = g.request_id
)
SELECT coalesce(o.request_id, s.request_id) AS request_id, CASE WHEN s.request_id IS NOT NULL THEN true
        WHEN r.request_id IS NOT NULL THEN false END AS seen_blended,
    o.* EXCLUDE (request_id, recompute_ratio, full_e2e_ns, blended_e2e_ns),
    coalesce(o.recompute_ratio, s.recomputed_tokens / nullif(s.found_tokens, 0)) AS recompute_ratio,
    o.quality_full - o.quality_blended AS quality_drop,
    coalesce(r.duration_ns, o.blended_e2e_ns) AS e2e_ns, o.full_e2e_ns
FROM own o FULL JOIN seen s ON s.request_id = o.request_id
LEFT JOIN request r ON r.request_id = coalesce(o.request_id, s.request_id)
ORDER BY 1
"""


def blend(
    run: Run,
    *,
    pairs: Path | None = None,
    thresholds: Path | None = None,
    through: Literal["auto", "torch", "numpy"] = "auto",
) -> pl.DataFrame:
    """How far are blended answers from those computed in full, and is that close enough?

    A row a request that the run saw blended, or that the pairs name. Seen blended: an operation `blend` used
    chunks, or LMCache's blend server gave chunks beyond the prefix. Without a pair a request is unverified,
    and so are the hits, loads and room that its run shows.

    A line (JSONL) or row (Parquet) of the pairs has request_id (the engine's, or another name of one request
    of the run) and full_tokens and blended_tokens (lists of token ids), or full_logits and blended_logits
    (a row of numbers a position, or the name of a .npy, .safetensors or .pt file beside the pairs,
    `file#name` where it has several arrays), or both; and recompute_ratio, full_quality and blended_quality
    (a task's own score), full_e2e_ns and blended_e2e_ns where they are known. Nothing of it is kept.

    Logits, where they are given, are compared position by position: both sides must have been given the same
    tokens before each. They are compared as log-probabilities, because adding a number to a whole row of
    logits changes nothing. Left out, and counted, are positions with NaN or +inf, positions at which only one
    side rules a token out (-inf), and what only the longer side has. Of token ids what only the longer has
    disagrees; after the first difference two answers that went on by themselves say little.

    torch, when installed, does the arithmetic (its own threads, many large rows) and reads .pt files; numpy
    does the same without it, bfloat16 safetensors included, and gives the same numbers but for rounding.

    A request is rejected when a limit is not met; accepted when all are measured and met, and no position was
    left out; else, and when no position was compared, unverified. The run is rejected when more requests are
    than the thresholds allow; accepted when none of its blended requests is unverified and enough were
    compared; else unverified. A thresholds file (TOML) has requests (least number compared), rejected (most),
    and tables least and most of limits.

    Args:
        run: the run
        pairs: file of pairs, JSONL or Parquet
        thresholds: TOML file of what is allowed
        through: what computes; auto is torch when it is installed

    Columns:
        request_id: the request, by the engine's name where the run knows it
        seen_blended: whether the run saw it blended; null for a request that is not in the run
        compared: logits or tokens; null without a pair
        positions: positions compared
        left_out: positions that could not be
        top1_agreement: share of positions whose likeliest token (or token id) is the same
        kl_mean: mean of KL(full || blended) over positions, nats; null for token ids
        kl_max: the largest, nats; null for token ids
        logit_diff_mean: mean difference of log-probabilities over positions and tokens; null for token ids
        logit_diff_max: the largest; null for token ids
        recompute_ratio: recomputed share of what was reused: the pair's, else that of the run's blend rows
        quality_full: the task's score of the full answer, as given
        quality_blended: the task's score of the blended answer, as given
        quality_drop: quality_full - quality_blended
        e2e_ns: arrival to finish of the blended request, ns: the run's, else the pair's
        full_e2e_ns: the same computed in full, ns, as given
        verdict: accepted, rejected or unverified
        because: the limits that were not met, or why it is unverified
        run_verdict: the one verdict of the run, the same on every row

    Raises:
        InputError: the pairs, their logits or the thresholds cannot be read.
        UsageError: thresholds without pairs, torch asked for and not installed, or needed for a .pt file.
    """
    if thresholds is not None and pairs is None:
        raise UsageError("blend: thresholds judge pairs; give --pairs as well.")
    torch = torch_or_none() if through != "numpy" and pairs is not None else None
    if through == "torch" and pairs is not None and torch is None:
        raise UsageError(
            "blend: torch is not installed; pip install 'kvtrace[torch]', or leave --through out."
        )
    allowed = None if thresholds is None else read_thresholds(thresholds)
    rows = _joined(run, pl.DataFrame(schema=_PAIR) if pairs is None else _given(pairs, torch))
    if rows["request_id"].is_duplicated().any():
        raise InputError(f"{pairs}: two pairs name one request of the run; give each request once.")
    judgements = [judged(row, allowed) for row in rows.iter_rows(named=True)]
    return rows.with_columns(
        verdict=pl.Series([verdict for verdict, _ in judgements], dtype=pl.String),
        because=pl.Series([because for _, because in judgements], dtype=pl.String),
        run_verdict=pl.lit(of_run([verdict for verdict, _ in judgements], allowed)),
    ).select(COLUMNS.names())


def _given(path: Path, torch: Any | None) -> pl.DataFrame:
    """A row a pair: what the comparison gave, and what the pair says beside it."""
    rows = [
        (
            pair.request_id, *astuple(_distance(pair, path.parent, torch)), pair.recompute_ratio,
            pair.full_quality, pair.blended_quality, pair.full_e2e_ns, pair.blended_e2e_ns,
        )
        for pair in read_pairs(path)
    ]  # fmt: skip
    return pl.DataFrame(rows, schema=_PAIR, orient="row")


def _joined(run: Run, given: pl.DataFrame) -> pl.DataFrame:
    """Pairs and requests that the run saw blended, each by the engine's name."""
    connection = spilling(run)
    try:
        connection.register("given", given.to_arrow())
        connection.register("seen", blended(run).to_arrow())
        rows = pl.DataFrame(connection.sql(_ROWS).to_arrow_table())
    finally:
        connection.close()
    return rows.cast({name: COLUMNS[name] for name in rows.columns})


def _distance(pair: Pair, folder: Path, torch: Any | None) -> Distance:
    if pair.full_logits is not None and pair.blended_logits is not None:
        full, other = (
            matrix_of(each, folder, pair.request_id) for each in (pair.full_logits, pair.blended_logits)
        )
        return of_logits(full, other, pair.request_id, torch)
    return of_tokens(pair.full_tokens or [], pair.blended_tokens or [])
