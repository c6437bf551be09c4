"""A (trace_id, span_id) that arrives twice counts once; what is only similar stays."""

from __future__ import annotations

from pathlib import Path

from kvtrace.importer import import_files
from tests.unit.importer.drawn import (
    EXTERNAL,
    INTERNAL,
    binary,
    frames,
    hash_log,
    imported,
    lines,
    llm_request,
    lookup,
    losses,
    op,
    query,
    retrieve,
    span,
    store,
    tables,
)

SOME = (
    llm_request(EXTERNAL, 10, 100, first_ms=50, queue_ms=5),
    lookup(INTERNAL, 12, 15, 1280, 1280),
    retrieve(INTERNAL, 16, 20, 5, 0),
    store(INTERNAL, 30, 33, 2, 1),
    op("wait", 40, 41, None, reason="load"),
)
NOT_LOSSES = ("span", "alias", "process", "request_key", "identity")
"""Every noun is a view of these."""


def test_a_span_that_comes_twice_in_a_file_counts_once(tmp_path: Path) -> None:
    run = imported(tmp_path, [*SOME, *SOME[:3]])
    assert tables(run, *NOT_LOSSES) == tables(imported(tmp_path, SOME), *NOT_LOSSES)
    assert losses(run) == [("duplicate", None, 3)]


def test_a_file_given_twice_gives_the_same_tables(tmp_path: Path) -> None:
    run = imported(tmp_path, lines(*SOME), frames(*SOME))
    assert tables(run, *NOT_LOSSES) == tables(imported(tmp_path, SOME), *NOT_LOSSES)
    assert losses(run) == [("duplicate", None, len(SOME))]


def test_a_span_may_come_any_number_of_times(tmp_path: Path) -> None:
    run = imported(tmp_path, SOME, SOME, binary(*SOME), [SOME[0], *SOME])
    assert tables(run, *NOT_LOSSES) == tables(imported(tmp_path, SOME), *NOT_LOSSES)
    assert losses(run) == [("duplicate", None, 3 * len(SOME) + 1)]


def test_duplicates_are_counted_for_the_process_that_sent_them(tmp_path: Path) -> None:
    run = imported(tmp_path, SOME, SOME[:4])
    rows = query(run, "SELECT process, count, from_ns, to_ns FROM loss ORDER BY process")
    assert rows == [("lmcache-1", 3, 12_000_000, 30_000_000), ("vllm-1", 1, 10_000_000, 10_000_000)]


def test_a_span_id_of_another_trace_is_another_span(tmp_path: Path) -> None:
    run = imported(tmp_path, [span("x", 1, 2, trace=1, id=9), span("x", 1, 2, trace=2, id=9)])
    assert query(run, "SELECT count(*) FROM span") == [(2,)]
    assert losses(run) == []


def test_spans_without_ids_are_never_duplicates(tmp_path: Path) -> None:
    one, other = span("x", 1, 2), span("x", 1, 2)
    for sent in (one, other):
        sent.span["spanId"] = ""
    no_trace = span("y", 1, 2)
    no_trace.span["traceId"] = ""
    run = imported(tmp_path, [one, other, no_trace, no_trace])
    assert query(run, "SELECT count(*) FROM span") == [(4,)]
    assert losses(run) == []


def test_of_two_versions_of_a_span_the_finished_one_stays(tmp_path: Path) -> None:
    # an exporter that was restarted sends a span first while it is open, and again when it has ended
    early, late = op("load", 10, None, id=5), op("load", 10, 20, id=5, tokens=7)
    for order in ([early, late], [late, early]):
        rows = query(imported(tmp_path / str(order is late), order), "SELECT end_ns, tokens FROM span")
        assert rows == [(20_000_000, 7)]


def test_a_hash_log_given_twice_counts_once(tmp_path: Path) -> None:
    log = hash_log((INTERNAL, 12, 5))
    run = imported(tmp_path, SOME, log, log)
    assert tables(run, "request_key", without=("run_id", "source")) == tables(
        imported(tmp_path, SOME, log), "request_key", without=("run_id", "source")
    )
    assert losses(run) == []


def test_lookups_of_two_hash_logs_are_numbered_together(tmp_path: Path) -> None:
    # LMCache starts a new file now and then; the request asks again after a preemption
    run = imported(tmp_path, SOME, hash_log((INTERNAL, 60, 2)), hash_log((INTERNAL, 12, 2)))
    rows = query(run, "SELECT time_ns, attempt, position FROM request_key ORDER BY ALL")
    assert rows == [(12_000_000, 1, 0), (12_000_000, 1, 1), (60_000_000, 2, 0), (60_000_000, 2, 1)]


def test_a_span_that_came_twice_does_not_stand_in_for_one_that_was_lost(tmp_path: Path) -> None:
    # the log has two lookups of the request, of which one span arrived, twice
    log = hash_log((INTERNAL, 12, 5), (INTERNAL, 60, 5))
    assert losses(imported(tmp_path, [SOME[1]], log)) == [("unclean_end", "lookup", 1)]
    assert losses(imported(tmp_path, [SOME[1]], [SOME[1]], log)) == [
        ("duplicate", None, 1),
        ("unclean_end", "lookup", 1),
    ]


def test_a_file_that_is_there_twice_under_two_names_is_said(tmp_path: Path) -> None:
    """Lines of a log have no ids; pages of two idle replicas may be equal too."""
    log = Path(__file__).parents[1] / "sources" / "recorded" / "mooncake-master.log"
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_bytes(log.read_bytes())
    first, second = import_files([tmp_path / "a.log", tmp_path / "b.log"], tmp_path / "run").inputs
    assert not any("the same bytes" in note for note in first.notes)
    assert any(note.startswith("holds the same bytes as a.log") for note in second.notes)
