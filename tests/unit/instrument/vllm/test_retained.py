"""What a load must restore, as the scheduler says it, and what a worker restored, group by group.

request a: 64 tokens when all has arrived, 16 of them on the GPU; blocks of 16

              0    16    32    48    64 first
full          |hash|fresh|fresh|fresh|         needs 64, 16 of them are there
window of 33        . |=============|          needs 32, from the third block on; the others are null
"""

from __future__ import annotations

from types import SimpleNamespace as Some
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.instrument import wrapping
from kvtrace.instrument.vllm.groups import groups_of
from kvtrace.instrument.vllm.track import of
from tests.unit.instrument.vllm import test_groups
from tests.unit.instrument.vllm.offloading import CPULoadStoreSpec, Metadata, carried, made
from tests.unit.instrument.vllm.stand_in import Request, connector_class, output
from tests.unit.instrument.vllm.stand_in import made as scheduler_made
from tests.unit.instrument.vllm.test_groups import FullAttentionSpec, MambaSpec, SlidingWindowSpec, group
from tests.unit.instrument.vllm.test_offload import copied

if TYPE_CHECKING:
    from tests.unit.instrument.conftest import Told

Row = dict[str, Any]
NULL = Some(is_null=True, block_hash=None)
FRESH = Some(is_null=False, block_hash=None)
CACHED = Some(is_null=False, block_hash=b"h")
CONFIG = test_groups.config(
    group(FullAttentionSpec(block_size=16)), group(SlidingWindowSpec(block_size=16, sliding_window=33))
)


def rows(told: Told, name: str) -> list[Row]:
    return [row for row in told.rows if row.get("name") == name]


def asked(
    told: Told, *tables: list[Any], config: Any = CONFIG, tokens: int = 100, answer: Any = (48, True)
) -> Any:
    """Request a has 16 tokens on the GPU and its connector has 48 more."""
    scheduler = scheduler_made(connector=connector_class())
    tracks = of(scheduler)
    assert tracks is not None
    tracks.groups = groups_of(config)
    scheduler.add_request(Request("a", tokens))
    scheduler.connector.answer = answer

    def pass_(scheduler: Any) -> dict[str, int]:
        request = scheduler.requests["a"]
        found, _ = scheduler.connector.get_num_new_matched_tokens(request, 16)
        scheduler.connector.update_state_after_alloc(request, Some(blocks=tables), found)
        return {}

    told.clock += 5
    scheduler.next_pass = pass_
    scheduler.update_from_output(scheduler.schedule(), output())
    return scheduler


def test_the_scheduler_says_what_each_group_needs_and_what_of_it_is_on_the_gpu(told: Told) -> None:
    asked(told, [CACHED, FRESH, FRESH, FRESH], [NULL, NULL, FRESH, FRESH])
    full, window = rows(told, "retained_state")
    assert (full["request_id"], full["transfer_id"], full["attempt"]) == ("a", "a/load/1", 1)
    assert (full["state_kind"], full["tokens"], full["blocks"]) == ("kv", 64, 4)
    assert (full["attributes.from_token"], full["attributes.first_computed"]) == (0, 64)
    assert (full["attributes.asked_from_tokens"], full["attributes.on_gpu"]) == (16, "0-16")
    assert (full["start_ns"], full["end_ns"], full["observer"]) == (told.clock, told.clock, "scheduler")
    assert (window["state_kind"], window["tokens"], window["blocks"]) == ("window", 32, 2)
    assert (window["attributes.window"], window["attributes.from_token"]) == (33, 32)
    assert (window["attributes.group"], window["attributes.groups"], window["attributes.on_gpu"]) == (
        1,
        2,
        "",
    )
    assert told.losses == []
    assert all("op" not in row for row in (full, window))


def test_cached_blocks_are_ranges_and_what_lies_before_the_window_is_not_looked_at(told: Told) -> None:
    asked(told, [CACHED, CACHED, FRESH, CACHED], [CACHED, NULL, NULL, CACHED])
    full, window = rows(told, "retained_state")
    assert full["attributes.on_gpu"] == "0-32 48-64"
    assert window["attributes.on_gpu"] == "48-64"


def test_a_request_that_has_all_of_its_tokens_computes_the_last_one_again(told: Told) -> None:
    """64 of 64 tokens are there: the window reaches back one token further."""
    asked(told, [FRESH] * 4, [FRESH] * 4, tokens=64)
    full, window = rows(told, "retained_state")
    assert (full["tokens"], full["attributes.first_computed"]) == (63, 63)
    assert (window["tokens"], window["attributes.from_token"], window["blocks"]) == (32, 31, 3)


