"""Below `opentelemetry-instrument`: LMCache's server sends our spans; vLLM's are silenced and we add none.

program ─► vllm.tracing.init_tracer(OWN) ─► a span of vLLM's ─► which receiver got it?
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kvtrace.importer import import_files
from kvtrace.launch import bootstrap
from kvtrace.run import open_run
from tests.engines import process
from tests.engines.lmcache_alone import server
from tests.unit.launch.launched import environment
from tests.unit.sinks.otlp.receivers import http

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.sinks.otlp.receivers import Received

pytestmark = pytest.mark.engine

LIMIT_SECONDS = 300
INSTRUMENT = "from opentelemetry.instrumentation.auto_instrumentation import run; run()"
PROGRAM = """
import os
import vllm.v1.engine.llm_engine
from vllm.tracing import init_tracer, instrument

@instrument(span_name="a span of vLLM's own")
def inside():
    pass

import kvtrace

@kvtrace.transfer(op="load", tier_from="disk", tier_to="host")
def fetch():
    pass

init_tracer("vllm.llm_engine", os.environ["OWN_ENDPOINT"])
inside()
fetch()
"""
OWN, OURS = b"a span of vLLM's own", b"kv.load"
MOVED = ("kv.load", "kv.lookup", "kv.store")
LAST_COPY = b"below-1#"
"""Of the transfer's id: what the scenario's last request was copied under, after it was read from L2."""
PATIENCE_S = 60


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """OpenTelemetry's command beside the engine's packages, of which it is none: links, not an install."""
    folder = tmp_path / "packages"
    (folder / "opentelemetry").mkdir(parents=True)
    for name in ("opentelemetry.instrumentation", "opentelemetry.distro", "wrapt"):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        (place,) = spec.submodule_search_locations or ()
        (folder / name.replace(".", "/")).symlink_to(place)
    for name in ("opentelemetry-instrumentation", "opentelemetry-distro"):
        metadata = importlib.metadata.distribution(name).locate_file("")
        for path in Path(str(metadata)).glob(f"{name.replace('-', '_')}-*.dist-info"):
            (folder / path.name).symlink_to(path)
    return folder


@pytest.fixture
def ours() -> Iterator[Path]:
    folder = bootstrap.make()
    yield folder
    bootstrap.remove(folder)


def test_vllms_own_endpoint_gets_nothing_and_we_say_so_and_stay_out(
    python: Path, packages: Path, ours: Path
) -> None:
    with http() as own, http() as others:
        settings = {
            "PYTHONPATH": f"{ours}:{packages}", "OWN_ENDPOINT": own.url,
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": others.url, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", "OTEL_METRICS_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
        }  # fmt: skip
        done = subprocess.run(
            [python, "-c", INSTRUMENT, python, "-c", PROGRAM], env=environment() | settings,
            capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert own.bodies == []
    assert any(OWN in body for body in others.bodies)
    assert not any(OURS in body for body in others.bodies)
    (said,) = [line for line in done.stderr.splitlines() if "kvtrace" in line]
    assert "kvtrace makes no spans inside vLLM" in said
    assert "--otlp-traces-endpoint gets none" in said


def _wait_for_spans(received: Received) -> None:
    """Until the last request's last copy is there: spans leave in order, in batches of seconds."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if any(LAST_COPY in body for body in received.bodies):
            return
        time.sleep(0.1)


def test_lmcaches_server_sends_what_it_moved_as_spans(
    python: Path, packages: Path, ours: Path, tmp_path: Path
) -> None:
    """No recording goes on: what the receiver got is imported, and says what the client was told."""
    (tmp_path / "l2").mkdir()
    rpc, page = server._free_ports(2)
    command = server._command(server.Server(adapter=server.FS), python, rpc, page)
    with http() as received, ExitStack() as ending:
        settings = {
            **server.ENVIRONMENT, "PYTHONPATH": f"{ours}:{packages}", "OTEL_METRICS_EXPORTER": "none",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": received.url, "OTEL_LOGS_EXPORTER": "none",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        }  # fmt: skip
        words = [str(python), "-c", INSTRUMENT, *command]
        child = process.start("server", words, folder=tmp_path, environment=settings)
        ending.callback(process.stop, child)
        server._wait(child, f"http://{server.LOCALHOST}:{page}/healthcheck")
        said = server._play("plain", python, tmp_path, rpc, page)
        _wait_for_spans(received)
        process.stop(child)
    assert said == {"from_l2": [server.CHUNKS, []]}
    run = open_run(import_files([received.write(tmp_path / "spans.binpb")], tmp_path / "run").run)
    names = run.sql("SELECT DISTINCT name FROM span WHERE name LIKE 'kv.%' ORDER BY 1")["name"].to_list()
    assert names == list(MOVED)
    hops = "SELECT DISTINCT tier_from, tier_to FROM transfer WHERE request_id = 'below-1' AND op = 'load'"
    assert ("disk", "host") in run.sql(hops).rows()
