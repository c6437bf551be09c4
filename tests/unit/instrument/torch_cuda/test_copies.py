"""Copies between host and device, from their call to their row.

host     0 ─ submit ─ 1us ── returns                     stream    ░░ start ──── 50us ──── end
                                                         the reaper looks 1 ms later
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.instrument import ranks, scope, wrapping
from kvtrace.instrument.scope import request
from kvtrace.instrument.torch_cuda.station import Lane
from tests.unit.instrument.torch_cuda.device import Dtype, Place

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.instrument.torch_cuda.conftest import World

START = 1_000_000_000_000


def test_a_copy_to_the_device_is_a_load_with_the_devices_times(world: Callable[..., World]) -> None:
    here = world()
    with request("r1"):
        here.gpu(1024, 2).copy_(here.host(1024, 2), non_blocking=True)
    (row,) = here.read()
    assert row == {
        "table": "span", "op": "load", "outcome": "ok", "tier_from": "host", "tier_to": "gpu", "clock": "gpu",
        "observer": "worker", "evidence": "shim", "attribution": "request", "name": "copy_",
        "transfer_id": None, "submit_ns": START, "start_ns": row["start_ns"], "end_ns": row["end_ns"],
        "bytes": 2048, "blocks": None, "device": "stand-in:0", "stream": "0x0", "rank": None,
        "request_id": "r1",
    }  # fmt: skip
    assert abs(row["start_ns"] - START) < 1_000
    assert abs(row["end_ns"] - row["start_ns"] - 50_000) < 1_000


def test_a_copy_from_the_device_is_a_store_of_what_crosses(world: Callable[..., World]) -> None:
    """Into a wider type: torch converts behind the crossing, so the width on the device counts."""
    here = world()
    with request("r1"):
        here.host(10, 8).copy_(here.gpu(10, 2))
    (row,) = here.read()
    assert (row["op"], row["tier_from"], row["tier_to"], row["bytes"]) == ("store", "gpu", "host", 20)


@pytest.mark.parametrize("who", [("r1",), ("r1", "r2"), ()])
def test_a_copy_says_the_rank_that_its_process_was_told(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, who: tuple[str, ...]
) -> None:
    here = world()
    ranks.tell(3)
    with request(*who):
        here.gpu().copy_(here.host())
    (row,) = here.read()
    assert row["rank"] == 3
    monkeypatch.setattr(ranks.os, "getpid", lambda: -1)
    assert ranks.mine() is None, "a forked child is no rank until it is told one"


@pytest.mark.parametrize(
    ("call", "name", "op"),
    [
        (lambda w: w.host().to("cuda"), "to", "load"),
        (lambda w: w.host().to("cuda:0", None), "to", "load"),
        (lambda w: w.host().to(device=Place("cuda", 0)), "to", "load"),
        (lambda w: w.host().to(Place("cuda")), "to", "load"),
        (lambda w: w.host().to(w.gpu()), "to", "load"),
        (lambda w: w.host().to(0), "to", "load"),
        (lambda w: w.host().cuda(), "cuda", "load"),
        (lambda w: w.host().cuda(0), "cuda", "load"),
        (lambda w: w.gpu().to("cpu"), "to", "store"),
        (lambda w: w.gpu().to(w.host()), "to", "store"),
        (lambda w: w.gpu().cpu(), "cpu", "store"),
    ],
)  # fmt: skip
def test_every_way_across_gives_one_row(
    world: Callable[..., World], call: Callable[[World], Any], name: str, op: str
) -> None:
    here = world()
    with request("r1"):
        call(here)
    (row,) = here.read()
    assert (row["name"], row["op"], row["bytes"]) == (name, op, 16)
    assert not here.told.losses


@pytest.mark.parametrize(
    "call",
    [
        lambda w: w.host().copy_(w.host()),
        lambda w: w.gpu().copy_(w.gpu()),
        lambda w: w.gpu().copy_(w.gpu(index=1)),
        lambda w: w.gpu().to("cuda:1"),
        lambda w: w.host().cpu(),
        lambda w: w.gpu().cuda(),
        lambda w: w.host().to("cpu"),
        lambda w: w.host().to(Dtype()),
        lambda w: w.gpu().to(Dtype()),
        lambda w: w.host().to(w.host()),
        lambda w: w.host().to(dtype=Dtype()),
    ],
)  # fmt: skip
def test_what_stays_on_its_side_gives_no_row_and_takes_no_event(
    world: Callable[..., World], call: Callable[[World], Any]
) -> None:
    here = world()
    with request("r1"):
        call(here)
    assert here.read() == []
    assert here.device.events == 0
    assert not here.told.losses


def test_a_tensor_without_a_request_is_no_state_unless_all_copies_are_asked_for(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = world()
    here.gpu().copy_(here.host())
    assert here.read() == []
    monkeypatch.setenv("KVTRACE_COPIES", "all")
    here = world()
    here.gpu().copy_(here.host())
    (row,) = here.read()
    assert row["attribution"] == "aggregate"
    assert "request_id" not in row


def test_several_requests_share_a_copy_as_its_members(world: Callable[..., World]) -> None:
    here = world()
    with request("a", "b", transfer_id="a/load/1"):
        here.gpu().copy_(here.host())
    (row,) = here.read()
    assert row["members"] == (("a", "b"), *((None, None),) * 4)
    assert (row["attribution"], row["transfer_id"]) == ("operation", "a/load/1")


def test_two_copies_of_one_stream_follow_each_other(world: Callable[..., World]) -> None:
    """The second waits for the first.

    host     c c                 both called within 2 us
    stream   ████░████
    """
    here = world()
    with request("r1"):
        here.gpu().copy_(here.host())
        here.gpu().copy_(here.host())
    first, second = here.read()
    assert second["submit_ns"] - first["submit_ns"] == 1_000
    assert second["start_ns"] >= first["end_ns"]
    assert abs(second["end_ns"] - first["submit_ns"] - 100_000) < 2_000


def test_copies_of_two_threads_that_interleave_on_one_stream_keep_their_times(
    world: Callable[..., World],
) -> None:
    """The second thread's end is recorded before the first thread's: nothing is pushed behind anything.

    stream   s1 s2 ████ e2 ████ e1
    """
    here = world()
    with request("r1"):
        first = here.copies.begin("copy_", "load", 0)
        here.copies._inside.copy = False
        second = here.copies.begin("copy_", "load", 0)
        here.device.ran(0)
        here.copies.end(second, 1)
        here.device.ran(0)
        here.copies.end(first, 2)
    rows = here.read()
    assert [row["bytes"] for row in rows] == [1, 2]
    assert abs(rows[1]["start_ns"] - rows[0]["start_ns"]) < 1_000
    assert abs(rows[1]["end_ns"] - rows[0]["end_ns"] - 50_000) < 1_000


def test_a_copy_that_is_not_over_is_looked_at_again(world: Callable[..., World]) -> None:
    here = world()
    here.device.copy_ns = 5_000_000
    with request("r1"):
        here.gpu().copy_(here.host())
    assert here.read(1_000_000) == []
    assert here.copies.reaper.turn() is True
    assert len(here.read(5_000_000)) == 1
    assert here.copies.reaper.turn() is False


def test_a_copy_that_raises_raises_for_the_engine_and_gives_its_pair_back(
    world: Callable[..., World],
) -> None:
    here = world()
    with request("r1"), pytest.raises(RuntimeError, match="must match"):
        here.gpu(4).copy_(here.host(5))
    assert here.read() == []
    with request("r1"):
        here.gpu().copy_(here.host())
    assert len(here.read()) == 1
    assert here.copies.reaper.stations[0].pool.made == 1


def test_a_call_that_moved_nothing_after_all_gives_its_pair_back(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = world()
    monkeypatch.setattr(here.torch.Tensor, "_moved", lambda tensor, _side: tensor)
    with request("r1"):
        here.gpu().cpu()
        here.gpu().cpu()
    assert here.read() == []
    assert here.copies.reaper.stations[0].pool.made == 1


def test_what_rounding_put_before_the_end_of_the_last_copy_is_put_behind_it(
    world: Callable[..., World],
) -> None:
    here = world()
    with request("r1"):
        pair = here.copies.begin("copy_", "load", 0)
    lane = Lane("0x0")
    lane.last_end_ns = pair.submit_ns + 9_000
    here.told.clock += 1_000_000
    pair.station._write(pair, lane, pair.submit_ns + 8_000, pair.submit_ns + 20_000)
    (row,) = here.told.rows
    assert (row["start_ns"], row["end_ns"]) == (pair.submit_ns + 9_000, pair.submit_ns + 20_000)


def test_a_copy_inside_a_copy_is_part_of_it(world: Callable[..., World]) -> None:
    here = world()
    with request("r1"):
        outer = here.copies.begin("swap_blocks_batch", "load", 0)
        here.gpu().copy_(here.host())
        here.copies.end(outer, 64)
    (row,) = here.read()
    assert row["name"] == "swap_blocks_batch"


def test_what_somebody_nearer_records_is_covered(world: Callable[..., World]) -> None:
    here = world()
    token = scope.enter(scope.COVERED)
    here.gpu().copy_(here.host())
    scope.leave(token)
    assert here.read() == []
    assert not here.told.losses


def test_each_device_has_its_own_pool_and_clock(world: Callable[..., World]) -> None:
    here = world()
    with request("r1"):
        here.gpu(index=0).copy_(here.host())
        here.gpu(index=1).copy_(here.host())
    assert sorted(row["device"] for row in here.read()) == ["stand-in:0", "stand-in:1"]


def test_hooks_that_all_fail_leave_the_engines_copies_alone(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVTRACE_FAULT", "hooks")
    here = world()
    with request("r1"):
        target = here.gpu()
        assert target.copy_(here.host()) is target
        assert here.host().to("cuda").is_cuda
    assert here.read() == []
    assert {cause for cause, _, _ in here.told.losses} == {"hook_failure"}


def test_the_four_methods_say_that_they_are_wrapped(world: Callable[..., World]) -> None:
    world()
    assert {name for name, status in wrapping.status().items() if status == "active"} == {
        "Tensor.copy_", "Tensor.to", "Tensor.cuda", "Tensor.cpu",
    }  # fmt: skip
