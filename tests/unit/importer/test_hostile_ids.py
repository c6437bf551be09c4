"""An id comes from the outside and may be anything; it comes out as it went in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kvtrace.sinks.parquet.compact import compact_run
from tests.unit.importer.drawn import ENCODINGS, hash_log, imported, llm_request, lookup, losses, op, query

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = {
    "script": "</script><script>alert(1)</script>",
    "workflow": "::set-env name=X::y",
    "cdata": "]]><img src=x>",
    "quotes": "'; DROP TABLE span; --\"`$1",
    "newlines": "a\nb\r\nc\td",
    "long": "x" * 10_000,
    "wide": "\u202e\u2028☃\U0001f600",
    "percent": "%(name)s {0} ${HOME}",
    "pattern": "^(.*)+$[a-z]\\d\\1",
    "spaces": "  ",
    "hash": "cmpl-a-0#1",
}


@pytest.mark.parametrize("encoding", ["json", "frames"])
def test_hostile_ids_survive_the_round_trip(tmp_path: Path, encoding: str) -> None:
    sent = [op("request", 10 + n, 20 + n, name) for n, name in enumerate(HOSTILE.values())]
    run = imported(tmp_path, ENCODINGS[encoding](*sent))
    assert [name for (name,) in query(run, "SELECT request_id FROM span ORDER BY start_ns")] == list(
        HOSTILE.values()
    )
    assert query(run, "SELECT count(*) FROM request") == [(len(HOSTILE),)]
    assert losses(run) == []


@pytest.mark.parametrize("name", HOSTILE)
def test_an_engines_names_of_a_hostile_request_are_one_request(tmp_path: Path, name: str) -> None:
    external = f"cmpl-{HOSTILE[name]}-0"
    internal = f"{external}-92cea7c0"
    run = imported(
        tmp_path,
        [llm_request(external, 10, 100), lookup(internal, 12, 15, 1280)],
        hash_log((internal, 12, 1)),
    )
    assert query(run, "SELECT DISTINCT request_id FROM span") == [(internal,)]
    aliases = query(run, "SELECT alias, request_id FROM alias WHERE kind != 'trace' ORDER BY kind")
    assert aliases == [(HOSTILE[name], internal), (external, internal)]
    assert losses(run) == []


def test_hostile_ids_survive_compaction(tmp_path: Path) -> None:
    run = imported(tmp_path, [op("request", 10 + n, 20 + n, name) for n, name in enumerate(HOSTILE.values())])
    compact_run(run.path)
    assert {name for (name,) in query(run, "SELECT request_id FROM span")} == set(HOSTILE.values())


def test_hostile_attributes_and_names_survive(tmp_path: Path) -> None:
    from tests.unit.importer.drawn import span

    run = imported(tmp_path, [span(text, 1, 2, {text: text}) for text in HOSTILE.values()])
    for name, attributes in query(run, "SELECT name, attributes FROM span"):
        assert dict(attributes) == {name: name}
