"""Lines of a file in bounded batches."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest
from kvtrace.sources.lines import lines
from kvtrace.sources.stream import Limits, Undecodable, open_input

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _read(path: Path, content: bytes, limits: Limits | None = None) -> list[list[bytes] | Undecodable]:
    path.write_bytes(content)
    with open_input(path) as stream:
        return list(lines(stream, limits))


@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n"])
def test_every_line_comes_out_once_whether_or_not_the_last_one_ends(tmp_path: Path, end: bytes) -> None:
    assert _read(tmp_path / "f", b"one\n\ntwo\nthree" + end) in (
        [[b"one", b"two", b"three"]],
        [[b"one", b"two"], [b"three"]],
    )


def test_a_line_that_spans_several_reads_is_whole(tmp_path: Path) -> None:
    long = b"x" * (3 << 20)
    found = _read(tmp_path / "f", b"a\n" + long + b"\nb\n")
    assert [line for batch in found if isinstance(batch, list) for line in batch] == [b"a", long, b"b"]


@pytest.mark.parametrize("size", [100, 3 << 20])
def test_a_line_beyond_the_limit_is_skipped_and_said_and_the_next_one_read(tmp_path: Path, size: int) -> None:
    found = _read(tmp_path / "f", b"a\n" + b"x" * size + b"\nb\n", Limits(max_message_bytes=50))
    kept = [line for batch in found if isinstance(batch, list) for line in batch]
    lost = [item for item in found if isinstance(item, Undecodable)]
    assert kept == [b"a", b"b"]
    assert [(item.count, item.detail) for item in lost] == [(1, "line longer than 50 bytes")]


def test_an_empty_file_has_no_lines(tmp_path: Path) -> None:
    assert _read(tmp_path / "f", b"") == []


@pytest.mark.parametrize("write", [bytes, gzip.compress])
def test_the_mark_before_utf_8_is_no_part_of_the_first_line(
    tmp_path: Path, write: Callable[[bytes], bytes]
) -> None:
    """Windows' editors and shells put it there; only the first one of a file is one."""
    mark = b"\xef\xbb\xbf"
    assert _read(tmp_path / "f", write(mark + b"{}\n" + mark + b"x\n")) == [[b"{}", mark + b"x"]]
    assert _read(tmp_path / "only", write(mark)) == []
    with open_input(tmp_path / "f") as stream:
        assert stream.peek(2) == b"{}"
