"""`opentelemetry-instrument python script.py`: OpenTelemetry's command and SDK, a receiver on loopback."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.importer import import_files
from kvtrace.run import Run, open_run
from tests.unit.launch import launched
from tests.unit.sinks.otlp.receivers import Received, http

if TYPE_CHECKING:
    from collections.abc import Sequence

SCRIPT = Path(__file__).with_name("script.py")
INSTRUMENT = Path(sys.executable).with_name("opentelemetry-instrument")
PYTHON = [str(INSTRUMENT), sys.executable]
MADE_HERE = {"run_id", "bucket", "trace_id", "span_id", "parent_span_id", "process", "engine", "transfer_id"}
TIMES = {"start_ns", "end_ns"}


def started(words: Sequence[str | Path], received: Received, **more: str) -> subprocess.CompletedProcess[str]:
    settings = {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": received.url, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none",
    }  # fmt: skip
    return subprocess.run(
        list(map(str, words)), env=launched.environment(**settings, **more), text=True, capture_output=True,
        timeout=launched.LIMIT_SECONDS, check=False,
    )  # fmt: skip


@dataclass
class Ways:
    """The script as OpenTelemetry's spans, imported, and as `kvtrace run` records it."""

    spans: Run
    recorded: Run


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> Ways:
    folder = tmp_path_factory.mktemp("ways")
    with http() as received:
        done = started([*PYTHON, SCRIPT], received)
        assert (done.returncode, done.stderr) == (0, "")
        file = received.write(folder / "spans.binpb")
    done = launched.run("--out", folder / "recorded", "--", sys.executable, SCRIPT)
    assert done.returncode == 0
    return Ways(open_run(import_files([file], folder / "run").run), open_run(folder / "recorded"))


def rows(run: Run, where: str = "op IS NOT NULL") -> list[dict[str, Any]]:
    found = run.sql(f"SELECT * FROM span WHERE {where} ORDER BY start_ns").to_dicts()
    return [{name: value for name, value in row.items() if value is not None} for row in found]


def test_the_spans_import_as_the_rows_that_a_recording_has(ways: Ways) -> None:
    left_out = MADE_HERE | TIMES | {"name"}
    imported, recorded = (
        [{name: value for name, value in row.items() if name not in left_out} for row in rows(run)]
        for run in (ways.spans, ways.recorded)
    )
    assert len(recorded) == 4
    assert imported == recorded
    assert [row["outcome"] for row in imported] == ["ok", "ok", "failed", "ok"]


def test_a_span_is_named_by_its_operation_and_lasts_as_long_as_its_call(ways: Ways) -> None:
    found = rows(ways.spans)
    assert [row["name"] for row in found] == ["kv.load", "kv.load", "kv.store", "kv.load"]
    assert all(row["end_ns"] > row["start_ns"] for row in found)
    assert all(later["start_ns"] >= row["end_ns"] for row, later in pairwise(found))


def test_a_call_in_a_scope_is_a_child_of_its_span(ways: Ways) -> None:
    (scope,) = rows(ways.spans, "name = 'kvtrace.request'")
    assert scope["attributes"]["kvtrace.request.id"] == "r2"
    inside = rows(ways.spans, "request_id = 'r2'")
    assert [row["parent_span_id"] for row in inside] == [scope["span_id"]] * 2
    assert {row["trace_id"] for row in inside} == {scope["trace_id"]}
    assert all(scope["start_ns"] <= row["start_ns"] <= row["end_ns"] <= scope["end_ns"] for row in inside)


def test_what_an_error_says_is_in_no_span(ways: Ways) -> None:
    everything = ways.spans.sql("SELECT * FROM span").write_json()
    assert '"failed"' in everything
    assert "must not be kept" not in everything


def test_below_kvtrace_run_rows_are_recorded_once_and_no_span_is_made(tmp_path: Path) -> None:
    with http() as received:
        words = [*launched.KVTRACE, "--out", tmp_path / "run", "--", *PYTHON, SCRIPT]
        done = started(words, received)
        assert done.returncode == 0, done.stderr
        assert received.bodies == []
    assert len(rows(open_run(tmp_path / "run"))) == 4
    assert "4 rows from 1 process" in done.stderr


def test_inside_vllm_it_is_refused_with_one_sentence(tmp_path: Path) -> None:
    """A package of vLLM's name stands in here; tests/engines/test_autoinstrument.py asks the real one."""
    engine = tmp_path / "vllm" / "v1" / "engine"
    engine.mkdir(parents=True)
    for name in ("core.py", "llm_engine.py"):
        (engine / name).write_text("")
    script = tmp_path / "serve.py"
    engines = "import vllm.v1.engine.llm_engine, vllm.v1.engine.core"
    script.write_text(SCRIPT.read_text().replace("import contextlib", f"import contextlib\n{engines}"))
    with http() as received:
        done = started([*PYTHON, script], received)
        assert done.returncode == 0, done.stderr
        assert received.bodies == []
    (sentence,) = done.stderr.strip().splitlines()
    assert "kvtrace makes no spans inside vLLM" in sentence
    assert "--otlp-traces-endpoint gets none" in sentence


def test_an_instrumentor_can_be_left_out_as_any_other() -> None:
    with http() as received:
        done = started(
            [*PYTHON, SCRIPT], received, OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="kvtrace, kvtrace_lmcache"
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert received.bodies == []
