"""What the questions answer of a run of which only SGLang's own files are there.

r0   |= gpu 64 =|= host 32 =|= storage 16 =|--- computed 88 ---|
r1   |= gpu 64 =|--------------- computed 136 ------------------|
r2   |------------------- computed 200 -------------------------|
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses.exposure import exposure
from kvtrace.analyses.fallbacks import fallbacks
from kvtrace.analyses.four_events import four_events
from kvtrace.analyses.hit_funnel import hit_funnel
from kvtrace.analyses.hit_ratio import hit_ratio
from kvtrace.analyses.ledger import ledger
from kvtrace.importer import import_files
from kvtrace.run import open_run
from tests.unit.sources.test_sglang_log import FILE
from tests.unit.sources.test_sglang_request_metrics import record

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

NONE = {"device": 64, "host": 0, "storage": 0, "storage_backend": "HiCacheFile"}
RECORDS = (
    record(), record(id="r1", cached_tokens=64, cached_tokens_details=NONE),
    record(id="r2", cached_tokens=0, cached_tokens_details=None),
)  # fmt: skip


def run(folder: Path, *records: Any, log: tuple[str, ...] = ()) -> Run:
    files = [folder / "metrics.log"]
    files[0].write_text("".join(json.dumps(each) + "\n" for each in records))
    if log:
        files.append(folder / "server.log")
        files[1].write_text("".join(f"[1970-01-01 00:01:40] {each}\n" for each in log))
    return open_run(import_files(files, folder / "run").run)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The three requests of the drawing."""
    return run(tmp_path_factory.mktemp("sglang"), *RECORDS)


def test_each_request_has_what_the_gpu_held_and_what_was_used_beyond_it(made: Run) -> None:
    found = hit_funnel(made).select("request_id", "gpu_hit_tokens", "loaded_tokens")
    assert sorted(found.rows()) == [("r0", 64, 48), ("r1", 64, 0), ("r2", 0, 0)]


def test_what_was_found_and_not_used_is_not_known(made: Run) -> None:
    funnel = hit_funnel(made)
    assert funnel["found_tokens"].null_count() == funnel["selected_tokens"].null_count() == 3
    assert four_events(made).height == 0  # SGLang names no keys by request


def test_hits_are_told_apart_by_tier(made: Run) -> None:
    rows = hit_ratio(made).select("tier", "component", "prompt_tokens", "loaded_tokens")
    assert rows.rows() == [
        ("gpu", None, 600, 128), ("host", "hicache.l2", 600, 32), ("disk", "hicache.l3.file", 600, 16),
    ]  # fmt: skip


def test_a_prefetch_that_the_log_tells_too_counts_once(tmp_path: Path) -> None:
    told = "HiCache prefetch success req=r0 completed=16 matched=0 loaded=16 occupied=0"
    rows = hit_ratio(run(tmp_path, *RECORDS, log=(FILE, told))).select("tier", "loaded_tokens").rows()
    assert rows == [("gpu", 128), ("host", 32), ("disk", 16)]


def test_a_load_is_a_verdict_and_nothing_used_is_none(made: Run) -> None:
    """Nothing used: nothing was there, or it was declined; SGLang does not tell which."""
    found = fallbacks(made).select("request_id", "verdict", "loaded_tokens")
    assert sorted(found.rows()) == [("r0", "loaded", 48), ("r1", None, 0), ("r2", None, 0)]


def test_a_prefetch_that_was_discarded_is_a_failure(tmp_path: Path) -> None:
    lost = "HiCache hybrid prefetch discarded req=r1 reason=deadline completed=64 requested=128 a=b"
    found = fallbacks(run(tmp_path, *RECORDS, log=(FILE, lost))).filter(request_id="r1")
    assert found.select("verdict", "reason", "loaded_tokens").rows() == [
        ("recompute_after_timeout", "timeout", 0)
    ]


def test_how_long_its_loads_took_is_not_known(made: Run) -> None:
    rows = ledger(made).select("request_id", "h2d_ns", "network_ns", "ttft_ns", "external_hit_tokens")
    assert sorted(rows.rows()) == [
        (f"r{n}", None, None, 500_000_000, 48 if n == 0 else 0) for n in range(3)
    ]  # fmt: skip
    assert fallbacks(made)["waited_ns"].to_list() == [0, 0, 0]
    classes = set(exposure(made)["class"])
    assert classes == {"queue", "other", "compute"}


@pytest.mark.parametrize("split", [None, {"device": 64}])
def test_a_split_that_was_not_said_is_null(tmp_path: Path, split: Any) -> None:
    unsaid = run(tmp_path, record(cached_tokens_details=split))
    assert hit_funnel(unsaid)["loaded_tokens"].to_list() == ([None] if split is None else [48])
    tiers = hit_ratio(unsaid)
    assert [row for row in tiers.select("tier", "loaded_tokens").rows() if row[0] != "gpu"] == []


def test_a_decode_engines_half_is_no_hit(tmp_path: Path) -> None:
    asked = {"bootstrap_room": 31}
    halves = run(tmp_path, record(asked=asked, completion_tokens=1), record(asked=asked, id="r1"))
    assert hit_ratio(halves).select("tier", "prompt_tokens", "loaded_tokens").rows() == [
        ("gpu", 200, 64), ("host", 200, 32), ("disk", 200, 16),
    ]  # fmt: skip
