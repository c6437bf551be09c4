"""Load generators' recorded files beside the spans of the engine that they asked: one request, both views.

engine      cmpl-bench-abc-0-0     vLLM's external id: cmpl-, the X-Request-Id that came, the prompt's number
vllm bench       bench-abc-0       its prefix and number: what it sends
aiperf           73a3a0ea-...      x_request_id: what it sends
guidellm    cmpl-bba24f6d4d49a7f0  the answer's id

All lie in one folder with a workload trace, and are imported in one command.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.importer import ImportReport, import_files
from kvtrace.run import open_run
from tests.unit.importer.drawn import Sent, body, llm_request

if TYPE_CHECKING:
    from kvtrace.run import Run

RECORDED = Path(__file__).parents[1] / "sources" / "recorded"
FILES = [RECORDED / name for name in ("load-vllm-bench.json", "load-aiperf.jsonl", "load-guidellm.json")]
SEEN = "request WHERE evidence <> 'predicted'"
WORKLOAD = RECORDED / "workload-mooncake.jsonl"


def sent() -> dict[str, float]:
    """External ids of all requests that were sent, and when, in ms."""
    bench = json.loads(FILES[0].read_text())
    offset = int(bench["clock_offset_ns"])
    found = {
        f"cmpl-bench-abc-{at}-0": start * 1e3 + offset / 1e6 for at, start in enumerate(bench["start_times"])
    }
    for line in FILES[1].read_text().splitlines():
        about = json.loads(line)["metadata"]
        found[f"cmpl-{about['x_request_id']}-0"] = about["request_start_ns"] / 1e6
    for request in json.loads(FILES[2].read_text())["benchmarks"][0]["requests"]["successful"]:
        found[f"{request['response_id']}-0"] = request["info"]["timings"]["request_start"] * 1e3
    return found


def engine() -> list[Sent]:
    """Each request arrives 2 ms after it was sent, and has its first token 10 ms later."""
    return [llm_request(name, at + 2, at + 30, first_ms=10) for name, at in sent().items()]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> ImportReport:
    folder = tmp_path_factory.mktemp("load")
    (folder / "in").mkdir()
    (folder / "in" / "otlp.jsonl").write_text(json.dumps(body(*engine())) + "\n")
    for file in (*FILES, WORKLOAD):
        shutil.copy(file, folder / "in")
    return import_files([folder / "in"], folder / "run")


@pytest.fixture(scope="module")
def whole(report: ImportReport) -> Run:
    return open_run(report.run)


def rows(run: Run, query: str) -> list[tuple[Any, ...]]:
    return run.sql(query).rows()


def test_a_folder_of_five_kinds_is_imported_by_looking_at_each(report: ImportReport) -> None:
    assert {each.path.name: each.format for each in report.inputs} == {
        "otlp.jsonl": "otlp-json", **{file.name: file.stem for file in (*FILES, WORKLOAD)},
    }  # fmt: skip
    assert all(not each.lost for each in report.inputs)


def test_every_clients_row_has_the_engines_name_of_its_request(whole: Run) -> None:
    names = rows(whole, "SELECT request_id FROM span WHERE observer = 'client'")
    assert sorted(name for (name,) in names) == sorted(sent())
    counted = "SELECT count(*), min(observers), max(observers) FROM request WHERE evidence = 'native'"
    assert rows(whole, counted) == [(18, 2, 2)]
    assert rows(whole, "SELECT count(*) FROM request WHERE evidence = 'predicted'") == [(12,)]


def test_the_first_token_of_a_request_is_the_engines_and_the_clients_is_beside_it(whole: Run) -> None:
    assert rows(whole, f"SELECT DISTINCT round(ttft_ns / 1e6), observer FROM {SEEN}") == [(10, "api")]
    ((count, least),) = rows(
        whole,
        "SELECT count(*), min(attributes['client.ttft_ns']::BIGINT) FROM span WHERE observer = 'client'",
    )
    assert count == 18
    assert least > 10_000_000


def test_what_only_the_client_was_told_fills_what_the_engine_left_open(whole: Run) -> None:
    """The engine's span has no cached tokens; aiperf's and guidellm's answers had, vLLM bench keeps none."""
    query = f"SELECT reported_cached_tokens, count(*) FROM {SEEN} GROUP BY ALL ORDER BY ALL NULLS LAST"
    assert rows(whole, query) == [(0, 6), (128, 6), (None, 6)]


def test_no_name_was_ambiguous(whole: Run) -> None:
    assert rows(whole, "SELECT cause FROM loss") == []
