"""Spools become the same tables however they are cut into passes, and wherever a converter is killed."""

from __future__ import annotations

import pathlib
import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kvtrace.schema.layout import table_files
from kvtrace.schema.tables import TABLES
from kvtrace.sources.spool import checkpoints
from kvtrace.sources.spool.drain import Drain
from tests.spools import Drawn, run_file

if TYPE_CHECKING:
    from pathlib import Path

Step = tuple[str, int, int]
Tables = dict[str, Counter[str]]
SLOW = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
OPS = ("request", "load", "hold")


def tables(run: Path) -> Tables:
    """Every row of every table, without the bucket's folder and whatever the order."""
    found: Tables = {}
    for table in TABLES:
        files = [file for file in table_files(run, table) if pl.read_parquet(file).height]
        rows = [repr(row) for file in files for row in pl.read_parquet(file, hive_partitioning=False).rows()]
        found[table] = Counter(rows)
    return found


@st.composite
def histories(draw: st.DrawFn) -> list[Step]:
    """Facts of operations in an order that can be: open, then updates, then a close or none."""
    waiting: dict[int, int] = {}
    steps: list[Step] = []
    for number in range(draw(st.integers(1, 14))):
        kind = draw(st.sampled_from(["open", "open", "update", "close", "close", "whole", "block", "anchor"]))
        if kind in ("update", "close"):
            if not waiting:
                continue
            operation = draw(st.sampled_from(sorted(waiting)))
            if kind == "close":
                waiting.pop(operation)
        else:
            operation = number
            if kind == "open":
                waiting[operation] = number
        steps.append((kind, operation, draw(st.integers(1, 99))))
    return steps


def write(spool: Drawn, step: Step, flush: int) -> None:
    """One fact as one flush."""
    kind, operation, value = step
    op = OPS[operation % len(OPS)]
    at = {"written_ns": 1_000 * (flush + 2)}
    if kind == "open":
        row = {"span_id": operation + 1, "request_id": f"r{operation}", "start_ns": 1000 + operation}
        spool.rows("span", "open", [row], op=op, **at)
    elif kind == "update":
        spool.rows(
            "span",
            "update",
            [{"span_id": operation + 1, "tokens": value, "attributes.note": f"{value}"}],
            **at,
        )
    elif kind == "close":
        spool.rows("span", "close", [{"span_id": operation + 1, "end_ns": 2000 + value}], outcome="ok", **at)
    elif kind == "whole":
        members = [{"request_id": "r0", "phase": "decode", "scheduled_tokens": value}]
        spool.rows(
            "span", "whole", [{"start_ns": 1000, "end_ns": 1000 + value, "members": members}], op="step", **at
        )
    elif kind == "block":
        spool.rows("block", "whole", [{"time_ns": value, "key": f"k{value}"}], event="stored", **at)
    else:
        spool.anchor(1000 + value, 1_700_000_000_000_000_000 + value)


def recorded(run: Path, steps: list[Step], pid: int = 100, *, torn: int = 0, mark: bool = True) -> Drawn:
    """A whole spool."""
    spool = Drawn(run / "spool", pid, prefix=pid)
    spool.facts(engine="e0", role="scheduler")
    for flush, step in enumerate(steps):
        write(spool, step, flush)
    if mark:
        spool.end()
    elif torn:
        spool.rows("span", "whole", [{"start_ns": 1, "end_ns": 2}], op="step").cut(torn)
    return spool.aged()


def in_one_pass(run: Path) -> Tables:
    with Drain(run) as drain:
        assert drain.convert()
    return tables(run)


@SLOW
@given(histories(), st.lists(st.booleans(), min_size=14, max_size=14), st.sampled_from([0, 1, 9, 40]))
def test_passes_do_not_show_in_the_tables(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step], cuts: list[bool], torn: int
) -> None:
    base = tmp_path_factory.mktemp("passes")
    whole = run_file(base / "whole")
    recorded(whole, steps, torn=torn, mark=not torn)
    expected = in_one_pass(whole)

    run = run_file(base / "run")
    spool = Drawn(run / "spool", prefix=100, boot_id="11111111-2222-3333-4444-555555555555")
    spool.facts(engine="e0", role="scheduler")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(checkpoints, "WORTH_BYTES", 0)
        patched.setattr("kvtrace.sources.spool.following._QUIET_SECONDS", -1.0)
        patched.setattr("kvtrace.sources.spool.liveness.SILENCE_SECONDS", 1000.0)
        drain = Drain(run, part_seconds=0.0)
        given_rows: Counter[str] = Counter()
        for flush, step in enumerate(steps):
            write(spool, step, flush)
            if cuts[flush]:
                for table, rows in drain.step().items():
                    given_rows[table] += rows.num_rows
            if cuts[-flush]:  # the converter is killed and another takes over
                drain.close()
                drain = Drain(run, part_seconds=0.0)
        drain.close()
    if torn:
        spool.rows("span", "whole", [{"start_ns": 1, "end_ns": 2}], op="step").cut(torn)
    else:
        spool.end()
    spool.aged()
    assert in_one_pass(run) == expected
    assert sum(expected["span"].values()) == sum(kind in ("open", "whole") for kind, _, _ in steps)


class Killed(BaseException):
    """What no handler expects."""


def killed(run: Path, at: int) -> bool:
    """Convert until the at-th renaming of a file and be killed just before it; whether it came that far."""
    rename, seen = pathlib.Path.replace, [0]

    def replace(self: Any, target: Any) -> Any:
        seen[0] += 1
        if seen[0] == at:
            raise Killed
        return rename(self, target)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pathlib.Path, "replace", replace)
        patched.setattr(
            pathlib.Path, "unlink", lambda *_args, **_options: None
        )  # nothing is tidied up after kill -9
        drain = Drain(run, part_bytes=1, part_seconds=0.0)
        try:
            drain.convert()
        except Killed:
            return True
        finally:
            drain.close()
    return False


STEPS: list[Step] = [
    ("open", 0, 1), ("whole", 1, 5), ("block", 2, 3), ("update", 0, 7), ("open", 3, 1), ("close", 0, 9),
    ("block", 4, 8), ("whole", 5, 2),
]  # fmt: skip


@pytest.mark.parametrize("again", [0, 2])
def test_a_converter_killed_before_any_renaming_loses_nothing_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: int
) -> None:
    monkeypatch.setattr(checkpoints, "WORTH_BYTES", 0)
    monkeypatch.setattr("kvtrace.sources.spool.conversion.CHUNK_BYTES", 700)
    drawn = run_file(tmp_path / "drawn")
    recorded(drawn, STEPS, 100, mark=False, torn=9)
    recorded(drawn, STEPS[:3], 101)
    shutil.copytree(drawn, tmp_path / "whole")
    expected = in_one_pass(tmp_path / "whole")
    assert sum(expected["span"].values()) == 6
    assert sum(expected["process"].values()) == 2
    assert sum(expected["loss"].values()) == 2
    at = 0
    while True:
        at += 1
        run = tmp_path / f"run-{at}"
        shutil.copytree(drawn, run)
        came_so_far = killed(run, at)
        for _ in range(again):
            killed(run, 2)
        assert in_one_pass(run) == expected, at
        if not came_so_far:
            break
    assert at > 8
