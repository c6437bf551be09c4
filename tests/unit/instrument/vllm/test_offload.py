"""Copies of native offloading.

start_kv_transfers   submit_load         the worker makes its result      get_finished
       100               100                        170                       200
                     submit [....waits....)[====copy 30 ns====)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.instrument import ranks, wrapping
from kvtrace.instrument.vllm import offload
from tests.unit.instrument.vllm.offloading import DiskSpec, Metadata, carried, load, made, store

if TYPE_CHECKING:
    from tests.unit.instrument.conftest import Told


def copied(told: Told, own: Any, worker: Any, kind: Any, number: int, **result: Any) -> dict[str, Any]:
    """The open and the close row of a job in one, its result made at 170 and reported at 200."""
    told.clock = 170
    worker.results = [
        kind(number, **{"success": True, "transfer_size": 96, "transfer_time": 30e-9, **result})
    ]
    told.clock = 200
    assert own.worker.get_finished()
    return told.rows[-2] | told.rows[-1]


def test_a_load_is_a_row_from_its_submission_to_its_result(told: Told) -> None:
    own, worker, kind = made()
    ranks.tell(3)
    told.clock = 100
    own.start_kv_transfers(carried(Metadata(load_jobs={7: load("b")}), b=40))
    row = copied(told, own, worker, kind, 7)
    times = [row[name] for name in ("submit_ns", "start_ns", "end_ns", "attributes.reported_after_ns")]
    assert times == [100, 140, 170, 30]
    assert (row["op"], row["tier_from"], row["tier_to"], row["purpose"]) == ("load", "host", "gpu", "reuse")
    assert (row["request_id"], row["transfer_id"], row["attempt"]) == ("b", "b/load/2", 2)
    assert (row["tokens"], row["blocks"], row["bytes"], row["rank"]) == (40, 3, 96, 3)
    assert (row["observer"], row["component"], row["outcome"]) == ("worker", "vllm.offloading", "ok")
    assert (row["clock"], row["attributes.times"]) == ("host", "result_made")
    assert [each["part"] for each in told.rows] == ["open", "close"]


def test_a_store_waits_for_the_next_step_and_has_the_tokens_of_its_blocks(told: Told) -> None:
    own, worker, kind = made()
    own.prepare_store_kv(Metadata(store_jobs={1: store("a")}))
    assert told.rows == []
    told.clock = 120
    own.start_kv_transfers(Metadata())
    row = copied(told, own, worker, kind, 1)
    assert (row["op"], row["tier_from"], row["tier_to"], row["submit_ns"]) == ("store", "gpu", "host", 120)
    assert (row["request_id"], row["transfer_id"], row["attempt"]) == ("a", "a/store/1", None)
    assert (row["tokens"], row["attribution"]) == (48, "request")


def test_a_store_that_is_flushed_in_the_step_that_brings_it_has_its_name(told: Told) -> None:
    own, worker, kind = made()
    own.handle_preemptions(Metadata(store_jobs={1: store("a")}, jobs_to_flush={1}))
    assert copied(told, own, worker, kind, 1)["request_id"] == "a"


def test_what_a_flush_is_about_is_known_before_it(told: Told) -> None:
    own, _, _ = made()
    own.prepare_store_kv(Metadata(store_jobs={1: store("a"), 2: store("b")}))
    own.start_kv_transfers(Metadata())
    own.prepare_store_kv(Metadata(store_jobs={3: store("c")}))
    connector = type("Connector", (), {"connector_worker": own})()
    metadata = Metadata(store_jobs={4: store("d"), 5: store("e")}, jobs_to_flush={1, 4})
    assert offload.flushed_by(connector, metadata) == {"a", "c", "d"}
    assert offload.flushed_by(object(), metadata) is None
    assert told.losses == []


def test_a_copy_that_nobody_reports_stays_open(told: Told) -> None:
    own, _, _ = made()
    own.start_kv_transfers(Metadata(load_jobs={7: load("b")}))
    assert [row["part"] for row in told.rows] == ["open"]
    assert own._kvtrace_jobs.named == {}


@pytest.mark.parametrize("answer", [False, RuntimeError("theirs")])
def test_a_submission_that_is_refused_or_raises_has_failed_and_the_engine_gets_its_own_error(
    told: Told, answer: Any
) -> None:
    own, worker, _ = made()
    worker.answer = answer
    with pytest.raises(AssertionError if answer is False else RuntimeError):
        own.start_kv_transfers(Metadata(load_jobs={7: load("b")}))
    row = told.rows[0] | told.rows[1]
    assert (row["outcome"], row["reason"], row["attributes.times"]) == ("failed", "unknown", "refused")
    assert own._kvtrace_jobs.running == {}


def test_a_result_without_success_is_a_failed_copy_before_the_engine_raises(told: Told) -> None:
    own, worker, kind = made()
    own.start_kv_transfers(Metadata(load_jobs={7: load("b")}))
    row = copied(told, own, worker, kind, 7, success=False, transfer_size=None)
    assert (row["outcome"], row["reason"], row["bytes"]) == ("failed", "unknown", None)


def test_without_a_duration_a_copy_lasts_since_its_submission_and_says_so(told: Told) -> None:
    own, worker, kind = made()
    told.clock = 100
    own.start_kv_transfers(Metadata(load_jobs={7: load("b")}))
    row = copied(told, own, worker, kind, 7, transfer_time=None)
    assert (row["start_ns"], row["end_ns"], row["attributes.times"]) == (100, 170, "submit_to_result")


def test_no_copy_begins_before_it_was_submitted(told: Told) -> None:
    own, worker, kind = made()
    told.clock = 100
    own.start_kv_transfers(Metadata(load_jobs={7: load("b")}))
    assert copied(told, own, worker, kind, 7, transfer_time=1.0)["start_ns"] == 100


def test_a_medium_that_nobody_knows_is_unknown(told: Told) -> None:
    own, worker, kind = made()
    own.start_kv_transfers(Metadata(load_jobs={7: load("b", source=DiskSpec())}))
    row = copied(told, own, worker, kind, 7)
    assert (row["tier_from"], row["tier_to"]) == ("unknown", "gpu")
    assert (row["transfer_id"], row["tokens"]) == (None, 48), "its metadata came without our word"


def test_a_rank_that_stores_nothing_keeps_no_names(told: Told) -> None:
    own, _, _ = made()
    own._is_store_writer = False
    own.prepare_store_kv(Metadata(store_jobs={1: store("a")}))
    assert own._kvtrace_jobs.named == {}
    assert told.rows == []


def test_groups_whose_blocks_nobody_knows_leave_the_tokens_unknown(told: Told) -> None:
    own, worker, kind = made()
    own._kvtrace_jobs.block_tokens = ()
    own.start_kv_transfers(Metadata(load_jobs={7: load("b")}))
    assert copied(told, own, worker, kind, 7)["tokens"] is None


def test_a_result_of_a_job_that_was_not_submitted_is_counted(told: Told) -> None:
    _, worker, kind = made()
    worker.results = [kind(9, success=True)]
    worker.get_finished()
    assert told.rows == []
    assert [cause for cause, _ in told.losses] == ["undecodable"]


def test_the_class_that_works_is_wrapped_and_says_so(told: Told) -> None:
    made()
    assert wrapping.status()["Outside.get_finished"] == "active"
    assert told.losses == []
