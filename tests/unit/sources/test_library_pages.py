"""Pages of metrics of transfer libraries, as Prometheus text: known numbers, and whose file a file is.

KVBM's page is drawn from the names and descriptions of Dynamo 1.6.1 (prometheus_names.py); it needs a GPU.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from kvtrace.importer.formats import OWN, decoders, format_of
from kvtrace.sources import mooncake_summary, prometheus
from kvtrace.sources.stream import open_input
from tests.unit.sources.given import decoded, recorded

HERE = Path(__file__).parent
RECORDED, PAGES = HERE / "recorded", HERE / "prometheus" / "recorded"
FILES = sorted(path for path in (*HERE.glob("recorded/*"), *PAGES.glob("*")) if path.suffix != ".md")
MIB = 1 << 20
KVBM = b"""\
# HELP kvbm_offload_blocks_h2d The number of offload blocks from host to disk
# TYPE kvbm_offload_blocks_h2d counter
kvbm_offload_blocks_h2d 12
# HELP kvbm_onboard_blocks_h2d The number of onboard blocks from host to device
# TYPE kvbm_onboard_blocks_h2d counter
kvbm_onboard_blocks_h2d 0
# HELP kvbm_matched_tokens The number of matched tokens
# TYPE kvbm_matched_tokens counter
kvbm_matched_tokens 4096
# HELP kvbm_host_cache_hit_rate Host cache hit rate (0.0-1.0) from the sliding window
# TYPE kvbm_host_cache_hit_rate gauge
kvbm_host_cache_hit_rate 0.25
"""


def values(found: Any) -> dict[tuple[str, ...], float]:
    """Name and labels' values -> value."""
    return {
        (row["name"], *(each["value"] for each in row["labels"] if not each["key"].startswith("kvtrace.")
                        and each["key"] != "hostname")): row["value"]
        for row in found.table("metric") if "value" in row
    }  # fmt: skip


def test_a_mooncake_client_says_what_its_caller_moved_to_the_byte() -> None:
    """19 values of 2 MiB went in, one came back by itself and three in a batch: others.md 4."""
    page = values(recorded(prometheus, RECORDED / "mooncake-client-metrics.txt.gz"))
    assert page["mooncake_transfer_write_bytes", "real"] == 19 * 2 * MIB
    assert page["mooncake_transfer_read_bytes", "real"] == (1 + 3) * 2 * MIB
    assert page[("mooncake_transfer_get_latency_sum",)] == 162
    assert page["mooncake_client_rpc_count", "real", "PutStart"] == 31


def test_a_clients_summary_is_its_page_rounded() -> None:
    page = values(recorded(prometheus, RECORDED / "mooncake-client-metrics.txt.gz"))
    summary = values_of_summary()
    for name in ("read", "write"):
        assert summary[f"transfer.{name}_bytes"] == page[f"mooncake_transfer_{name}_bytes", "real"]


def values_of_summary() -> dict[str, float]:
    found = recorded(mooncake_summary, PAGES / "mooncake-client-metrics-summary.txt")
    return {
        row["name"].removeprefix("mooncake_client_summary."): row["value"] for row in found.table("metric")
    }


def test_a_nixl_agents_page_is_the_sum_of_its_transfers() -> None:
    """Six writes and a read of 4 MiB; microseconds as in the telemetry of each."""
    page = values(recorded(prometheus, PAGES / "nixl.txt"))
    assert page["agent_tx_bytes_total", "kvA"] == 6 * 4 * MIB
    assert page["agent_rx_bytes_total", "kvA"] == 4 * MIB
    assert page["agent_xfer_time_us_count", "kvA"] == 7
    assert page["agent_xfer_time_us_sum", "kvA"] == page["agent_xfer_time_total", "kvA"]


def test_kvbms_page_keeps_its_names_whose_letters_mean_different_hops() -> None:
    found = decoded(prometheus, KVBM)
    assert {row["name"]: (row["kind"], row["value"]) for row in found.table("metric")} == {
        "kvbm_offload_blocks_h2d": ("counter", 12.0), "kvbm_onboard_blocks_h2d": ("counter", 0.0),
        "kvbm_matched_tokens": ("counter", 4096.0), "kvbm_host_cache_hit_rate": ("gauge", 0.25),
    }  # fmt: skip


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_recorded_file_belongs_to_at_most_one_format(path: Path) -> None:
    with open_input(path) as stream:
        head = stream.peek(1 << 16)
    said = [name for name, module in decoders().items() if module.looks_like(head)]
    assert len(said) + (format_of(path) in OWN) <= 1


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("nixl-agent.ring", "nixl-ring"), ("nixl-full.ring", "nixl-ring"),
        ("nixl-transfers.json", "nixl-transfers"),
        ("mooncake-master.log", "mooncake-log"), ("mooncake-client.log", "mooncake-log"),
    ],
)  # fmt: skip
def test_a_file_is_recognised_also_when_it_is_compressed(name: str, wanted: str, tmp_path: Path) -> None:
    content = (RECORDED / name).read_bytes()
    (tmp_path / "plain").write_bytes(content)
    (tmp_path / "packed").write_bytes(gzip.compress(content))
    assert {format_of(tmp_path / each) for each in ("plain", "packed")} == {wanted}
