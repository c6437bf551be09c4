"""A server that exports under its instance id and records inside under host and pid is one server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from kvtrace.analyses.inventory import inventory
from kvtrace.importer import import_files
from kvtrace.importer.one_server import one_server
from kvtrace.run import open_run
from kvtrace.sinks.parquet.arrow import arrow_schema

if TYPE_CHECKING:
    from kvtrace.run import Run

RAW = Path(__file__).parents[3] / "sample_traces" / "l1-reuse" / "raw"
NAMES = "SELECT process, version, attributes['same_as'] FROM process WHERE boot_id IS NULL ORDER BY process"


def tied(*rows: dict[str, Any]) -> dict[str, tuple[str | None, str | None]]:
    """Process -> its version and what it is the same as."""
    schema = arrow_schema("process")
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
    (found,) = one_server([pa.Table.from_arrays(columns, schema=schema)])
    return {
        row["process"]: (row["version"], dict(row["attributes"] or ()).get("same_as"))
        for row in found.to_pylist()
    }


def inside(pid: int, **said: Any) -> dict[str, Any]:
    known = {
        "process": f"h/{pid}",
        "engine": "cache-1",
        "host": "h",
        "product": "lmcache",
        "version": "0.5.5",
    }
    return known | {"boot_id": "b"} | said


OUTSIDE = {"process": "cache-1", "engine": "cache-1", "host": "h", "product": "lmcache"}


def products(run: Run) -> list[tuple[str, int, str | None]]:
    return [row[1:] for row in inventory(run).filter(what="product").rows()]


@pytest.mark.parametrize("parts", [1, 2])
def test_info_counts_each_process_of_the_recorded_stack_once(tmp_path: Path, parts: int) -> None:
    """The exporter of vLLM names its three processes; that of LMCache an instance, which is its engine."""
    inputs = [RAW]
    if parts == 2:
        inputs = [import_files([RAW / name], tmp_path / name).run for name in ("spool", "otlp.binpb")]
    run = open_run(import_files(inputs, tmp_path / "run").run)
    assert products(run) == [("lmcache", 1, "0.5.5"), ("vllm", 3, "0.32.0")]
    lmcache, vllm = run.sql(NAMES).rows()
    assert lmcache == ("lmcache-1", "0.5.5", "engine-host/24434")
    assert vllm == ("vllm-1", "0.32.0", "engine-host/24554, engine-host/25101, engine-host/25462")


def test_an_exporter_alone_is_the_same_as_nobody(tmp_path: Path) -> None:
    run = open_run(import_files([RAW / "otlp.binpb"], tmp_path / "run").run)
    assert run.sql(NAMES).rows() == [("lmcache-1", None, None), ("vllm-1", None, None)]
    assert products(run) == [("lmcache", 1, None), ("vllm", 1, None)]


def test_the_engine_and_the_product_must_be_the_same() -> None:
    assert tied(OUTSIDE, inside(5))["cache-1"] == ("0.5.5", "h/5")
    assert tied(OUTSIDE, inside(5, engine="cache-2"))["cache-1"] == (None, None)
    assert tied(OUTSIDE, inside(5, product="vllm"))["cache-1"] == (None, None)
    assert tied(OUTSIDE | {"engine": None}, inside(5, engine=None))["cache-1"] == (None, None)


def test_a_pid_that_the_exporter_names_decides_alone() -> None:
    said = OUTSIDE | {"attributes": [("pids", "6, 7")]}
    assert tied(said, inside(5), inside(6), inside(7))["cache-1"] == ("0.5.5", "h/6, h/7")
    assert tied(said | {"host": "other"}, inside(6, engine="e"))["cache-1"] == (None, None)


def test_versions_that_differ_are_nobodys() -> None:
    assert tied(OUTSIDE, inside(5), inside(6, version="0.6"))["cache-1"] == (None, "h/5, h/6")


def test_numbers_that_somebody_makes_up_are_bounded(tmp_path: Path) -> None:
    def resource(pid: int) -> dict[str, Any]:
        named = {"service.instance.id": "x", "host.name": "h", "process.pid": str(pid)}
        pairs = [{"key": key, "value": {"stringValue": text}} for key, text in named.items()]
        span = {"traceId": f"{pid + 1:032x}", "spanId": f"{pid + 1:016x}", "name": "s",
                "startTimeUnixNano": "1000", "endTimeUnixNano": "2000"}  # fmt: skip
        return {"resource": {"attributes": pairs}, "scopeSpans": [{"spans": [span]}]}

    body = {"resourceSpans": [resource(pid) for pid in range(500)]}
    (tmp_path / "spans.json").write_bytes(msgspec.json.encode(body))
    run = open_run(import_files([tmp_path / "spans.json"], tmp_path / "run").run)
    (pids,) = run.sql("SELECT attributes['pids'] FROM process").to_series()
    assert len(pids.split(", ")) == 64
