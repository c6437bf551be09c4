"""What people wrote is counted and dropped at the door, unless somebody opts in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.schema.content import EVENTS, EXACT, PREFIXES
from tests.unit.importer.drawn import ENCODINGS, EXTERNAL, imported, llm_request, query, span

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "the patient's name is"
NAMES = (*sorted(EXACT), *(prefix.rstrip(".") + ".0.x" for prefix in PREFIXES))


def everything(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file())


def written_by_people(count: int = 1) -> list[Any]:
    return [
        span("chat", 1 + number, 2 + number, {"kept": "yes", **dict.fromkeys(NAMES, SECRET)})
        for number in range(count)
    ]


@pytest.mark.parametrize("encoding", ["json", "frames, gzip", "body"])
def test_content_is_dropped_and_counted(tmp_path: Path, encoding: str) -> None:
    run = imported(tmp_path, ENCODINGS[encoding](*written_by_people(3)))
    assert run.meta["content_dropped"] == dict.fromkeys(sorted(NAMES), 3)
    assert run.meta["content_kept"] is False
    assert [dict(row) for (row,) in query(run, "SELECT attributes FROM span")] == [{"kept": "yes"}] * 3
    assert SECRET.encode() not in everything(run.path)


def test_events_that_are_content_are_dropped_and_counted(tmp_path: Path) -> None:
    sent = span("chat", 1, 2)
    sent.span["events"] = [
        {"name": name, "timeUnixNano": "1", "attributes": [{"key": "x", "value": {"stringValue": SECRET}}]}
        for name in sorted(EVENTS)
    ]
    run = imported(tmp_path, [sent])
    assert run.meta["content_dropped"] == dict.fromkeys(sorted(EVENTS), 1)
    assert query(run, "SELECT attributes FROM span") == [(None,)]


def test_keep_content_keeps_it_and_stamps_the_run(tmp_path: Path) -> None:
    run = imported(tmp_path, written_by_people(), keep_content=True)
    assert (run.meta["content_kept"], run.meta["content_dropped"]) == (True, {})
    ((attributes,),) = query(run, "SELECT attributes FROM span")
    assert dict(attributes) == {"kept": "yes", **dict.fromkeys(NAMES, SECRET)}


def test_a_run_without_content_says_so(tmp_path: Path) -> None:
    run = imported(tmp_path, [llm_request(EXTERNAL, 10, 100)])
    assert (run.meta["content_kept"], run.meta["content_dropped"]) == (False, {})


def test_content_of_a_run_with_content_stops_at_the_next_door(tmp_path: Path) -> None:
    kept = imported(tmp_path, written_by_people(), keep_content=True)
    again = imported(tmp_path, kept.path)
    assert json.loads((again.path / "run.json").read_text())["content_kept"] is False
    assert [dict(row) for (row,) in query(again, "SELECT attributes FROM span")] == [{"kept": "yes"}]
    assert again.meta["content_dropped"] == dict.fromkeys(sorted(NAMES), 1)
