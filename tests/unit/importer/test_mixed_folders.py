"""A folder of mixed files of one deployment is one run: each fact once, each request under all its names."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from kvtrace.importer import ImportReport, import_files
from kvtrace.importer.formats import OWN, decoders, format_of
from kvtrace.importer.reading import told_apart
from kvtrace.run import open_run

if TYPE_CHECKING:
    from collections.abc import Iterable

SAMPLES = Path(__file__).parents[3] / "sample_traces"
RAW = SAMPLES / "l1-reuse" / "raw"


def rows(report: ImportReport, query: str) -> list[tuple[Any, ...]]:
    return open_run(report.run).sql(query).rows()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> ImportReport:
    return import_files([RAW], tmp_path_factory.mktemp("whole") / "run")


def test_two_files_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    paths = [tmp_path / "a" / "x" / "page", tmp_path / "b" / "x" / "page", tmp_path / "b" / "other"]
    assert list(told_apart(paths).values()) == ["a/x/page", "b/x/page", "other"]


def test_every_recorded_file_belongs_to_exactly_one_format() -> None:
    for path in sorted(SAMPLES.glob("*/raw/**/*")):
        if path.is_file():
            with path.open("rb") as file:
                head = file.read(1 << 16)
            said = [name for name, module in decoders().items() if module.looks_like(head)]
            own = format_of(path)
            assert len(said) + (own in OWN) <= 1, path
            assert own is not None, path


def test_events_that_the_engine_recorded_and_published_count_once(whole: ImportReport) -> None:
    (published,) = rows(whole, "SELECT sum(count) FROM loss WHERE source = 'kv-events.jsonl'")
    assert rows(whole, "SELECT count(*), count(DISTINCT engine) FROM block WHERE tier = 'gpu'") == [
        (published[0], 1)
    ]


def test_what_the_engine_did_not_record_itself_becomes_its_own(tmp_path: Path) -> None:
    """The stream goes on after the recording has ended: the rest is of the same engine and key space."""
    folder = shutil.copytree(RAW, tmp_path / "raw")
    lines = (folder / "kv-events.jsonl").read_bytes().splitlines()
    last = msgspec.json.decode(lines[-1])
    last |= {
        "seq": last["seq"] + 1,
        "events": [{"type": "BlockRemoved", "block_hashes": [7], "medium": "GPU"}],
    }
    (folder / "kv-events.jsonl").write_bytes(b"\n".join([*lines, msgspec.json.encode(last)]))
    report = import_files([folder], tmp_path / "run")
    found = rows(report, "SELECT engine, process, key_space, event FROM block WHERE key = '0000000000000007'")
    own = "SELECT DISTINCT engine, process, key_space, 'removed' FROM block WHERE tier = 'gpu'"
    assert found == rows(report, own)


def test_a_stream_without_a_native_recording_keeps_to_itself(tmp_path: Path) -> None:
    report = import_files([RAW / "kv-events.jsonl"], tmp_path / "run")
    assert rows(report, "SELECT DISTINCT engine, key_space FROM block") == [(None, "vllm:unknown:unknown")]
    assert rows(report, "SELECT count(*) FROM loss") == [(0,)]


def test_a_stream_whose_keys_a_router_asked_for_is_in_the_routers_key_space(tmp_path: Path) -> None:
    report = import_files([SAMPLES / "dynamo-hosttier" / "raw"], tmp_path / "run")
    assert rows(report, "SELECT DISTINCT key_space FROM block") == [("dynamo:engine:unknown",)]
    met = "SELECT count(DISTINCT key) FROM request_key WHERE key IN (SELECT key FROM block)"
    assert rows(report, met)[0][0] > 100


def test_an_answer_is_a_row_of_the_request_it_answers(whole: ImportReport) -> None:
    """By the id in the body and by the caller's own id, whichever the client kept."""
    joined = """
        SELECT count(*), count(DISTINCT request_id), bool_and(request_id IN (SELECT request_id FROM member))
        FROM span WHERE op = 'request' AND observer = 'client'
    """
    assert rows(whole, joined) == [(17, 17, True)]
    assert rows(whole, "SELECT count(*) FROM request") == [(17,)]
    named = "SELECT kind FROM alias WHERE alias = 'cmpl-req-003' AND request_id LIKE 'cmpl-req-003-0-%'"
    assert rows(whole, named) == [("response",)]