def test_a_recurrent_state_is_one_token(told: Told) -> None:
    config = test_groups.config(group(MambaSpec(block_size=16)))
    asked(told, [NULL, NULL, NULL, FRESH], config=config)
    (row,) = rows(told, "retained_state")
    assert (row["state_kind"], row["tokens"], row["blocks"], row["attributes.from_token"]) == (
        "recurrent",
        1,
        1,
        63,
    )


@pytest.mark.parametrize("answer", [(0, False), (48, False)])
def test_without_an_asynchronous_load_nothing_is_said(told: Told, answer: Any) -> None:
    asked(told, [CACHED] * 4, [CACHED] * 4, answer=answer)
    assert rows(told, "retained_state") == []


def test_blocks_of_another_form_are_counted_once_and_hurt_nobody(told: Told) -> None:
    scheduler = asked(told, [CACHED] * 4)
    scheduler.add_request(Request("b", 100))

    def pass_(scheduler: Any) -> dict[str, int]:
        request = scheduler.requests["b"]
        found, _ = scheduler.connector.get_num_new_matched_tokens(request, 16)
        scheduler.connector.update_state_after_alloc(request, Some(blocks=[[CACHED] * 4]), found)
        return {}

    scheduler.next_pass = pass_
    scheduler.update_from_output(scheduler.schedule(), output())
    assert told.losses == [("hook_failure", "vllm.retained: ValueError")]
    assert set(scheduler.requests) == {"a", "b"}
    assert "switched off" not in str(wrapping.status())


class Spec:
    """GPULoadStoreSpec with two groups: blocks 1 to 3 of the first, two of the second from its third on."""

    block_ids = (5, 6, 7, 8, 9)
    group_sizes = (3, 2)
    block_indices = (1, 2)


def worker(told: Told, spec: Any = Spec, **result: Any) -> list[Row]:
    own, outside, kind = made()
    told.clock = 100
    own._kvtrace_jobs.groups = groups_of(CONFIG)
    entry = Some(req_id="b", src_spec=CPULoadStoreSpec(), dst_spec=spec())
    own.start_kv_transfers(carried(Metadata(load_jobs={7: entry}), b=48))
    assert rows(told, "restored_state") == []
    copied_rows(told, own, outside, kind, **result)
    return rows(told, "restored_state")


def copied_rows(told: Told, own: Any, outside: Any, kind: Any, **result: Any) -> None:
    told.clock = 170
    outside.results = [kind(7, **{"success": True, "transfer_size": 96, "transfer_time": 30e-9, **result})]
    told.clock = 200
    own.worker.get_finished()


def test_a_worker_says_which_tokens_of_each_group_it_restored_when_the_copy_is_over(told: Told) -> None:
    full, window = worker(told)
    assert (full["request_id"], full["transfer_id"], full["attempt"]) == ("b", "b/load/2", 2)
    assert (full["tokens"], full["blocks"], full["attributes.from_token"]) == (48, 3, 16)
    assert (full["bytes"], full["outcome"], full["end_ns"]) == (3 * 2048, "ok", 170)
    assert (window["state_kind"], window["tokens"], window["attributes.from_token"]) == ("window", 32, 32)
    assert (window["bytes"], window["attributes.window"]) == (2 * 2000, 33)


def test_a_group_that_got_nothing_has_a_row_that_says_so(told: Told) -> None:
    empty = type("Empty", (Spec,), {"group_sizes": (5, 0)})
    assert [row["tokens"] for row in worker(told, empty)] == [80, 0]


def test_a_copy_that_failed_restored_nothing(told: Told) -> None:
    assert {row["outcome"] for row in worker(told, success=False)} == {"failed"}


def test_a_job_of_another_form_and_a_store_say_nothing(told: Told) -> None:
    assert worker(told, type("Other", (Spec,), {"block_indices": None})) == []
    assert worker(told, type("Third", (Spec,), {"group_sizes": (5,), "block_indices": (0,)})) == []
    own, outside, kind = made()
    own._kvtrace_jobs.groups = groups_of(CONFIG)
    entry = Some(req_id="a", src_spec=Spec(), dst_spec=CPULoadStoreSpec())
    own.prepare_store_kv(Metadata(store_jobs={1: entry}))
    own.start_kv_transfers(Metadata())
    copied(told, own, outside, kind, 1)
    assert rows(told, "restored_state") == []
