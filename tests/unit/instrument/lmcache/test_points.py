"""Everything else is a point, a count or a sample; what people wrote stays outside."""

from __future__ import annotations

from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
from kvtrace.instrument.lmcache.points import Points, numbers
from tests.unit.instrument.lmcache.literal import read


class Tier(Enum):
    L2 = "l2"


def decoded(name: str, sid: str = "", **said: Any) -> list[dict[str, Any]]:
    return read(Points(1_000).handlers()[name](7, 50, sid, said))


@pytest.mark.parametrize("name", ["mp.request.start", "mp.request.end"])
def test_a_session_is_a_point_of_its_request(name: str) -> None:
    (found,) = decoded(name, "r")
    assert (found["name"], found["request_id"], found["start_ns"], found["end_ns"]) == (name, "r", 50, 50)
    assert "op" not in found


def test_the_end_of_a_session_names_its_request_elsewhere() -> None:
    (found,) = decoded("mp.vllm.end_session", request_id="r")
    assert found["request_id"] == "r"


def test_allocated_blocks_and_tokens_are_counted() -> None:
    record = SimpleNamespace(req_id="r", new_block_ids=[4, 5], new_token_ids=[70001, 70002, 70003])
    (found,) = decoded("mp.vllm.block_allocation", instance_id=9, model_name="m", records=[record])
    assert (found["request_id"], found["blocks"], found["tokens"]) == ("r", 2, 3)
    assert "7000" not in repr(found)


def test_the_eviction_loop_is_three_samples() -> None:
    found = decoded("l1.eviction.loop_tick", usage=0.5, watermark=0.8, triggered=False)
    assert {row["name"]: row["value"] for row in found} == {
        "lmcache.l1.usage_ratio": 0.5, "lmcache.l1.watermark": 0.8, "lmcache.l1.eviction_triggered": 0.0,
    }  # fmt: skip


def test_no_limit_is_no_capacity() -> None:
    parts = [
        SimpleNamespace(tier=Tier.L2, backend="fs", capacity_bytes=size, shared=True) for size in (0, 64)
    ]
    none, some = decoded("sm.capacity.changed", snapshot=SimpleNamespace(modules=tuple(parts)))
    assert (none.get("value"), some["value"]) == (None, 64.0)
    assert (some["labels.tier"], some["labels.backend"], some["labels.shared"]) == ("l2", "fs", "true")


def test_a_timeout_says_what_it_says_and_keeps_its_stack_to_itself() -> None:
    (found,) = decoded("timeout.raised", message="m" * 500, exception_type="E", stacktrace="File secret")
    assert (found["outcome"], len(found["attributes.message"])) == ("timeout", 200)
    assert "secret" not in repr(found)


def test_a_section_of_a_copy_has_its_own_times() -> None:
    sample = ("dma", "D2H", 0, 1.5, 64, "r#3", 2e-6, 3e-6)
    (found,) = decoded("mp.transfer.phase_samples", samples=[sample], ended_transfer_key="r#3")
    assert (found["name"], found["transfer_id"], found["start_ns"], found["end_ns"]) == (
        "transfer.dma", "r#3", 1_000, 2_000,
    )  # fmt: skip
    assert found["clock"] == "gpu"


def test_an_event_that_nobody_knows_gives_its_numbers_and_no_text() -> None:
    said = {"count": 3, "done": True, "prompt": "secret", "keys": ["secret"], "ratio": 0.5}
    (found,) = read(numbers("l9.moved")(7, 50, "r", said))
    assert (found["name"], found["request_id"], found["attributes.count"]) == ("l9.moved", "r", 3)
    assert (found["attributes.done"], found["attributes.ratio"]) == (True, 0.5)
    assert "secret" not in repr(found)
