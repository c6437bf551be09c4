"""Device times of native offloading, on a device without a GPU.

host     transfer_async                      get_finished
         1.0 ms ...                          9.0 ms
stream   ░░ busy until 3.0 ░░[== copy ==) 5.0
"""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace as Some
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.instrument.torch_cuda.stand_in import StandIn, Stream, place
from kvtrace.instrument.vllm import offload_device
from kvtrace.instrument.vllm.offload_rows import DEVICE, Job, closed

if TYPE_CHECKING:
    from tests.unit.instrument.conftest import Told

MS = 1_000_000
START = 1_000_000_000_000


class Template:
    """SingleDirectionOffloadingHandler of vLLM 0.32: two events a copy, from a pool."""

    def __init__(self, device: StandIn, *, gpu_to_cpu: bool = False, index: int = 0) -> None:
        self.gpu_to_cpu = gpu_to_cpu
        gpu, cpu = [place(Some(), index)], [Some()]
        self.src_tensors, self.dst_tensors = (gpu, cpu) if gpu_to_cpu else (cpu, gpu)
        self.stream = Stream(7)
        self._device = device
        self._transfers: deque[Any] = deque()
        self._pool: list[Any] = []

    def transfer_async(self, job_id: int, busy_ns: int, copy_ns: int) -> bool:
        first, last = (self._pool.pop() if self._pool else self._device.event(0) for _ in range(2))
        self._device.work(self.stream, busy_ns)
        first.record(self.stream)
        self._device.work(self.stream, copy_ns)
        last.record(self.stream)
        self._transfers.append(Some(job_id=job_id, start_event=first, end_event=last, stream=self.stream))
        return True

    def get_finished(self) -> list[Any]:
        results = []
        while self._transfers and self._transfers[0].end_event.query():
            done = self._transfers.popleft()
            took = done.start_event.elapsed_time(done.end_event) * 1e-3
            self._pool += [done.start_event, done.end_event]
            results.append(Some(job_id=done.job_id, success=True, transfer_size=96, transfer_time=took))
        return results


@pytest.fixture
def device(told: Told) -> StandIn:
    told.clock = START
    return StandIn(lambda: told.clock, drift_ppm=20)


def handler(device: StandIn, **options: Any) -> Any:
    kind = type("Handler", (Template,), dict(vars(Template)))
    offload_device.install(Some(SingleDirectionOffloadingHandler=kind), device)  # type: ignore[arg-type]
    return kind(device, **options)


@pytest.mark.parametrize("stores", [False, True])
def test_a_copy_has_the_devices_times_on_the_hosts_clock(told: Told, device: StandIn, stores: bool) -> None:  # noqa: FBT001
    own = handler(device, gpu_to_cpu=stores)
    own.transfer_async(4, 2 * MS, 2 * MS)
    told.clock = START + 9 * MS
    (result,) = own.get_finished()
    start_ns, end_ns, name, stream = vars(result)[DEVICE]
    assert abs(start_ns - (START + 2 * MS)) < 2_000
    assert abs(end_ns - (START + 4 * MS)) < 2_000
    assert (name, stream) == ("stand-in:0", "0x7")
    told.clock += MS
    closed(Job("b", START), result, told.clock)
    (row,) = told.rows
    assert (row["clock"], row["attributes.times"], row["stream"]) == ("gpu", "device_events", "0x7")
    assert row["start_ns"] == start_ns
    assert row["attributes.reported_after_ns"] == told.clock - end_ns
    assert told.losses == []


def test_events_are_read_before_the_next_copy_uses_them_again(told: Told, device: StandIn) -> None:
    own = handler(device)
    seen = []
    for number in range(3):
        own.transfer_async(number, 0, 2 * MS)
        began = told.clock
        told.clock += 5 * MS
        (result,) = own.get_finished()
        seen.append(abs(vars(result)[DEVICE][0] - began) < 2_000)
    assert device.events == 3, "vLLM's two, and the anchor"
    assert seen == [True] * 3


def test_two_copies_of_one_stream_follow_each_other(told: Told, device: StandIn) -> None:
    own = handler(device)
    own.transfer_async(1, 0, 2 * MS)
    own.transfer_async(2, 0, 2 * MS)
    told.clock += 3 * MS
    first = own.get_finished()
    told.clock += 3 * MS
    second = own.get_finished()
    assert [len(first), len(second)] == [1, 1]
    assert vars(second[0])[DEVICE][0] >= vars(first[0])[DEVICE][1]


def test_without_an_anchor_a_copy_keeps_what_vllm_reports(
    told: Told, device: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, reads = Stream(9), []
    device.work(busy, 60_000 * MS)
    monkeypatch.setattr(device, "own_stream", lambda _: busy)

    def now() -> int:
        reads.append(None)
        return told.clock + len(reads) * 1_000

    monkeypatch.setattr(offload_device.recorder, "now", now)
    own = handler(device)
    own.transfer_async(1, 0, 2 * MS)
    assert 2 < len(reads) < 50, "an engine's thread waits for no anchor"
    told.clock += 3 * MS
    (result,) = own.get_finished()
    assert DEVICE not in vars(result)
    assert told.losses == []


def test_a_handler_whose_blocks_are_on_no_such_device_is_left_alone(told: Told, device: StandIn) -> None:
    own = handler(device, index=-1)
    own.transfer_async(1, 0, MS)
    told.clock += 3 * MS
    (result,) = own.get_finished()
    assert DEVICE not in vars(result)
    assert device.events == 2


def test_an_event_that_cannot_be_read_is_counted_and_vllms_result_stays(told: Told, device: StandIn) -> None:
    made = []
    original = device.event
    device.event = lambda index: made.append(original(index)) or made[-1]  # type: ignore[method-assign]
    own = handler(device)
    own.transfer_async(1, 0, MS)
    made[-1].broken = RuntimeError("device is gone")
    told.clock += 3 * MS
    (result,) = own.get_finished()
    assert result.success
    assert DEVICE not in vars(result)
    assert [cause for cause, _ in told.losses] == ["hook_failure"]
