"""Pages and logs of a real master and its client: what the client did, whoever says it."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kvtrace.importer import import_files
from kvtrace.run import Run, open_run
from tests.engines.environment import TRANSFER_LIBRARIES, engine_python, skip_when_missing
from tests.engines.mooncake import master

pytestmark = pytest.mark.engine
SCRIPT = Path(__file__).with_name("pages_script.py")
MIB = 1 << 20
NO_ROOM = -200


@dataclass(frozen=True)
class Kept:
    """The run that all files make, the formats that were seen, and what the client did."""

    run: Run
    formats: dict[str, str]
    told: dict[str, Any]

    def value(self, name: str, source: str) -> float:
        """The last value of a metric of one file."""
        query = (
            "WITH found AS (SELECT value, labels['kvtrace.page']::BIGINT AS page FROM metric"
            " WHERE name = $name AND labels['kvtrace.source'] = $source)"
            " SELECT sum(value) FROM found WHERE page = (SELECT max(page) FROM found)"
        )
        return float(self.run.sql(query, name=name, source=source).item())


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    skip_when_missing(TRANSFER_LIBRARIES)
    python, folder = engine_python(TRANSFER_LIBRARIES), tmp_path_factory.mktemp("mooncake-pages")
    environment = {
        "MC_STORE_CLIENT_METRIC_INTERVAL": "1", "PATH": "/usr/bin:/bin", "HOME": str(folder),
    }  # fmt: skip
    with master.running(python, folder, lease_ms=60_000) as served:
        ports = (served.rpc_port, served.metadata_port, served.metrics_port, master.free_port(),
                 master.free_port())  # fmt: skip
        with (folder / "client.log").open("wb") as log:
            command = [str(python), str(SCRIPT), *map(str, ports)]
            subprocess.run(
                command, cwd=folder, env=environment, check=True, timeout=120, stderr=log, stdout=log
            )
    told = json.loads((folder / "told.json").read_bytes())
    (folder / "told.json").unlink()
    report = import_files([folder], folder / "run")
    return Kept(open_run(folder / "run"), {item.name: item.format for item in report.inputs}, told)


def test_every_page_and_both_logs_are_recognised_by_looking(kept: Kept) -> None:
    assert kept.formats == {
        "client-metrics": "prometheus", "client-metrics-summary": "mooncake-summary",
        "client.log": "mooncake-log", "master-metrics": "prometheus", "master.log": "mooncake-log",
        "master-metrics-summary": "mooncake-summary",
        "master-kv_events-status": "mooncake-kv-events-status",
    }  # fmt: skip


def test_bytes_and_calls_are_what_the_client_moved_on_its_page_in_its_summary_and_in_its_log(
    kept: Kept,
) -> None:
    written = sum(code == 0 for code in kept.told["codes"])
    bytes_read = sum(kept.told["read"])
    for name, page, wanted in (
        ("transfer.write_bytes", "mooncake_transfer_write_bytes", written * MIB),
        ("transfer.read_bytes", "mooncake_transfer_read_bytes", bytes_read),
    ):
        assert kept.value(page, "client-metrics") == wanted
        for source in ("client-metrics-summary", "client.log"):
            assert kept.value(f"mooncake_client_summary.{name}", source) == wanted
    query = (
        "SELECT DISTINCT value FROM metric WHERE name = 'mooncake_client_summary.latency.count'"
        " AND labels['op'] = 'put'"
    )
    assert kept.run.sql(query).rows() == [(float(written),)]


def test_keys_that_the_master_has_and_those_that_it_evicted_are_the_puts_that_went_well(kept: Kept) -> None:
    written = sum(code == 0 for code in kept.told["codes"])
    page, summary = "master-metrics", "master-metrics-summary"
    evicted = kept.value("master_evicted_key_count", page)
    assert kept.value("master_key_count", page) + evicted == written
    assert kept.value("mooncake_master_summary.eviction.keys", summary) == evicted
    assert kept.value("mooncake_master_summary.keys", summary) + evicted == written
    assert kept.value("mooncake_master_summary.mem_storage.capacity_bytes", summary) == 16 * MIB
    query = (
        "SELECT sum(attributes['removed_keys']::BIGINT) FROM span WHERE op = 'evict' AND reason = 'capacity'"
    )
    assert kept.run.sql(query).item() == evicted


def test_puts_that_found_no_room_are_failed_stores_of_their_keys(kept: Kept) -> None:
    refused = [f"page-{number}" for number, code in enumerate(kept.told["codes"]) if code == NO_ROOM]
    assert refused
    rows = kept.run.sql(
        "SELECT key FROM block WHERE event = 'failed' AND mode = 'write' ORDER BY time_ns"
    ).rows()
    assert [row[0] for row in rows] == refused
    query = "SELECT count(*) FROM span WHERE op = 'store' AND outcome = 'failed' AND reason = 'no_room'"
    assert kept.run.sql(query).item() == len(refused)