@pytest.mark.parametrize("repeats", [2, 3])
def test_callers_that_reuse_their_id_are_paired_in_time_order(tmp_path: Path, repeats: int) -> None:
    """The same X-Request-Id again and again: each answer belongs to the request it overlaps, one to one."""
    folder = tmp_path / "raw"
    folder.mkdir()
    _write(folder / "spans.jsonl", (_span(f"cmpl-again-0-{n:08x}", n) for n in range(repeats)))
    _write(folder / "responses.jsonl", (_answer(n) for n in range(repeats)))
    report = import_files([folder], tmp_path / "run")
    found = """
        SELECT r.request_id, reported_cached_tokens FROM request r ORDER BY start_ns
    """
    assert rows(report, found) == [(f"cmpl-again-0-{n:08x}", 10 * n) for n in range(repeats)]
    assert rows(report, "SELECT cause FROM loss") == []


def test_an_answer_that_fits_nobody_in_time_stays_by_itself_and_is_counted(tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    folder.mkdir()
    _write(folder / "spans.jsonl", (_span(f"cmpl-again-0-{n:08x}", n) for n in range(2)))
    _write(folder / "responses.jsonl", [_answer(9), _answer(0)])
    report = import_files([folder], tmp_path / "run")
    assert rows(report, "SELECT cause, sum(count) FROM loss GROUP BY 1") == [("ambiguous_join", 1)]
    named = rows(report, "SELECT request_id FROM request ORDER BY 1")
    assert named == [("cmpl-again",), ("cmpl-again-0-00000000",)]


def _write(path: Path, entries: Iterable[dict[str, Any]]) -> None:
    path.write_bytes(b"\n".join(map(msgspec.json.encode, entries)))


def _span(internal: str, number: int) -> dict[str, Any]:
    """A lookup of the cache, which knows a request by its internal id."""
    attributes = [{"key": "session_id", "value": {"stringValue": internal}}]
    span = {
        "traceId": f"{number + 1:032x}",
        "spanId": f"{number + 1:016x}",
        "name": "mp.lookup_prefetch",
        "startTimeUnixNano": str(1_000_000_000 * (number + 1)),
        "endTimeUnixNano": str(1_000_000_000 * (number + 1) + 500_000_000),
        "attributes": attributes,
    }
    scopes = [{"scope": {"name": "lmcache_mp.server"}, "spans": [span]}]
    return {"resourceSpans": [{"resource": {}, "scopeSpans": scopes}]}


def _answer(number: int) -> dict[str, Any]:
    started_ns = 1_000_000_000 * (number + 1) - 100_000_000
    usage = {
        "prompt_tokens": 50,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 10 * number},
    }
    return {
        "request_id": "again",
        "response_id": "cmpl-again",
        "status": 200,
        "started_ns": started_ns,
        "ended_ns": started_ns + 700_000_000,
        "usage": usage,
    }


@pytest.mark.parametrize("form", ["spool", "run"])
def test_what_clients_kept_is_of_the_requests_that_the_engine_recorded(tmp_path: Path, form: str) -> None:
    """No trace and no cache's log is there: the engine itself says what its requests are called outside."""
    native = RAW / "spool"
    if form == "run":
        native = import_files([native], tmp_path / "native").run
    alone = import_files([RAW / "spool"], tmp_path / "alone")
    report = import_files([native, RAW / "responses.jsonl"], tmp_path / "run")
    ids = "SELECT DISTINCT request_id FROM request ORDER BY request_id"
    assert rows(report, ids) == rows(alone, ids)
    assert rows(report, "SELECT DISTINCT name FROM span WHERE observer = 'client' AND op = 'request'") == [
        ("response",)
    ]
    answers = rows(report, "SELECT count(*), count(DISTINCT request_id) FROM alias WHERE kind = 'response'")
    assert answers == [(17, 17)]
