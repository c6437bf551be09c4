"""LMCache's own OTLP exporter and pages, collected from a server that knows nothing of kvtrace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import kvtrace
import pytest
from kvtrace.run import open_run
from tests.engines.collect.lmcache_session import play

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

pytestmark = pytest.mark.engine
RANKS, TOKENS = 2, 192


@pytest.fixture(scope="module")
def collected(python: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, str]:
    out = tmp_path_factory.mktemp("collected") / "run"
    said = play(python, out)
    return open_run(out), said


def test_every_store_and_load_of_every_rank_is_there(collected: tuple[Run, str]) -> None:
    rows = collected[0].sql(
        "SELECT op, request_id, count(*) FROM span WHERE op IS NOT NULL GROUP BY ALL ORDER BY ALL"
    )
    assert rows.rows() == [
        ("load", "below-1", RANKS), ("load", "warm-0", RANKS),
        ("lookup", "below-1", 1), ("lookup", "cold-0", 1), ("lookup", "cold-1", 1), ("lookup", "warm-0", 1),
        ("store", "cold-0", RANKS), ("store", "cold-1", RANKS),
    ]  # fmt: skip


def test_a_lookup_says_where_it_found_what(collected: tuple[Run, str]) -> None:
    found = collected[0].sql(
        "SELECT request_id, found_tokens, found_by_tier['host'], found_by_tier['disk'] FROM lookup ORDER BY 1"
    )
    assert found.rows()[0][:2] == ("below-1", TOKENS)
    assert [row[:2] for row in found.rows()] == [
        ("below-1", TOKENS), ("cold-0", 0), ("cold-1", 0), ("warm-0", TOKENS),
    ]  # fmt: skip
    assert found.rows()[3][2] == TOKENS


def test_the_pages_of_the_server_are_metrics_with_times(collected: tuple[Run, str]) -> None:
    run, said = collected
    times = run.sql(
        "SELECT count(DISTINCT time_ns) AS pages, count(*) - count(time_ns) AS without FROM metric"
    )
    assert times["without"].item() == 0
    assert times["pages"].item() >= 4
    used = run.sql(
        "SELECT max(value) FROM metric WHERE name LIKE 'lmcache_status.%total_object_count'"
    ).item()
    assert used > 0
    identity = run.sql("SELECT field, value FROM identity ORDER BY 1").rows()
    assert ("chunk_size", "64") in identity
    assert "polls found nobody there before the first page came" in said


def test_what_the_server_pushes_counts_what_its_spans_show(collected: tuple[Run, str]) -> None:
    """Its exporter sends metrics to the same address; they name the process that the spans name."""
    run, said = collected
    last = dict(run.sql(
        "SELECT name, sum(value) FROM (FROM metric WHERE process = 'lmc-collected' "
        "QUALIFY time_ns = max(time_ns) OVER (PARTITION BY name)) WHERE kind = 'counter' GROUP BY 1"
    ).rows())  # fmt: skip
    moved = dict(run.sql("SELECT op, count(*) FROM span WHERE op IN ('load', 'store') GROUP BY 1").rows())
    asked = run.sql("SELECT count(*), sum(found_tokens)::BIGINT FROM lookup").rows()[0]
    assert last["lmcache_mp.num_finished_stores"] == moved["store"]
    assert last["lmcache_mp.num_finished_retrieves"] == moved["load"]
    assert (last["lmcache_mp.lookups"], last["lmcache_mp.lookup_hit"]) == asked
    (line,) = [line for line in said.splitlines() if line.startswith("otlp-grpc") and "spans" in line]
    assert "other rows" in line


def test_where_its_exporter_names_no_key_there_is_none_that_a_router_could_see(
    collected: tuple[Run, str],
) -> None:
    """Objects that a page counts are residency: nobody can be told of a key without a name."""
    assert kvtrace.analyze(collected[0], "visibility").is_empty()


def test_nothing_was_lost(collected: tuple[Run, str]) -> None:
    assert collected[0].sql("SELECT * FROM loss").is_empty()
