"""Chrome traces as files: of any size, in pieces, cut, compressed, hostile; what is broken costs itself."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from kvtrace.sources import kineto
from kvtrace.sources.kineto import document
from kvtrace.sources.kineto.event import Event
from kvtrace.sources.kineto.gathering import Gathering
from kvtrace.sources.profiled.held import Held
from kvtrace.sources.records import Rows
from tests.unit.sources.given import decoded, recorded
from tests.unit.sources.profilers import BASE_NS, annotation, call, copies, copy, event, trace

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("piece", [1, 7, 100, 1000])
def test_pieces_of_any_size_give_the_same_rows(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "PIECE_BYTES", piece)
    monkeypatch.setattr(document.Document.__init__, "__kwdefaults__", {"piece_bytes": piece})
    nested = event("cpu_op", 'a "},{"b": [', 1, 2, list=[{"name": "x"}, {"ph": "X"}], text='}\\,{"')
    events = [nested, call(40, 1), copy(50, 60, 1), nested, annotation("request:a", 30, 45), nested]
    found = decoded(kineto, trace(*events, footer='"more": [{"a": 1}, {"b": 2}]'), piece=piece)
    assert found.losses == []
    (row,) = copies(found)
    assert (row["request_id"], row["start_ns"]) == ("a", BASE_NS + 50)


def test_a_header_that_is_no_json_is_a_loss_and_the_events_keep_their_times() -> None:
    found = decoded(kineto, trace(copy(50, 60, 1)).replace(b'"displayTimeUnit": "ms"', b'"by": a user'))
    assert [row["start_ns"] - BASE_NS for row in copies(found)] == [50]
    assert found.lost() == {"undecodable": 1}


def test_a_trace_that_ends_inside_an_event_gives_those_before_and_says_so() -> None:
    whole = trace(call(40, 1), copy(50, 60, 1), copy(70, 80, 2))
    found = decoded(kineto, whole[: whole.rindex(b'"gpu_memcpy"')])
    assert [row["start_ns"] for row in copies(found)] == [BASE_NS + 50]
    assert found.lost() == {"unclean_end": 1}


def test_a_trace_that_ends_inside_a_text_with_brackets_has_no_broken_event() -> None:
    whole = trace(copy(50, 60, 1), annotation("a }, {", 1, 2))
    found = decoded(kineto, whole[: whole.index(b"a }, {") + 4])
    assert found.lost() == {"unclean_end": 1}


def test_an_event_that_never_ends_stops_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "LONGEST_EVENT", 2000)
    endless = annotation("x" * 100_000, 1, 2)
    monkeypatch.setattr(document.Document.__init__, "__kwdefaults__", {"piece_bytes": 500})
    found = decoded(kineto, trace(copy(50, 60, 1), endless, copy(70, 80, 2)), piece=500)
    assert [row["start_ns"] - BASE_NS for row in copies(found)] == [50]
    assert [loss.detail for loss in found.losses] == ["events longer than 2,000 bytes: reading stopped"]


def test_what_is_beyond_the_most_that_is_held_is_a_loss() -> None:
    rows, held = Rows("s"), Held("kineto", most=2)
    gathering = Gathering(held, rows)
    events = [copy(at, at + 5, at) for at in (10, 20, 30)]
    gathering.take(msgspec.json.decode(f"[{','.join(events)}]", type=list[Event]))
    assert held.copies.frame()["start_ns"].to_list() == [10, 20]
    (loss,) = rows.end().losses
    assert (loss.cause, loss.count, loss.detail) == ("dropped", 1, "copies beyond 2 of one trace")


def test_only_complete_events_are_copies_calls_or_ranges() -> None:
    half = copy(50, 60, 1).replace('"ph": "X"', '"ph": "B"')
    whole = copy(70, 80, 2)
    assert copies(decoded(kineto, trace(half, whole))) == copies(decoded(kineto, trace(whole)))


def test_a_compressed_trace_that_is_cut_gives_what_came_before(tmp_path: Path) -> None:
    events = [copy(at * 10, at * 10 + 5, at) for at in range(3000)]
    path = tmp_path / "t.json.gz"
    packed = gzip.compress(trace(*events))
    path.write_bytes(packed[: len(packed) // 2])
    found = recorded(kineto, path)
    assert 500 < len(copies(found)) < 3000
    assert found.lost() == {"undecodable": 1, "unclean_end": 1}


BAD = [
    ('"ts": 50.000', '"ts": "50"', "impossible_time"), ('"ts": 50.000', '"ts": -5', "impossible_time"),
    ('"ts": 50.000', '"ts": 1e400', "impossible_time"), ('"ts": 50.000', '"ts": null', "impossible_time"),
    ('"ts": 50.000', '"ts": 9999999999999999999', "impossible_time"),
    ('"ts": 50.000, ', "", "impossible_time"), (', "dur": 0.010', "", "impossible_time"),
    ('"dur": 0.010', '"dur": -1', "negative_duration"), ('"dur": 0.010', '"dur": {}', "impossible_time"),
    ('"name": "Memcpy HtoD (Pinned -> Device)"', '"name": 5', "undecodable"),
    ('"cat": "gpu_memcpy"', '"cat": ["gpu_memcpy"]', "undecodable"),
]  # fmt: skip


@pytest.mark.parametrize(("was", "becomes", "cause"), BAD)
def test_an_event_with_a_value_that_is_none_is_counted_and_the_rest_stays(
    was: str, becomes: str, cause: str
) -> None:
    bad = copy(50_000, 50_010, 1)
    assert was in bad
    found = decoded(kineto, trace(bad.replace(was, becomes), copy(70_000, 80_000, 2)))
    assert [row["start_ns"] for row in copies(found)] == [BASE_NS + 70_000]
    assert found.lost() == {cause: 1}


@pytest.mark.parametrize("args", [{"bytes": -1, "correlation": "x", "stream": [], "device": True}, {}])
def test_arguments_that_are_none_are_null_never_0(args: dict[str, Any]) -> None:
    moved = event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 10, 5, pid=0, tid=20, **args)
    (row,) = copies(decoded(kineto, trace(moved)))
    assert not {"bytes", "stream", "device", "submit_ns"} & row.keys()


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'{"traceEvents": 5}', b"\xff" * 9, b'{"traceEvents": [' + b"[" * 100_000]
)
def test_what_is_no_trace_is_a_loss(text: bytes) -> None:
    found = decoded(kineto, text)
    assert not any(found.rows.values())
    assert found.losses
