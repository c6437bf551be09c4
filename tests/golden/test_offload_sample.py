"""vLLM's own offloading, as recorded: every hop from asked for to usable, against the times of the copies."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.panels import timeline
from kvtrace.panels._hops import hops, phases
from tests.golden import truths
from tests.golden.conftest import SAMPLES
from tests.golden.truths import KV_BYTES_PER_TOKEN, Recording

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvtrace.run import Run

MS = 1_000_000
NAME = "native-offload"
OF_ANY_ENGINE = (
    truths.every_client_id_names_exactly_one_request,
    truths.every_request_has_the_tokens_of_its_clients_usage,
    truths.every_request_lies_within_its_clients_wait,
    truths.lookups_and_loads_lie_within_the_life_of_their_request,
    truths.the_queue_is_watched_without_a_gap_until_the_first_step,
    truths.tokens_from_the_gpu_loaded_and_computed_are_the_prompt,
    truths.every_answer_is_a_row_of_its_request,
    truths.the_funnel_closes,
    truths.nothing_was_lost,
)


@pytest.fixture
def offload(sample: Callable[[str], Run]) -> Recording:
    return Recording(sample(NAME), SAMPLES / NAME / "raw")


def _hops(offload: Recording, op: str) -> list[dict[str, Any]]:
    names = tuple(row[0] for row in offload.rows("SELECT request_id FROM request"))
    return [hop for hop in hops(offload.run, names).to_dicts() if hop["op"] == op]


def _measured(offload: Recording, *, stores: bool) -> list[dict[str, Any]]:
    """What the thread that copies wrote down of its own copies."""
    about = json.loads((offload.raw / "recording.json").read_text())
    return sorted(
        (own for own in about["host_times"] if own["stores"] is stores), key=lambda own: own["start_ns"]
    )


@pytest.mark.parametrize("truth", OF_ANY_ENGINE, ids=lambda truth: truth.__name__)
def test_of_every_recording(offload: Recording, truth: Callable[[Recording], None]) -> None:
    truth(offload)


@pytest.mark.parametrize(("op", "least"), [("load", 5), ("store", 5)])
def test_every_copy_has_the_times_that_its_worker_measured(offload: Recording, op: str, least: int) -> None:
    seen = sorted(_hops(offload, op), key=lambda hop: hop["start_ns"])
    own = _measured(offload, stores=op == "store")
    assert len(seen) == len(own) >= least
    for hop, measured in zip(seen, own, strict=True):
        assert abs(hop["handed_ns"] - measured["submit_ns"]) < 2 * MS
        assert abs(hop["start_ns"] - measured["start_ns"]) < 2 * MS
        assert abs(hop["end_ns"] - measured["end_ns"]) < 2 * MS
        assert hop["reported_ns"] >= measured["reported_ns"] - 2 * MS
        assert hop["bytes"] == measured["bytes"] == hop["tokens"] * KV_BYTES_PER_TOKEN


def test_of_every_load_submit_copy_poll_and_usable_follow_each_other_without_a_gap(
    offload: Recording,
) -> None:
    for hop in _hops(offload, "load"):
        found = phases(hop)
        assert [phase.kind for phase in found] == ["submit", "copy", "poll", "usable"]
        assert [phase.start_ns for phase in found[1:]] == [phase.end_ns for phase in found[:-1]]
        assert (found[0].start_ns, found[-1].end_ns) == (hop["asked_ns"], hop["usable_ns"])


def test_a_load_that_another_was_before_waited_longer_to_begin_than_it_copied(offload: Recording) -> None:
    """One thread copies: of loads that were asked for together one waits for the others."""
    loads = _hops(offload, "load")
    waits = [(hop["start_ns"] - hop["asked_ns"]) / (hop["end_ns"] - hop["start_ns"]) for hop in loads]
    assert max(waits) > 1 > min(waits)


def test_the_page_shows_the_request_whose_load_took_longest_with_all_four(offload: Recording) -> None:
    frames = timeline.data(offload.run)
    whole = {hop["request_id"]: hop["usable_ns"] - hop["asked_ns"] for hop in _hops(offload, "load")}
    assert frames.request["request_id"].to_list() == [max(whole, key=lambda name: whole[name])]
    told = [each.text for each in timeline.draw(frames).layout.annotations if "submit" in each.text]
    assert told
    assert not [text for text in told if "not observed" in text and "load" in text]
