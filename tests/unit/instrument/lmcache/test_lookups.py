"""A lookup is open until its client polls; asking again is another attempt of the same request."""

from __future__ import annotations

from typing import Any

import pytest
from kvtrace.instrument.lmcache.lookups import Lookups
from tests.unit.instrument.lmcache.literal import SPACE, read

pytestmark = pytest.mark.usefixtures("told")


def see(lookups: Lookups, name: str, at: int, sid: str = "r", **said: Any) -> list[dict[str, Any]]:
    return read(lookups.handlers()[name](0, at, sid, said))


def answer(lookups: Lookups, **said: Any) -> dict[str, Any]:
    see(lookups, "mp.lookup_prefetch.start", 10)
    (found,) = see(lookups, "mp.lookup_prefetch.end", 20, **said)
    return found


def test_asking_again_is_another_attempt_and_the_first_stays_open() -> None:
    lookups = Lookups()
    (first,) = see(lookups, "mp.lookup_prefetch.start", 10)
    (second,) = see(lookups, "mp.lookup_prefetch.start", 30)
    (closed,) = see(lookups, "mp.lookup_prefetch.end", 40, requested_tokens=64, hit_tokens=64)
    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert (first["part"], closed["part"]) == ("open", "close")
    assert closed["span_id"] == second["span_id"] != first["span_id"]


@pytest.mark.parametrize(("hit", "outcome"), [(0, "miss"), (64, "partial"), (192, "ok")])
def test_how_much_was_found_is_the_outcome(hit: int, outcome: str) -> None:
    found = answer(Lookups("host", "disk"), requested_tokens=192, hit_tokens=hit, l1_hit_tokens=0,
                   l2_hit_tokens=hit)  # fmt: skip
    assert (found["requested_tokens"], found["found_tokens"], found["outcome"]) == (192, hit, outcome)
    assert (found["found_by_tier.host"], found["found_by_tier.disk"]) == (0, hit)
    assert "found_by_tier.unknown" not in found


def test_a_server_without_l2_finds_nothing_there_not_even_zero() -> None:
    found = answer(
        Lookups("host", None), requested_tokens=192, hit_tokens=0, l1_hit_tokens=0, l2_hit_tokens=0
    )
    assert {name for name in found if name.startswith("found_by_tier")} == {"found_by_tier.host"}


@pytest.mark.parametrize(
    ("word", "reason"),
    [("empty_chunk_hashes", "below_chunk"), ("no_gpu_context", "no_context"), ("new_word", "unknown")],
)
def test_a_lookup_that_asked_nothing_says_why(word: str, reason: str) -> None:
    found = answer(Lookups(), requested_tokens=0, hit_tokens=0, early_exit_reason=word)
    assert (found["outcome"], found["reason"], found["attributes.early_exit_reason"]) == (
        "skipped",
        reason,
        word,
    )


def test_an_end_whose_start_was_dropped_is_a_row_of_its_own() -> None:
    (found,) = see(Lookups(), "mp.lookup_prefetch.end", 20, requested_tokens=64, hit_tokens=0)
    assert (found["request_id"], found["end_ns"], found.get("start_ns")) == ("r", 20, None)


def test_a_requests_keys_are_numbered_from_the_first_chunk_of_its_prompt() -> None:
    lookups = Lookups()
    see(lookups, "mp.lookup_prefetch.start", 10)
    said = {"request_id": "r", "chunk_hashes": [b"\1\1", b"\2\2"], "model_name": "m", "chunk_size": 64,
            "seq_len": 150, "dtypes": [], "shapes": []}  # fmt: skip
    assert see(lookups, "mp.lookup", 11, **said) == [
        {"request_id": "r", "attempt": 1, "position": place, "key_space": SPACE, "key": name, "tokens": 64,
         "time_ns": 11, "source": "lmcache.mp.lookup"}
        for place, name in enumerate(["0101", "0202"])
    ]  # fmt: skip


def test_the_salt_of_a_tenant_is_no_text_of_a_row() -> None:
    found = answer(Lookups(), requested_tokens=64, hit_tokens=64, cache_salt="bob")
    assert found["identity_id"].startswith("lmcache:salt:")
    assert "bob" not in repr(found)


def test_two_levels_of_one_medium_are_found_together() -> None:
    found = answer(
        Lookups("disk", "disk"), requested_tokens=192, hit_tokens=192, l1_hit_tokens=64, l2_hit_tokens=128
    )
    assert found["found_by_tier.disk"] == 192
