"""Laws of the import: the order and the number of files change nothing, and no bytes break it.

files   [ a b c d e ]   =   [ c a ] [ e ] [ d b ]   =   the run of either, imported again
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kvtrace.errors import KvtraceError
from kvtrace.importer import FORMATS, import_files
from tests.unit.importer.drawn import (
    binary,
    frames,
    hash_log,
    imported,
    lines,
    llm_request,
    lmcache,
    lookup,
    losses,
    op,
    retrieve,
    span,
    store,
    tables,
)

if TYPE_CHECKING:
    from tests.unit.importer.drawn import Sent

FEW = settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
CLIENTS = ("a", "b", "req-000", "☃ x")
TABLES = ("span", "alias", "process", "request_key", "identity")
"""Every noun is a view of these."""
AGAIN = ("span", "process", "request_key", "identity")
FILES = {"json": lines, "frames": frames, "body": binary}


def _session(client: str, digit: str) -> str:
    return f"cmpl-{client}-0-{digit * 8}"


@st.composite
def sent_spans(draw: st.DrawFn) -> list[Sent]:
    """What a small deployment sends: requests of few clients, retries, lookups, transfers, strangers."""
    found: list[Sent] = []
    number = 0
    for index, client in enumerate(draw(st.lists(st.sampled_from(CLIENTS), max_size=5))):
        start = 100 * index + draw(st.integers(1, 20))  # retries follow each other
        internal = _session(client, "abcde"[index])
        queue = draw(st.sampled_from([None, 1.0, -3.0]))
        found.append(
            llm_request(f"cmpl-{client}-0", start, start + 60, first_ms=30, queue_ms=queue, trace=index + 1)
        )
        if draw(st.booleans()):
            l1 = draw(st.sampled_from([0, 256, 512]))
            found.append(lookup(internal, start + 2, start + 4, 512, l1, trace=50 + index))
            found.append(lmcache("request", internal, start + 1, start + 61, trace=50 + index))
        for _ in range(draw(st.integers(0, 2))):
            kind = draw(st.sampled_from([retrieve, store]))
            found.append(
                kind(internal, start + 6, start + 9, draw(st.integers(0, 2)), number, trace=50 + index)
            )
            number += 1 + draw(st.integers(0, 1))
    for at in range(draw(st.integers(0, 3))):
        arrays: dict[str, Any] = {"kvtrace.step.request_ids": ["a", "b"], "kvtrace.step.tokens": [at, 1]}
        found.append(op("step", 10 * at + 1, draw(st.sampled_from([None, 10 * at + 5])), None, more=arrays))
        found.append(span("other", 10 * at + 1, 10 * at + draw(st.integers(0, 2)), {"at": at}))
    return found


@st.composite
def cut(draw: st.DrawFn, sent: list[Sent]) -> list[bytes]:
    """The same spans in another order, in some files of any encoding."""
    shuffled = draw(st.permutations(sent))
    edges = sorted(draw(st.lists(st.integers(0, len(shuffled)), max_size=3)))
    parts = [shuffled[low:high] for low, high in zip([0, *edges], [*edges, len(shuffled)], strict=True)]
    return [FILES[draw(st.sampled_from(sorted(FILES)))](*part) for part in parts if part]


@st.composite
def recordings(draw: st.DrawFn) -> tuple[list[Sent], list[bytes]]:
    sent = draw(sent_spans().filter(bool))
    return sent, draw(cut(sent))


def log_of(sent: list[Sent]) -> bytes:
    """The server's log of its lookups, and one of a lookup whose span was lost."""
    asked = [
        (one.span["attributes"][0]["value"]["stringValue"], int(one.span["startTimeUnixNano"]) / 1e6, 2)
        for one in sent
        if one.span["name"] == "mp.lookup_prefetch"
    ]
    return hash_log(*asked, (_session("lost", "f"), 500, 2))


def counted(
    folder: Path, *inputs: Any
) -> tuple[dict[str, list[tuple[Any, ...]]], list[tuple[str, str | None, int]]]:
    run = imported(folder, *inputs)
    return tables(run, *TABLES, without=("run_id", "source")), losses(run)


@FEW
@given(recordings())
def test_order_and_number_of_files_change_nothing(drawn: tuple[list[Sent], list[bytes]]) -> None:
    sent, parts = drawn
    log = log_of(sent)
    with tempfile.TemporaryDirectory() as folder:
        assert counted(Path(folder), *parts, log) == counted(Path(folder), log, sent)


@FEW
@given(recordings())
def test_everything_given_twice_changes_nothing_but_the_duplicates(
    drawn: tuple[list[Sent], list[bytes]],
) -> None:
    sent, parts = drawn
    with tempfile.TemporaryDirectory() as folder:
        once, lost = counted(Path(folder), sent)
        twice, lost_twice = counted(Path(folder), *parts, sent)
    assert twice == once
    set_aside = ("negative_duration", "undecodable")
    assert [entry for entry in lost_twice if entry[0] not in ("duplicate", *set_aside)] == [
        entry for entry in lost if entry[0] not in set_aside
    ]


@FEW
@given(sent_spans().filter(bool))
def test_a_run_imported_again_has_the_same_nouns(sent: list[Sent]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        first = imported(Path(folder), sent, log_of(sent))
        again = imported(Path(folder), first.path)
        assert tables(again, *AGAIN) == tables(first, *AGAIN)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.one_of(
        st.binary(max_size=300),
        st.binary(max_size=40).map(lambda noise: lines(op("load", 1, 2)) + noise),
        st.binary(max_size=40).map(lambda noise: frames(op("load", 1, 2)) + noise),
        st.binary(max_size=40).map(lambda noise: hash_log(("s", 1, 2)) + noise),
        st.tuples(st.integers(0, 250), st.binary(min_size=1, max_size=4)).map(
            lambda change: (
                (whole := binary(op("load", 1, 2, tokens=5), span("x", 3, 4)))[: change[0]]
                + change[1]
                + whole[change[0] + len(change[1]) :]
            )
        ),
    ),
    st.sampled_from(["auto", *FORMATS]),
)
def test_any_bytes_are_a_whole_run_or_one_sentence(content: bytes, form: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "input").write_bytes(content)
        refused: KvtraceError | None = None
        try:
            import_files([folder / "input"], folder / "run", format=form)
        except KvtraceError as error:
            refused = error
        assert refused is None or "\n" not in str(refused)
        wanted = {"input"} if refused else {"input", "run"}
        assert {path.name for path in folder.iterdir()} == wanted
        assert (folder / "run" / "run.json").is_file() == (refused is None)
