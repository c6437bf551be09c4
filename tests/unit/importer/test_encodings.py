"""However spans arrive, the run is the same."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.unit.importer.drawn import (
    ENCODINGS,
    EXTERNAL,
    INTERNAL,
    LISTS,
    Sent,
    body,
    frames,
    hash_log,
    imported,
    lines,
    llm_request,
    lookup,
    op,
    query,
    reported,
    retrieve,
    span,
    store,
    tables,
    written,
)

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

ONE_OF_EACH = (
    llm_request(EXTERNAL, 10, 100, first_ms=50, queue_ms=5),
    lookup(INTERNAL, 12, 15, 1280, 768, 512),
    retrieve(INTERNAL, 16, 20, 5, 0),
    store(INTERNAL, 30, 33, 2, 1),
    op("step", 40, 50, None, more={"kvtrace.step.request_ids": [INTERNAL], "kvtrace.step.tokens": [220]}),
    op("wait", 41, None, None, reason="load"),
    span(
        "somebody's", 1, 2, {"text": "ünï \u2028 ☃", "truth": True, "half": 0.5, "list": ["a", 1]}, status=2
    ),
)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run of OTLP JSON lines."""
    return imported(tmp_path_factory.mktemp("plain"), lines(*ONE_OF_EACH))


def test_one_of_each_is_a_row_of_its_noun(plain: Run) -> None:
    assert {name: len(rows) for name, rows in tables(plain).items() if rows} == {
        "request": 1, "queue": 1, "lookup": 1, "transfer": 2, "store": 1, "wait": 1, "step": 1, "member": 1,
        "alias": 3, "process": 3, "span": 8,
    }  # fmt: skip


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_encoding_gives_the_same_run(tmp_path: Path, plain: Run, encoding: str) -> None:
    run = imported(tmp_path, ENCODINGS[encoding](*ONE_OF_EACH))
    assert tables(run, *LISTS) == tables(plain, *LISTS)


@pytest.mark.parametrize(
    ("encoding", "named", "seen"),
    [
        ("json", "otlp-json", "otlp-json"),
        ("frames", "otlp-proto", "otlp-proto-frames"),
        ("frames", "otlp-proto-frames", "otlp-proto-frames"),
        ("body", "otlp-proto-body", "otlp-proto-body"),
    ],
)
def test_a_format_can_be_named_or_seen(tmp_path: Path, encoding: str, named: str, seen: str) -> None:
    content = ENCODINGS[encoding](*ONE_OF_EACH)
    by_name, by_look = reported(tmp_path, content, format=named), reported(tmp_path, content)
    assert [entry.format for entry in (*by_name.inputs, *by_look.inputs)] == [seen, seen]
    assert by_name.rows == by_look.rows


def test_a_pretty_printed_body_is_read(tmp_path: Path, plain: Run) -> None:
    pretty = json.dumps(body(*ONE_OF_EACH), indent=2).encode()
    assert tables(imported(tmp_path, pretty), *LISTS) == tables(plain, *LISTS)


def test_a_hash_log_adds_the_keys_of_its_requests(tmp_path: Path) -> None:
    run = imported(tmp_path, ONE_OF_EACH, hash_log((INTERNAL, 12, 5)))
    rows = query(run, "SELECT request_id, attempt, position, key, tokens FROM request_key ORDER BY position")
    assert rows == [(INTERNAL, 1, n, f"{INTERNAL}:{n}", 256) for n in range(5)]
    fields = query(run, "SELECT field, value FROM identity ORDER BY ALL")
    assert fields == [("chunk_size", "256"), ("dtype", "bfloat16"), ("model", "tiny-llama")]


def test_a_folder_is_all_of_its_files_and_names_what_it_leaves_out(tmp_path: Path) -> None:
    folder = tmp_path / "with 'quotes' and spaces"
    (folder / "deep er").mkdir(parents=True)
    written(folder / "a.jsonl", lines(*ONE_OF_EACH[:3]))
    written(folder / "deep er" / 'b "2".binpb', frames(*ONE_OF_EACH[3:]))
    written(folder / "notes.txt", b"a person wrote this\n")
    written(folder / "empty", b"")
    report = reported(tmp_path, folder)
    seen = {entry.path.name: (entry.format, bool(entry.spans), bool(entry.notes)) for entry in report.inputs}
    assert seen == {
        "a.jsonl": ("otlp-json", True, False),
        'b "2".binpb': ("otlp-proto-frames", True, False),
        "notes.txt": ("unknown", False, True),
        "empty": ("empty", False, True),
    }
    assert report.rows["span"] == 8


def test_what_each_input_gave_is_in_the_report_and_in_run_json(tmp_path: Path) -> None:
    report = reported(tmp_path, ONE_OF_EACH, hash_log((INTERNAL, 12, 5)), group="tiered")
    assert [(entry.format, entry.other_rows) for entry in report.inputs] == [
        ("otlp-json", 0),
        ("lmcache-hash-log", 5),
    ]
    meta = json.loads((report.run / "run.json").read_text())
    assert (meta["schema_version"], meta["kind"], meta["group"]) == (1, "import", "tiered")
    assert [entry["format"] for entry in meta["inputs"]] == ["otlp-json", "lmcache-hash-log"]
    assert meta["rows"] == report.rows


def test_spans_of_an_input_are_those_that_it_holds(tmp_path: Path) -> None:
    sent: tuple[Sent, ...] = (llm_request(EXTERNAL, 10, 100, queue_ms=5), span("x", 1, 2))
    assert [entry.spans for entry in reported(tmp_path, sent).inputs] == [2]


def test_spans_that_no_rule_knows_stay_as_rows_and_are_counted(tmp_path: Path) -> None:
    run = imported(tmp_path, [span("Load model", 1, 2), span("Load model", 3, 4), op("load", 5, 6)])
    counts = query(run, "SELECT op, name, count(*) FROM span GROUP BY ALL ORDER BY ALL")
    assert counts == [("load", "load", 1), (None, "Load model", 2)]
    from kvtrace.analyses import question

    inventory = question("inventory")(run).filter(what="spans_without_op")
    assert inventory.select("name", "value").rows() == [("Load model", 2)]


def test_a_whole_run_is_private_to_its_user(tmp_path: Path) -> None:
    assert reported(tmp_path, ONE_OF_EACH).run.stat().st_mode & 0o777 == 0o700


def test_progress_is_told_for_every_input(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    first, second = (
        written(tmp_path / "a", lines(*ONE_OF_EACH)),
        written(tmp_path / "b", hash_log((INTERNAL, 12, 5))),
    )
    reported(
        tmp_path / "x",
        first,
        second,
        on_progress=lambda path, done, total: told.append((path.name, done, total)),
    )
    for name, path in (("a", first), ("b", second)):
        size = path.stat().st_size
        assert [entry for entry in told if entry[0] == name][-1] == (name, size, size)


def test_a_recordings_description_goes_into_run_json(tmp_path: Path) -> None:
    about = {"scenario": "drawn", "captured": "by hand", "engines": {"vllm": "0.32.0"}, "synthetic": True}
    run = imported(tmp_path, ONE_OF_EACH, json.dumps(about).encode())
    assert (run.meta["recording"], run.meta["synthetic"], run.meta["engines"]) == (
        about,
        True,
        {"vllm": "0.32.0"},
    )
