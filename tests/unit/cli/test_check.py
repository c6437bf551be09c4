"""kvtrace check: a sentence a violation, and an exit code a CI job can rely on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.cli import main
from kvtrace.cli.check import MOST, verdict
from tests.rows import write_run
from tests.unit.analyses.cache_rows import DROPPED, SPACE, S, asked, drawn, event, span, written

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run
    from tests.unit.analyses.cache_rows import Row

EVIL = "::set-env name=X::\x1b[31m\n::stop"


def healthy(tmp_path: Path, *rows: Row, **tables: Any) -> Run:
    """Written 1, locked 2, read 3, released 4."""
    blocks = [asked("locked", 0.5), *written(1), event("locked", 2), asked("accessed", 3)]
    return drawn(tmp_path, *blocks, event("unlocked", 4), *rows, **tables)


def unwritten(at: float, key: str, **more: Any) -> list[Row]:
    """Reserved, never written, and locked for a reader when its time to live is over."""
    return [event("reserved", at, key, **more), event("locked", at + 30, key, **more),
            event("unlocked", at + 31, key, **more)]  # fmt: skip


def said(run: Run, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str]]:
    """Exit code and lines of the command."""
    code = main(["check", str(run.path), *words])
    return code, capsys.readouterr().out.splitlines()


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """So many unwritten keys that one contract has two sentences too many; the first has an evil name."""
    rows = unwritten(5, EVIL) + [row for number in range(MOST + 1) for row in unwritten(6, f"z{number}")]
    return healthy(tmp_path_factory.mktemp("broken"), *rows)


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        (["pass", "violated", "inconclusive"], 1),
        (["pass", "inconclusive"], 4),
        (["unobserved", "not_applicable"], 4),
        ([], 4),
        (["pass", "unobserved", "not_applicable"], 0),
    ],
)
def test_violated_beats_inconclusive_and_something_must_have_been_checked(
    statuses: list[str], code: int
) -> None:
    assert verdict(statuses) == code


def test_what_holds_passes_and_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    doubled = [{"cause": "duplicate", "process": "l0", "count": 3}]  # no information is lost
    code, lines = said(healthy(tmp_path, loss=doubled), capsys)
    assert code == 0
    assert next(line for line in lines if line.startswith("pass: ") and "readable_was_written" in line)
    assert next(line for line in lines if line.startswith("unobserved: ") and "transfers_end_once" in line)
    assert not [line for line in lines if line.startswith("lost")]
    assert lines[-1].startswith("pass: ")


def test_a_violation_is_a_sentence_with_whose_and_when(
    broken: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = said(broken, capsys)
    assert code == 1
    told = [line for line in lines if line.startswith("readable_was_written is violated")]
    assert told[1] == (
        "readable_was_written is violated: locked for a reader 30 s after it was reserved, and never written "
        "(key z0, at 1970-01-01T00:00:36.000000000Z)."
    )
    assert len(told) == MOST + 1
    assert told[-1] == "readable_was_written is violated 2 times more; --format csv shows all."
    assert lines[-1].startswith("violated: ")


def test_a_hostile_name_stays_on_its_line(broken: Run, capsys: pytest.CaptureFixture[str]) -> None:
    _, lines = said(broken, capsys)
    assert not [line for line in lines if line.startswith("::") or "\x1b" in line]
    assert r"(key ::set-env name=X::\x1b[31m\n::stop, at " in lines[0]


def test_rows_come_out_with_the_same_exit_code(
    broken: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = said(broken, capsys, "--format", "json")
    assert code == 1
    rows = [row for row in json.loads("\n".join(lines)) if row["invariant"] == "readable_was_written"]
    assert [(row["check"], row["status"]) for row in rows] == [("lock_contract", "violated")] * (MOST + 2)
    assert (rows[0]["key"], rows[0]["time_ns"]) == (EVIL, 35 * S)
    assert said(broken, capsys, "-o", str(tmp_path / "found.csv")) == (1, [])
    assert (tmp_path / "found.csv").read_text().splitlines()[0].startswith('"check","invariant","status"')


def test_a_warning_is_a_violation_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    late = [event("locked", 5), asked("accessed", 20), event("failed", 20, reason="l1_retrieve:write_locked")]
    code, lines = said(healthy(tmp_path, *late), capsys)
    assert code == 1
    assert next(line for line in lines if "is violated" in line and "read_within_ttl" in line).startswith(
        "read_within_ttl is violated (warning): ttl_expired: 1 key not locked any more when read, 15 s after"
    )


def test_state_of_another_kind_is_a_sentence_with_who_would_have_stopped_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spans = [
        span("store", 1, 2, op="store", engine="a", observer="client", request_id="r0"),
        span("load", 6, 7, op="load", engine="b", observer="client", request_id="r1"),
        span("asks", 5, 5.5, op="lookup", engine="b", observer="scheduler", request_id="r1", found_tokens=64),
    ]
    asks = [
        {"request_id": each, "key_space": SPACE, "key": "k", "tokens": 64, "position": 0}
        for each in ("r0", "r1")
    ]
    sides = [
        {"identity_id": name, "side": side, "field": "lora", "value": value}
        for name, value in (("a", "none"), ("b", EVIL))
        for side in ("writer", "reader")
    ]
    tables = {"span": spans, "request_key": asks, "identity": sides}
    run = drawn(tmp_path, *written(1, engine="l0"), **tables)
    code, lines = said(run, capsys)
    assert code == 1
    (line,) = [line for line in lines if line.startswith("read_as_written")]
    assert line == (
        "read_as_written is violated (warning): 1 key written by a with lora none and read by b with "
        r"::set-env name=X::\x1b[31m\n::stop; neither the key nor the backend looks at it "
        "(request r1, key k, at 1970-01-01T00:00:06.000000000Z)."
    )


def test_a_run_with_losses_passes_nothing_that_rests_on_them_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = said(healthy(tmp_path, *unwritten(5, "z"), loss=DROPPED), capsys)
    assert code == 4  # its write may be among what was lost
    assert next(line for line in lines if line.startswith("readable_was_written is inconclusive: 1 key "))
    assert "lost: 3 records; what rests on them cannot pass (kvtrace info names them)." in lines
    assert lines[-1].startswith("inconclusive: ")


def test_where_nothing_can_be_checked_nothing_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = said(write_run(tmp_path / "run"), capsys)
    assert code == 4
    assert lines[-1].startswith("inconclusive: nothing could be checked")


def test_the_bound_is_the_callers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = healthy(tmp_path, span=[span("l2.prefetch.lookup", 180, None, request_id="hung")])
    assert said(run, capsys)[0] == 4
    code, lines = said(run, capsys, "--bound-s", "10")
    assert code == 1
    assert lines[0].startswith(
        "completes_within_bound is violated: l2 lookup open after 20 s (request hung, at 1970-01-01T00:03:10."
    )
    assert main(["check", str(run.path), "--bound-s", "0"]) == 2
    assert capsys.readouterr().err.startswith("kvtrace: lock_contract: bound_s must be above 0")


def test_a_run_that_is_not_there_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "nowhere"]) == 2
    assert "nowhere: does not exist" in capsys.readouterr().err
