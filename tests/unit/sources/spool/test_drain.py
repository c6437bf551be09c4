"""Spools become rows of the run once: who, when, what never closed, and what is missing."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from kvtrace.errors import RunError
from kvtrace.schema.layout import table_files
from kvtrace.sources.spool import following
from kvtrace.sources.spool.drain import Drain
from kvtrace.sources.spool.finishing import compact, finish, fold
from tests.spools import BOOT, OFFSET, Drawn, drawn_header, living_header, run_file

if TYPE_CHECKING:
    from pathlib import Path

STEP = {"start_ns": 2_000, "end_ns": 2_500}


def rows(run: Path, table: str) -> list[dict[str, Any]]:
    """Every row, without what nobody filled."""
    files = table_files(run, table)
    found = [row for file in files for row in pl.read_parquet(file, hive_partitioning=False).to_dicts()]
    return [{name: value for name, value in row.items() if value is not None} for row in found]


def converted(run: Path, *spools: Drawn) -> Path:
    for spool in spools:
        spool.aged()
    with Drain(run) as drain:
        assert drain.convert()
    return run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return run_file(tmp_path / "run")


def test_a_whole_row_gets_who_when_and_an_id(run: Path) -> None:
    spool = Drawn(run / "spool").facts(engine="e0")
    members = [{"request_id": "r0", "phase": "prefill", "scheduled_tokens": 3, "computed_before": 0}]
    spool.rows("span", "whole", [STEP, STEP | {"members": members, "attributes.a": 7}], op="step").end()
    first, second = rows(converted(run, spool), "span")
    assert first == {
        "run_id": "drawn", "op": "step", "start_ns": 2_000 + OFFSET, "end_ns": 2_500 + OFFSET, "engine": "e0",
        "process": "drawn-host/100", "clock": "host", "span_id": 5 << 40 | 1 << 39, "bucket": 255,
    }  # fmt: skip
    assert second["span_id"] == first["span_id"] + 1
    assert second["members"] == [members[0] | {"output_tokens": None}]
    assert second["attributes"] == [{"key": "a", "value": "7"}] or second["attributes"] == {"a": "7"}


def test_what_never_closed_is_open_when_the_spool_ends(run: Path) -> None:
    spool = Drawn(run / "spool")
    spool.rows("span", "open", [{"span_id": 7, "start_ns": 2_000, "request_id": "r0"}], op="request")
    spool.rows("span", "open", [{"span_id": 8, "start_ns": 2_000}], op="hold").end()
    found = {row["op"]: row for row in rows(converted(run, spool), "span")}
    assert (found["request"]["outcome"], found["request"]["status"]) == ("open", "open")
    assert found["hold"]["outcome"] == "open"
    assert "end_ns" not in found["request"]
    assert "status" not in found["hold"]
    assert rows(run, "loss") == []


def test_a_process_is_one_row_with_what_it_described(run: Path) -> None:
    spool = Drawn(run / "spool").facts(engine="old")
    about = {"product": "vllm", "version": "0.32", "config": {"block_size": 16}, "attributes": {"x": 1}}
    spool.facts(engine="e0", role="scheduler", instruments={"queue": "active"}, **about)
    spool.anchor(1_500, 1_500 + OFFSET).rows("span", "whole", [STEP], op="step").anchor(9_000, 5).end()
    (process,) = rows(converted(run, spool), "process")
    assert (process["engine"], process["role"], process["version"]) == ("e0", "scheduler", "0.32")
    assert (process["first_ns"], process["last_ns"]) == (2_000 + OFFSET, 9_000 + OFFSET)
    assert dict(process["anchors"]) == {"1500": str(1_500 + OFFSET), "9000": "5"}
    assert dict(process["attributes"])["x"] == "1"
    assert json.loads(dict(process["attributes"])["config"]) == {"block_size": 16}
    assert rows(run, "span")[0]["engine"] == "e0"


def test_a_torn_last_frame_and_a_missing_mark_are_losses_from_the_last_record_on(run: Path) -> None:
    spool = Drawn(run / "spool").rows("span", "whole", [STEP], op="step")
    spool.rows("span", "whole", [STEP], op="step").cut(5)
    found = {row["cause"]: row for row in rows(converted(run, spool), "loss")}
    assert set(found) == {"undecodable", "unclean_end"}
    assert "torn" in found["undecodable"]["detail"]
    for row in found.values():
        assert (row["count"], row["from_ns"], row["process"]) == (1, 2_500 + OFFSET, "drawn-host/100")
        assert row["source"] == spool.path.name
    assert len(rows(run, "span")) == 1


def test_a_process_that_was_killed_before_it_recorded_anything_took_nothing_with_it(run: Path) -> None:
    spool = Drawn(run / "spool").facts(role="worker")
    assert rows(converted(run, spool), "loss") == []
    (process,) = rows(run, "process")
    assert dict(process["attributes"])["closing_mark"] == "no"


def test_who_is_killed_while_idle_lost_nothing_that_was_recorded_before(run: Path) -> None:
    """Rows ...2500|  idle 7000|     killed; and rows again after an idle mark, which then says nothing."""
    idle = Drawn(run / "spool", 1).rows("span", "whole", [STEP], op="step").idle(7_000)
    busy = Drawn(run / "spool", 2, prefix=6).idle(9_000).rows("span", "whole", [STEP], op="step")
    found = {row["source"]: row["from_ns"] for row in rows(converted(run, idle, busy), "loss")}
    assert found == {idle.path.name: 7_000 + OFFSET, busy.path.name: 2_500 + OFFSET}


def test_damage_in_the_middle_costs_its_frames_alone(run: Path) -> None:
    spool = Drawn(run / "spool").rows("span", "whole", [STEP], op="step", written_ns=2_600)
    spool.raw(b"\xffKV\x01 no frame at all").rows("span", "whole", [STEP], op="step", written_ns=2_700).end()
    (loss,) = rows(converted(run, spool), "loss")
    assert (loss["cause"], loss["count"], loss["from_ns"]) == ("undecodable", 1, 2_600 + OFFSET)
    assert len(rows(run, "span")) == 2


@pytest.mark.parametrize("anchor", [None, [1], "soon", [1, None], [True, 2]])
def test_a_header_without_a_clock_is_one_loss(run: Path, anchor: object) -> None:
    spool = Drawn(run / "spool", anchor=anchor).rows("span", "whole", [STEP, STEP], op="step").end()
    (loss,) = rows(converted(run, spool), "loss")
    assert (loss["cause"], loss["count"]) == ("undecodable", 2)
    assert "header" in loss["detail"]
    assert rows(run, "span") == rows(run, "process") == []


def test_every_spool_has_its_own_clock(run: Path) -> None:
    here = Drawn(run / "spool", 1).rows("span", "whole", [STEP], op="step").end()
    there = Drawn(run / "spool", 2, prefix=9, boot_id=BOOT[::-1], host="far", anchor=[0, 10]).facts(
        engine="e1"
    )
    there.rows("span", "whole", [STEP], op="step").end()
    found = {row["process"]: row["start_ns"] for row in rows(converted(run, here, there), "span")}
    assert found == {"drawn-host/1": 2_000 + OFFSET, "far/2": 2_010}


def test_parts_without_a_beginning_are_a_loss(run: Path) -> None:
    spool = Drawn(run / "spool").rows("span", "close", [{"span_id": 7, "end_ns": 3_000}], op="load").end()
    (loss,) = rows(converted(run, spool), "loss")
    assert (loss["cause"], loss["op"], loss["count"]) == ("dropped", "load", 1)
    assert rows(run, "span") == []


def test_losses_of_the_recorder_are_losses_of_its_spool(run: Path) -> None:
    spool = Drawn(run / "spool")
    spool.rows("loss", "whole", [{"cause": "dropped", "count": 3, "from_ns": 2_000, "to_ns": 2_100}]).end()
    (loss,) = rows(converted(run, spool), "loss")
    assert (loss["source"], loss["process"], loss["count"]) == (spool.path.name, "drawn-host/100", 3)
    assert (loss["from_ns"], loss["to_ns"]) == (2_000 + OFFSET, 2_100 + OFFSET)


def test_a_spool_of_a_living_process_has_not_ended(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_QUIET_SECONDS", -1.0)
    spool = Drawn(run / "spool", **living_header()).rows("span", "whole", [STEP], op="step").aged()
    with Drain(run) as drain:
        assert not drain.convert()
        assert (len(rows(run, "span")), rows(run, "process"), rows(run, "loss")) == (1, [], [])
        spool.rows("span", "whole", [STEP], op="step").end()
        assert drain.convert()
    assert (len(rows(run, "span")), len(rows(run, "process")), rows(run, "loss")) == (2, 1, [])


def test_half_a_flush_waits_for_its_other_half(run: Path) -> None:
    spool = Drawn(run / "spool", **living_header())
    spool.rows("span", "open", [{"span_id": 7, "start_ns": 2_000}], op="load", written_ns=1)
    spool.rows("span", "close", [{"span_id": 7, "end_ns": 2_100}], written_ns=2)
    with Drain(run) as drain:
        assert drain.step() == {}
        spool.rows("span", "update", [{"span_id": 7, "tokens": 5}], written_ns=2)
        spool.rows("span", "whole", [STEP], op="step", written_ns=3)
        (load,) = drain.step()["span"].to_pylist()
        assert (load["op"], load["tokens"], load["end_ns"]) == ("load", 5, 2_100 + OFFSET)


def test_rows_are_given_once_and_written_when_there_are_enough(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_QUIET_SECONDS", -1.0)
    spool = Drawn(run / "spool", **living_header())
    with Drain(run) as drain:
        for flush in range(5):
            spool.rows("span", "whole", [STEP], op="step", written_ns=flush)
            assert drain.step()["span"].num_rows == 1
        assert drain.step() == {}
        assert table_files(run, "span") == []
        drain.step(final=True)
        assert len(table_files(run, "span")) == 1
    with Drain(run, part_bytes=1) as drain:
        spool.rows("span", "whole", [STEP], op="step", written_ns=9)
        drain.step()
        assert len(table_files(run, "span")) == 2
    assert len(rows(run, "span")) == 6


def test_what_is_written_after_the_end_is_counted_as_late(run: Path) -> None:
    spool = Drawn(run / "spool").rows("span", "whole", [STEP], op="step")
    converted(run, spool)
    spool.rows("span", "whole", [STEP, STEP], op="step")
    for _ in range(2):
        converted(run, spool)
    assert len(rows(run, "span")) == len(rows(run, "process")) == 1
    assert [(row["cause"], row["count"]) for row in rows(run, "loss")] == [("unclean_end", 1), ("late", 2)]


def test_one_converter_at_a_time(run: Path) -> None:
    spool = Drawn(run / "spool").rows("span", "whole", [STEP], op="step").end()
    with Drain(run) as first, Drain(run, wait_seconds=0.05) as second:
        assert first.step()["span"].num_rows == 1
        assert second.step() == {}
        with pytest.raises(RunError, match="another process is converting it"):
            second.step(final=True)
        first.step(final=True)
        first.close()
        assert second.convert()
    assert len(rows(run, "span")) == 1
    assert spool.path.exists()


def test_a_run_that_cannot_be_written_loses_nothing(run: Path) -> None:
    spool = Drawn(run / "spool").rows("span", "whole", [STEP], op="step").end()
    (run / "span").write_text("in the way")
    with Drain(run) as drain:
        with pytest.raises(RunError, match="cannot be written"):
            drain.convert()
        assert drain.step() == {}  # not every second again
        (run / "span").unlink()
        assert drain.convert()
    assert len(rows(run, "span")) == len(rows(run, "process")) == 1
    assert spool.path.exists()


def test_a_run_without_a_run_file_is_converted_all_the_same(tmp_path: Path) -> None:
    spool = Drawn(tmp_path / "run" / "spool").rows("span", "whole", [STEP], op="step").end()
    assert len(rows(converted(tmp_path / "run", spool), "span")) == 1


def test_a_spool_begun_anew_is_read_anew(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_QUIET_SECONDS", -1.0)
    spool = Drawn(run / "spool", **living_header())
    with Drain(run) as drain:
        spool.rows("span", "whole", [STEP] * 50, op="step")
        drain.step()
        spool.path.unlink()
        again = Drawn(run / "spool", **living_header()).rows("span", "whole", [STEP], op="step")
        found = [drain.step().get("span") for _ in range(2)]
        assert [rows.num_rows for rows in found if rows is not None] == [1]
        assert again.path == spool.path


def test_what_processes_described_is_folded_into_the_run_file(tmp_path: Path) -> None:
    run = run_file(tmp_path / "run", engines={"e0": {"build": "x", "version": "1"}}, group="g")
    api = (
        Drawn(run / "spool", 1).facts(engine="e0", role="api", version="0.32", config={"a": 1, "b": 1}).end()
    )
    core = Drawn(run / "spool", 2).facts(engine="e0", role="scheduler", product="vllm", config={"b": 2}).end()
    converted(run, api, core)
    fold(run)
    meta = json.loads((run / "run.json").read_text())
    assert meta["engines"] == {"e0": {"build": "x", "version": "1", "product": "vllm", "a": 1, "b": 2}}
    assert meta["group"] == "g"


def test_a_finished_run_keeps_its_spools_apart_and_its_memory_of_them(run: Path) -> None:
    spool = Drawn(run / "spool").rows("span", "whole", [STEP], op="step").end()
    assert finish(run)
    kept = run / "raw" / "spool" / spool.path.name
    assert kept.exists()
    for _ in range(2):
        assert compact(run).rows == {"span": 1, "process": 1}
    kept.rename(spool.path)  # put back by hand: it is known, and not converted again
    assert finish(run)
    assert len(rows(run, "span")) == len(rows(run, "process")) == 1


def test_a_compaction_killed_between_two_folders_is_healed_before_anything_is_written(run: Path) -> None:
    converted(run, Drawn(run / "spool", 1).rows("span", "whole", [STEP], op="step").end())
    (run / "span").rename(run / ".replaced-span")
    converted(run, Drawn(run / "spool", 2).rows("span", "whole", [STEP], op="step").end())
    assert len(rows(run, "span")) == len(rows(run, "process")) == 2


def test_the_header_of_the_tests_has_every_field() -> None:
    from kvtrace.schema.frames import HEADER_FIELDS

    assert set(drawn_header()) == set(HEADER_FIELDS)
    assert time.time() * 1e9 > OFFSET
