"""What an agent of NIXL leaves in files: its ring has what its caller was told, transfer by transfer."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kvtrace.importer import import_files
from kvtrace.importer.formats import format_of
from kvtrace.run import open_run
from tests.engines.environment import TRANSFER_LIBRARIES, engine_python, skip_when_missing

pytestmark = pytest.mark.engine
SCRIPT = Path(__file__).with_name("files_script.py")
MS = 1_000_000
TRANSFERS = 12


@dataclass(frozen=True)
class Kept:
    """Where the files are, and what the caller noted."""

    ring: Path
    transfers: Path
    told: list[dict[str, Any]]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    skip_when_missing(TRANSFER_LIBRARIES)
    folder = tmp_path_factory.mktemp("nixl-files")
    rings = folder / "rings"
    rings.mkdir()
    environment = {"NIXL_TELEMETRY_ENABLE": "y", "NIXL_TELEMETRY_DIR": str(rings), "PATH": "/usr/bin:/bin"}
    command = [str(engine_python(TRANSFER_LIBRARIES)), str(SCRIPT), str(TRANSFERS)]
    subprocess.run(command, cwd=folder, env=environment, check=True, timeout=120, capture_output=True)
    file = folder / "transfers.jsonl"
    return Kept(rings / "kept", file, [json.loads(line) for line in file.read_text().splitlines()])


def test_both_files_are_recognised_by_looking(kept: Kept) -> None:
    assert (format_of(kept.ring), format_of(kept.transfers)) == ("nixl-ring", "nixl-transfers")


def test_the_ring_has_the_bytes_and_durations_of_every_transfer_in_order(kept: Kept, tmp_path: Path) -> None:
    report = import_files([kept.ring], tmp_path / "run")
    assert report.inputs[0].lost == {}
    query = (
        "SELECT value::BIGINT FROM metric WHERE name = 'nixl_ring.' || $name ORDER BY labels['event']::BIGINT"
    )
    run = open_run(tmp_path / "run")
    seen = {
        name: [row[0] for row in run.sql(query, name=name).rows()]
        for name in ("agent_xfer_time", "agent_xfer_post_time", "agent_tx_bytes", "agent_rx_bytes")
    }
    telemetry = [each["telemetry"] for each in kept.told]
    assert seen["agent_xfer_time"] == [each["xferDuration"] for each in telemetry]
    assert seen["agent_xfer_post_time"] == [each["postDuration"] for each in telemetry]
    for name, operation in (("agent_tx_bytes", "WRITE"), ("agent_rx_bytes", "READ")):
        wanted = [each["telemetry"]["totalBytes"] for each in kept.told if each["op"] == operation]
        assert seen[name] == wanted


def test_transfers_have_within_a_millisecond_the_times_that_their_caller_measured(
    kept: Kept, tmp_path: Path
) -> None:
    import_files([kept.transfers], tmp_path / "run")
    query = "SELECT op, bytes, start_ns, end_ns, tier_from, tier_to FROM span ORDER BY start_ns"
    rows = open_run(tmp_path / "run").sql(query).to_dicts()
    assert len(rows) == TRANSFERS
    for row, caller in zip(rows, kept.told, strict=True):
        assert row["bytes"] == 1 << 20
        assert abs(row["start_ns"] - caller["t0_ns"]) < MS
        assert abs(row["end_ns"] - caller["t0_ns"] - caller["py_us"] * 1_000) < MS
        load = caller["op"] == "READ"
        assert (row["op"], row["tier_from" if load else "tier_to"]) == ("load" if load else "store", "disk")
