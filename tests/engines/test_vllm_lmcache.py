"""The five scenarios on the real stack, recorded now: what holds of the shipped recordings holds of these.

Minutes: `pytest -m engine`. The engines' environment is built once under $KVTRACE_CACHE. A missing engine is
red; KVTRACE_SKIP_ENGINES=vllm-lmcache says that it is known to be missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.engines.scenarios import SESSIONS
from tests.golden import truths
from tests.golden.truths import ALWAYS, ASKED, Recording, numbers

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.conftest import Recordings

SCENARIOS = tuple(scenario.name for session in SESSIONS for scenario in session.scenarios)
pytestmark = pytest.mark.engine


@pytest.fixture(scope="session")
def recorded(recordings: Recordings) -> dict[str, Recording]:
    """Every scenario, played once and imported from its raw files."""
    return {name: recordings.imported(name) for name in SCENARIOS}


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("truth", ALWAYS + ASKED, ids=lambda truth: truth.__name__)
def test_of_every_recording(
    recorded: dict[str, Recording], truth: Callable[[Recording], None], name: str
) -> None:
    truth(recorded[name])


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "server_killed"])
def test_a_server_that_ended_well_lost_nothing(recorded: dict[str, Recording], name: str) -> None:
    truths.nothing_was_lost(recorded[name], at_once=name == "concurrent")


def test_more_is_found_than_moved(recorded: dict[str, Recording]) -> None:
    truths.more_is_found_than_moved(recorded["l1_reuse"])


@pytest.mark.parametrize("name", ["concurrent", "l1_reuse", "l2_loads"])
def test_a_full_load_is_1280_tokens_and_2621440_bytes(recorded: dict[str, Recording], name: str) -> None:
    truths.a_full_load_is_1280_tokens_and_2621440_bytes(recorded[name])


def test_a_prompt_below_a_chunk_is_not_looked_up(recorded: dict[str, Recording]) -> None:
    truths.a_prompt_below_a_chunk_is_not_looked_up(recorded["l1_reuse"])


@pytest.mark.parametrize(("name", "least"), [("stores_dropped", 3), ("l2_loads", 1)])
def test_stores_without_room_are_drops(recorded: dict[str, Recording], name: str, least: int) -> None:
    truths.drops_keep_nothing_for_an_unknown_reason(recorded[name])
    assert truths.drops(recorded[name]) >= least  # how many depends on when L1 was emptied
    truths.what_had_no_room_is_never_stored_and_missed_again(recorded[name])


def test_what_l1_lost_is_found_below_it(recorded: dict[str, Recording]) -> None:
    below = "max(coalesce(found_by_tier['disk'], found_by_tier['unknown']))"
    ((below,),) = recorded["l2_loads"].rows(f"SELECT {below} FROM lookup")
    assert below >= truths.CHUNK_TOKENS


def test_the_killed_servers_losses_are_counted(recorded: dict[str, Recording]) -> None:
    killed = recorded["server_killed"]
    truths.the_killed_server_lost_spans(killed)
    truths.after_the_kill_nothing_of_the_cache_was_seen(killed)


def test_the_first_request_after_the_kill_waits_for_its_lookup(recorded: dict[str, Recording]) -> None:
    truths.the_first_request_after_the_kill_waits_for_its_lookup(recorded["server_killed"])


def test_the_fourth_request_after_the_kill_waits_for_held_blocks(recorded: dict[str, Recording]) -> None:
    truths.the_fourth_request_after_the_kill_waits_for_held_blocks(recorded["server_killed"])


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_vllm_counts_in_tokens_and_requests_agrees(recorded: dict[str, Recording], name: str) -> None:
    numbers.what_vllm_counts_agrees(recorded[name].run)


@pytest.mark.parametrize("name", SCENARIOS)
def test_vllms_queue_time_holds_loads_and_lookups(recorded: dict[str, Recording], name: str) -> None:
    run = recorded[name].run
    ((loads,),) = recorded[name].rows("SELECT count(*) FROM transfer WHERE op = 'load' AND tier_to = 'gpu'")
    numbers.the_queue_time_holds_loads_and_lookups(run, loads=loads > 0)


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "server_killed"])
def test_lmcaches_numbers_are_explained(recorded: dict[str, Recording], name: str) -> None:
    numbers.lmcaches_numbers_are_explained(recorded[name].run)
