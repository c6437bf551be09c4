"""Below `opentelemetry-instrument` vLLM's own spans are silenced, and we add none: in vLLM itself.

program ─► vllm.tracing.init_tracer(OWN) ─► a span of vLLM's ─► which receiver got it?
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kvtrace.launch import bootstrap
from tests.unit.launch.launched import environment
from tests.unit.sinks.otlp.receivers import http

if TYPE_CHECKING:
    from collections.abc import Iterator

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
