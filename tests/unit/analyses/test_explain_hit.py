"""After the cache's offer: whether it was the right state, still there, and worth its wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kvtrace.analyses.explain import explain
from tests.rows import write_run
from tests.unit.analyses.break_even_rows import GIB, MS, copied, loading, others, world
from tests.unit.analyses.exposure.drawing import request, scheduler
from tests.unit.analyses.identity_rows import SERVER, S, produced, reused, said

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run


def told(run: Run, name: str = "r0") -> tuple[str, str, str]:
    """The sentence of the offer, what it stands on, and the last sentence."""
    rows = explain(run, requests=(name,)).to_dicts()
    return rows[4]["sentence"], rows[4]["evidence"], rows[5]["sentence"]


@pytest.mark.parametrize(
    ("took_ms", "said_of_it"),
    [
        (60, "It was worth its wait: 60 ms was waited for, and computing those tokens takes 100 ms."),
        (160, "It was not worth its wait: 160 ms was waited for, and computing those tokens takes 100 ms."),
    ],
)
def test_a_load_is_set_against_computing(tmp_path: Path, took_ms: int, said_of_it: str) -> None:
    offer, evidence, _ = told(world(tmp_path, *loading(1000, copied(1000, GIB, took_ms=took_ms)), *others()))
    assert said_of_it in offer
    assert evidence.endswith("; break_even")


def test_without_steps_of_other_sizes_no_estimate_is_made_up(tmp_path: Path) -> None:
    offer, _, _ = told(world(tmp_path, *loading(1000, copied(1000, GIB))))
    assert offer.endswith(
        "Whether it was worth its wait is not clear: 160 ms was waited for, and what computing those tokens "
        "takes cannot be estimated."
    )


def test_what_a_full_queue_may_have_hidden_is_no_wait(tmp_path: Path) -> None:
    """A step is lost, so that the partition is no exact one: what is known is how long such a load takes."""
    queue = scheduler("queue", 0, 1900 * MS, reason="capacity")
    loss = [{"cause": "dropped", "process": "e0/scheduler", "op": "step", "count": 1, "from_ns": 0}]
    more = [copied(1000, GIB, start=9000 + 400 * at) | {"request_id": f"q{at}"} for at in range(4)]
    spans = [*loading(1000, copied(1000, GIB)), queue, *others(), *more]
    offer, _, _ = told(world(tmp_path, *spans, loss=[{**loss[0], "to_ns": 10 * MS}]))
    assert offer.endswith(
        "Whether it was worth its wait is not clear: its load takes 160 ms, of which an unknown "
        "part was hidden, and computing those tokens takes 100 ms."
    )


def test_a_wait_whose_end_was_not_seen_is_one_of_at_least_so_long(tmp_path: Path) -> None:
    first, *rest, _ = loading(1000, copied(1000, GIB))
    offer, _, _ = told(world(tmp_path, {**first, "first_token_ns": None}, *rest, *others()))
    assert "160 ms was waited for at least, and what computing those tokens takes cannot be" in offer


def test_what_was_gone_when_it_was_read_is_said(tmp_path: Path) -> None:
    load = copied(1000, GIB, outcome="failed", reason="not_found")
    offer, evidence, _ = told(
        world(tmp_path, *loading(0, load, selected_tokens=1000, computed=1100), *others())
    )
    assert "What it had found was gone when it was to be read." in offer
    assert "; verdict" in evidence


def shared(path: Path, *identity: dict[str, object]) -> Run:
    """What r0 of engine a wrote is read by r1 of engine b."""
    parts = (produced(), reused())
    tables = {
        table: [row for part in parts for row in part.get(table, [])]
        for table in ("span", "request_key", "block")
    }
    tables["span"].append(request(4 * S, 9 * S, 8 * S, request_id="r1", engine="b", prompt_tokens=200))
    return write_run(path / "run", None, process=[SERVER], identity=list(identity), **tables)


def test_state_of_another_kind_is_said_with_the_field(tmp_path: Path) -> None:
    run = shared(tmp_path, *said("a", dtype="bfloat16"), *said("b", dtype="float16"))
    offer, evidence, _ = told(run, "r1")
    assert "It read state of another kind (dtype: bfloat16 written, float16 read)." in offer
    assert "; compatibility" in evidence


def test_state_whose_kind_nobody_said_was_not_seen(tmp_path: Path) -> None:
    offer, _, unseen = told(shared(tmp_path), "r1")
    assert "kind" not in offer
    assert "whether what it read is the state that it needs (written by a, and one of both did not" in unseen


def test_a_request_that_read_nothing_has_no_more_to_it(tmp_path: Path) -> None:
    offer, evidence, unseen = told(world(tmp_path, *loading(0), *others()))
    assert "worth" not in offer
    assert "break_even" not in evidence
    assert "state that it needs" not in unseen
