from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import polars as pl
import pytest
from kvtrace.analyses.ledger import ledger
from kvtrace.diff import measuring
from kvtrace.errors import UsageError
from kvtrace.run import open_run
from tests.rows import write_run
from tests.samples import SAMPLES
from tests.unit.diff.drawn import START

if TYPE_CHECKING:
    from pathlib import Path


def request(name: str, **more: object) -> dict[str, object]:
    whole = {"start_ns": START, "end_ns": START + 9, "status": "ok", "evidence": "shim", "observer": "api"}
    return {"op": "request", "request_id": name, **whole, **more}


def test_a_request_is_paired_by_its_workload_key_else_by_the_id_that_the_client_sent(tmp_path: Path) -> None:
    names = {"client": "req-1", "external": "cmpl-1", "response": "cmpl"}
    alias = [{"alias": f"{text}", "kind": kind, "request_id": "a"} for kind, text in names.items()]
    alias += [{"alias": "req-2", "kind": "client", "request_id": "b"}]
    alias += [{"alias": f"req-{n}", "kind": "client", "request_id": "c"} for n in (3, 4)]
    span = [request("a"), request("b", workload_key="w"), request("c"), request("d")]
    span += [request("p", evidence="predicted")]
    found = measuring.keys(write_run(tmp_path / "run", span=span, alias=alias)).sort("request_id")
    assert found.rows() == [("a", "req-1"), ("b", "w"), ("c", None), ("d", None)]


def test_counts_of_a_run(tmp_path: Path) -> None:
    span = [request("a"), request("b", status="error"), request("c", end_ns=None, status="open")]
    span += [request("p", evidence="predicted", end_ns=None, status="error")]
    loss = [{"cause": "dropped", "count": 2}, {"cause": "duplicate", "count": 5}]
    run = write_run(tmp_path / "run", span=span, loss=loss)
    assert [measuring.counted(run, metric) for metric in ("failed", "hung", "losses")] == [1, 1, 2]
    assert measuring.lossy(run)
    assert measuring.counted(run, "recomputed_tokens") is None


def test_a_count_that_nobody_observed_is_null(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", span=[request("a", status=None)])
    assert measuring.counted(run, "failed") is None
    assert measuring.counted(run, "losses") == 0
    assert not measuring.lossy(run)


def test_a_measure_is_no_count(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", span=[request("a")])
    with pytest.raises(UsageError, match="status is no column with numbers"):
        measuring.values(run, "ledger.status")


@pytest.mark.parametrize("sample", ["concurrent", "native-offload", "server-killed", "dynamo-hosttier"])
def test_a_column_of_the_ledger_alone_is_what_the_whole_ledger_says(sample: str, tmp_path: Path) -> None:
    copied = shutil.copytree(
        SAMPLES / sample, tmp_path / "run", ignore=shutil.ignore_patterns("raw", ".derived")
    )
    names = ("ttft_ns", "itl_p50_ns", "itl_p99_ns", "recomputed_tokens", "gpu_hit_tokens")
    alone = [measuring.values(open_run(copied), f"ledger.{name}").sort("key", "value") for name in names]
    run = open_run(copied)
    ids = measuring.keys(run)
    whole = ledger(run).join(ids, on="request_id")
    for name, found in zip(names, alone, strict=True):
        expected = whole.select("key", value=pl.col(name).cast(pl.Float64)).sort("key", "value")
        assert found.equals(expected), name


@pytest.mark.parametrize(("blocks", "exposed"), [(20, 50.0), (None, None), (0, 0.0)])
def test_time_without_blocks_is_exposed_where_a_hold_kept_them(
    tmp_path: Path, blocks: int | None, exposed: float | None
) -> None:
    """A lacks ten blocks  |--- queue: capacity ---|--- step ---|   B holds so many, or nobody any."""
    whose = {"engine": "e", "process": "p", "observer": "scheduler", "evidence": "shim"}
    span = [
        request("a", **whose, end_ns=START + 100, first_token_ns=START + 100, workload_key="w"),
        {**whose, "op": "queue", "reason": "capacity", "request_id": "a", "start_ns": START}
        | {"end_ns": START + 50, "blocks": 10, "free_blocks": 0},
        {**whose, "op": "step", "start_ns": START + 50, "end_ns": START + 100}
        | {"members": [{"request_id": "a", "phase": "prefill", "scheduled_tokens": 8, "output_tokens": 1}]},
    ]
    if blocks != 0:
        span.append(
            {**whose, "op": "hold", "reason": "store", "request_id": "b", "blocks": blocks}
            | {"start_ns": START, "end_ns": START + 50}
        )
    found = measuring.values(write_run(tmp_path / "run", span=span), "exposed_transfer_ns")
    assert found.rows() == [("w", exposed)]


def test_without_a_front_end_the_first_token_is_that_of_the_steps(tmp_path: Path) -> None:
    whose = {"engine": "e", "process": "p", "observer": "scheduler", "evidence": "shim"}
    member = {"request_id": "a", "phase": "prefill", "scheduled_tokens": 8, "output_tokens": 1}
    step = {**whose, "op": "step", "start_ns": START, "end_ns": START + 70, "members": [member]}
    run = write_run(tmp_path / "run", span=[request("a", workload_key="w", engine="e"), step])
    assert measuring.values(run, "ttft_ns").rows() == [("w", 70.0)]
    assert ledger(run)["ttft_ns"].to_list() == [70]
