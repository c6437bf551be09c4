"""A run is opened at any moment of its recording; whoever cannot write it reads it all the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kvtrace.errors import InputError
from kvtrace.importer import import_files
from kvtrace.run import open_run, recorded
from kvtrace.schema.tables import TABLES
from kvtrace.sources.spool import following
from kvtrace.sources.spool.drain import Drain
from kvtrace.sources.spool.finishing import compact
from tests.spools import Drawn, living_header, run_file

if TYPE_CHECKING:
    from kvtrace.run import Run

STEP = {"start_ns": 2_000, "end_ns": 2_500}
ROOT = Path(__file__).parents[3]


def spans(run: Run) -> list[tuple[object, ...]]:
    return run.sql("SELECT op, end_ns IS NULL, outcome, span_id FROM span ORDER BY span_id").rows()


def tables(run: Run) -> dict[str, list[str]]:
    return {
        name: sorted(map(repr, run.sql(f"SELECT * EXCLUDE (run_id) FROM {name}").rows())) for name in TABLES
    }


def recording(folder: Path) -> Drawn:
    """A run that a living process writes."""
    spool = Drawn(run_file(folder) / "spool", **living_header()).facts(engine="e0", role="scheduler")
    spool.rows("span", "open", [{"span_id": 7, "start_ns": 2_000, "request_id": "r0"}], op="request")
    return spool.rows("span", "whole", [STEP], op="step")


def ended(folder: Path) -> Drawn:
    spool = Drawn(run_file(folder) / "spool").facts(engine="e0", config={"block_size": 16})
    spool.rows("span", "open", [{"span_id": 7, "start_ns": 2_000, "request_id": "r0"}], op="request")
    spool.rows("block", "whole", [{"time_ns": 2_100, "key": "k"}], event="stored", tier="gpu")
    spool.rows(
        "alias", "whole", [{"alias": "x", "request_id": "r0"}], kind="client", evidence="shim", source="api"
    )
    return spool.rows("span", "whole", [STEP], op="step").aged()


def test_a_run_is_read_while_it_is_recorded(tmp_path: Path) -> None:
    spool = recording(tmp_path / "run")
    run = open_run(tmp_path / "run")
    assert [row[:3] for row in spans(run)] == [("request", True, "open"), ("step", False, None)]
    assert run.sql("SELECT process, engine, role FROM process").rows() == [(spool.process, "e0", "scheduler")]
    assert run.sql("SELECT * FROM loss").rows() == []
    assert (run.origin, run.path.name) == ((tmp_path / "run").resolve(), "run")
    assert run.connection().sql("SELECT count(*) FROM request").fetchall() == [(1,)]
    assert sorted(file.name for file in (tmp_path / "run").iterdir()) == ["run.json", "spool"]


def test_a_reader_sees_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_QUIET_SECONDS", -1.0)
    spool = recording(tmp_path / "run")
    with Drain(tmp_path / "run") as drain:
        drain.step(final=True)
        before = open_run(tmp_path / "run")
        spool.rows("span", "close", [{"span_id": 7, "end_ns": 3_000}], outcome="ok")
        drain.step(final=True)
        after = open_run(tmp_path / "run")
    assert [row[1:3] for row in spans(before)] == [(True, "open"), (False, None)]
    assert [row[1:3] for row in spans(after)] == [(False, "ok"), (False, None)]
    assert len(before.files("process")) == len(after.files("process")) == 1


def test_a_finished_run_is_converted_once_by_whoever_opens_it(tmp_path: Path) -> None:
    spool = ended(tmp_path / "run")
    first, again = open_run(tmp_path / "run"), open_run(tmp_path / "run")
    assert first.path == first.origin == again.path
    assert spans(first) == spans(again)
    assert len(spans(first)) == 2
    assert again.meta["engines"] == first.meta["engines"] == {"e0": {"block_size": 16}}
    assert (tmp_path / "run" / "raw" / "spool" / spool.path.name).exists()


def test_a_run_that_another_converts_is_read_meanwhile(tmp_path: Path) -> None:
    ended(tmp_path / "run")
    with Drain(tmp_path / "run") as drain:
        drain.step()
        run = open_run(tmp_path / "run")
        assert run.path != run.origin
        assert len(spans(run)) == 2


def test_a_run_that_cannot_be_written_is_read_from_a_folder_that_goes_with_the_process(
    tmp_path: Path,
) -> None:
    ended(tmp_path / "run")
    code = (
        "import sys; from kvtrace.run import recorded; recorded.settle = lambda run: False\n"
        "from kvtrace.run import opening; opening.settle = recorded.settle\n"
        "run = opening.open_run(sys.argv[1]); print(run.path, run.sql('SELECT * FROM span').height)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")],
        capture_output=True, text=True, check=True, cwd=ROOT, env=os.environ | {"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    path, rows = done.stdout.split()
    assert rows == "2"
    assert path.startswith(f"{tmp_path}/kvtrace-view-")
    assert not list(tmp_path.glob("kvtrace-view-*"))
    assert sorted(file.name for file in (tmp_path / "run").iterdir()) == ["run.json", "spool"]


def test_a_run_on_a_read_only_file_system_is_read(tmp_path: Path) -> None:
    ended(tmp_path / "run")
    seen = tmp_path / "seen"
    seen.mkdir()
    mount = subprocess.run(["mount", "--bind", tmp_path / "run", seen], capture_output=True, check=False)
    if mount.returncode:
        pytest.skip("this machine lets nobody mount")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", seen], check=True)
        run = open_run(seen)
        assert run.path != run.origin
        assert len(spans(run)) == 2
    finally:
        subprocess.run(["umount", "-l", seen], check=True)


def test_views_of_runs_that_are_gone_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "KEPT_VIEWS", 2)
    recording(tmp_path / "run")
    folders = [open_run(tmp_path / "run").path.parent for _ in range(6)]
    assert sum(folder.exists() for folder in folders) <= 3
    run = open_run(tmp_path / "run")
    for _ in range(6):
        open_run(tmp_path / "run")
    assert len(spans(run)) == 2


def test_rows_never_go_away_and_never_come_twice_while_a_run_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_QUIET_SECONDS", 0.05)
    spool = recording(tmp_path / "run")
    over = threading.Event()
    failed: list[BaseException] = []

    def drain() -> None:
        try:
            with Drain(tmp_path / "run", part_bytes=400) as converter:
                while not over.wait(0.01):
                    converter.step(giving=False)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failed.append(error)

    def write() -> None:
        for number in range(150):
            at = {"written_ns": 10 + number}
            spool.rows("span", "whole", [STEP] * 3, op="step", **at)
            spool.rows("span", "open", [{"span_id": 100 + number, "start_ns": 2_000}], op="hold", **at)
            if number > 20:
                spool.rows("span", "close", [{"span_id": 80 + number, "end_ns": 2_100}], **at)
            over.wait(0.01)

    threads = [threading.Thread(target=work) for work in (drain, write)]
    for thread in threads:
        thread.start()
    counts, closed = [0], [0]
    while threads[1].is_alive():
        found = spans(open_run(tmp_path / "run"))
        assert len({row[3] for row in found}) == len(found)
        counts.append(len(found))
        closed.append(sum(not row[1] for row in found))
    over.set()
    threads[0].join()
    assert failed == []
    assert counts == sorted(counts)
    assert closed == sorted(closed)
    assert len(spans(open_run(tmp_path / "run"))) == 2 + 150 * 4
    assert len(list((tmp_path / "run" / "span").glob("*.parquet"))) > 5


def test_spools_that_were_kept_are_the_run_again(tmp_path: Path) -> None:
    ended(tmp_path / "run")
    compact(tmp_path / "run")
    import_files([tmp_path / "run" / "raw"], tmp_path / "again")
    first, again = open_run(tmp_path / "run"), open_run(tmp_path / "again")
    assert tables(again) == tables(first)
    assert tables(first)["loss"]
    assert again.meta["engines"] == first.meta["engines"]


def test_a_run_that_is_recorded_is_an_input_like_any_other(tmp_path: Path) -> None:
    recording(tmp_path / "run")
    report = import_files([tmp_path / "run"], tmp_path / "again")
    assert (report.inputs[0].format, report.inputs[0].spans) == ("run", 2)
    assert spans(open_run(tmp_path / "again")) == spans(open_run(tmp_path / "run"))


def test_a_spool_is_told_by_its_beginning_and_reports_its_losses(tmp_path: Path) -> None:
    spool = ended(tmp_path / "run")
    other = spool.path.rename(tmp_path / "any.name")
    report = import_files([other, other], tmp_path / "again")
    assert [(entry.format, entry.spans, entry.lost) for entry in report.inputs] == [
        ("spool", 2, {"unclean_end": 1})
    ]
    empty = tmp_path / "empty"
    empty.write_bytes(b"\xffKV\x01 nothing")
    with pytest.raises(InputError, match="no record could be read"):
        import_files([empty], tmp_path / "none")


def test_a_run_of_a_newer_schema_is_not_touched(tmp_path: Path) -> None:
    ended(tmp_path / "run")
    meta = json.loads((tmp_path / "run" / "run.json").read_text()) | {"schema_version": 99}
    (tmp_path / "run" / "run.json").write_text(json.dumps(meta))
    with pytest.raises(Exception, match="Upgrade kvtrace"):
        open_run(tmp_path / "run")
    assert not (tmp_path / "run" / "span").exists()
