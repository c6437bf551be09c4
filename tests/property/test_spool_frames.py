"""Rows -> frames -> the same rows; and no bytes, cut, flipped or made up, ever hurt the reader."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvtrace.recorder.encoding import Texts, encodable, rows_payload
from kvtrace.schema import frames as layout
from kvtrace.sources.spool.decode import DAMAGED, UNDECODABLE, Frame, SpoolReader, together

COLUMNS = ("request_id", "start_ns", "span_id", "attributes.any", "found_by_tier.host", "members")
WIDTH = 16
IN_64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ANY = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXT)


@st.composite
def members(draw: st.DrawFn) -> tuple[list[Any], ...] | None:
    if draw(st.booleans()):
        return None
    size = draw(st.integers(0, 4))
    numbers = st.lists(st.none() | IN_64, min_size=size, max_size=size)
    texts = st.lists(st.none() | TEXT, min_size=size, max_size=size)
    return draw(texts), draw(texts), draw(numbers), draw(numbers), draw(numbers)


ROW = st.tuples(
    st.just(0), st.none() | TEXT, st.none() | IN_64, st.integers(0, (1 << 64) - 1) | st.none(), ANY,
    st.none() | IN_64, members(),
)  # fmt: skip


def as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else repr(value)


def expected(row: tuple[Any, ...]) -> dict[str, Any]:
    names = ("request_id", "phase", "scheduled_tokens", "output_tokens", "computed_before")
    inside = None if row[6] is None else [dict(zip(names, m, strict=True)) for m in zip(*row[6], strict=True)]
    found = dict(zip(COLUMNS, row[1:], strict=True))
    return {**found, "attributes.any": as_text(row[4]), "members": inside, "op": "step"}


def shape_frame(number: int = 0, columns: tuple[str, ...] = COLUMNS) -> bytes:
    import json

    content = {
        "number": number,
        "table": "span",
        "part": "whole",
        "columns": columns,
        "constants": {"op": "step"},
    }
    return layout.frame(layout.SHAPE, json.dumps(content).encode())


class Spool:
    """Pieces of rows as the writer would append them; an epoch ends after some pieces."""

    def __init__(self, pieces: list[list[tuple[Any, ...]]], pieces_an_epoch: int = 2) -> None:
        self.frames = [layout.frame(layout.HEADER, b"{}"), shape_frame()]
        texts = Texts()
        count = 0
        for number, rows in enumerate(pieces):
            if number and number % pieces_an_epoch == 0:
                texts.next_epoch()
            payload = rows_payload(0, COLUMNS, rows, texts, count, 7)
            self.frames += [texts.frame(), layout.frame(layout.ROWS, payload)]
            count += len(rows)
        self.frames = [frame for frame in self.frames if frame]
        self.data = b"".join(self.frames)

    def ends(self) -> list[int]:
        found, at = [], 0
        for frame in self.frames:
            at += len(frame)
            found.append(at)
        return found


def rows_of(frames: list[Frame]) -> list[dict[str, Any]]:
    return [row for frame in frames if frame.kind == "rows" for row in frame.columns.to_pylist()]


def same(left: Any, right: Any) -> bool:
    """Equal; NaN is written as text here."""
    return repr(left) == repr(right)


PIECES = st.lists(st.lists(ROW, min_size=1, max_size=5), min_size=1, max_size=4)


@given(PIECES)
@settings(deadline=None, max_examples=50)
def test_rows_come_back_as_they_were(pieces: list[list[tuple[Any, ...]]]) -> None:
    frames = list(SpoolReader(Spool(pieces).data).frames())
    wanted = [expected(row) for rows in pieces for row in rows]
    assert same(rows_of(frames), wanted)
    (batch,) = together(frames)
    assert same(batch.columns.to_pylist(), wanted)
    assert batch.numbers.tolist() == list(range(len(wanted)))


@given(PIECES)
@settings(deadline=None, max_examples=10)
def test_cut_at_any_byte_all_whole_frames_come_out(pieces: list[list[tuple[Any, ...]]]) -> None:
    spool = Spool(pieces)
    whole = list(SpoolReader(spool.data).frames())
    for length in range(len(spool.data)):
        reader = SpoolReader(spool.data[:length])
        found = list(reader.frames())
        assert [f.start for f in found] == [f.start for f in whole if f.end <= length]
        assert not [f for f in found if f.kind in {DAMAGED, UNDECODABLE}]
        assert reader.torn == length - max((end for end in spool.ends() if end <= length), default=0)


@given(PIECES, st.data())
@settings(deadline=None, max_examples=50)
def test_reading_from_any_frame_on_gives_what_reading_everything_gives(
    pieces: list[list[tuple[Any, ...]]], data: st.DataObject
) -> None:
    spool = Spool(pieces)
    whole = list(SpoolReader(spool.data).frames())
    start = data.draw(st.sampled_from([0, *spool.ends()]))
    found = list(SpoolReader(spool.data).frames(start))
    assert [frame.start for frame in found] == [frame.start for frame in whole if frame.start >= start]
    assert same(rows_of(found), rows_of([frame for frame in whole if frame.start >= start]))
    reader = SpoolReader(spool.data)
    twice = [*reader.frames(0, most_bytes=1), *reader.frames(reader.position)]
    assert same(rows_of(twice), rows_of(whole))
    assert same(rows_of(list(reader.frames(start))), rows_of(found)), "going back"


@given(PIECES, st.data())
@settings(deadline=None, max_examples=100)
def test_a_flipped_bit_loses_rows_and_never_changes_one(
    pieces: list[list[tuple[Any, ...]]], data: st.DataObject
) -> None:
    spool = Spool(pieces)
    wanted = [expected(row) for rows in pieces for row in rows]
    at = data.draw(st.integers(0, len(spool.data) * 8 - 1))
    flipped = bytearray(spool.data)
    flipped[at // 8] ^= 1 << at % 8
    reader = SpoolReader(bytes(flipped))
    found = list(reader.frames())
    for frame in found:
        if frame.kind == "rows":
            assert same(frame.columns.to_pylist(), wanted[frame.first_row : frame.first_row + frame.rows])
    assert any(frame.kind == DAMAGED for frame in found) or reader.torn
    hit = next(number for number, end in enumerate(spool.ends()) if at // 8 < end)
    starts = {frame.start for frame in found if frame.kind == "rows"}
    needs_hit = spool.frames[hit][4] in {layout.SHAPE, layout.WORDS}
    for number, start in enumerate([0, *spool.ends()][:-1]):
        if spool.frames[number][4] == layout.ROWS and (number < hit or (number > hit and not needs_hit)):
            assert start in starts, "a frame that was not hit"


@given(st.binary(max_size=300))
@settings(deadline=None, max_examples=150)
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    reader = SpoolReader(data)
    for frame in reader.frames():
        assert frame.kind == DAMAGED


@given(st.sampled_from(sorted(layout.KINDS)), st.binary(max_size=120))
@settings(deadline=None, max_examples=150)
def test_any_payload_with_a_right_checksum_is_read_without_an_error(kind: int, payload: bytes) -> None:
    data = shape_frame() + layout.frame(kind, payload) + layout.frame(layout.END, b"{}")
    found = list(SpoolReader(data).frames())
    assert found[-1].kind == "end"
    for frame in found:
        assert frame.kind != DAMAGED
        if frame.kind == "rows":
            frame.columns.validate(full=True)


@given(PIECES, st.integers(0, 10**9))
@settings(deadline=None, max_examples=150)
def test_a_payload_changed_at_random_with_a_right_checksum_is_read_without_an_error(
    pieces: list[list[tuple[Any, ...]]], seed: int
) -> None:
    spool = Spool(pieces)
    rng = random.Random(seed)
    number = rng.randrange(len(spool.frames))
    kind, payload = spool.frames[number][4], bytearray(spool.frames[number][layout.FRAME_HEAD.size :])
    for _ in range(rng.randrange(1, 4)):
        if payload:
            payload[rng.randrange(len(payload))] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
    spool.frames[number] = layout.frame(kind, bytes(payload))
    for frame in SpoolReader(b"".join(spool.frames)).frames():
        assert frame.kind != DAMAGED
        if frame.kind == "rows":
            frame.columns.validate(full=True)


@pytest.mark.parametrize("rows", [layout.MAX_ROWS + 1, (1 << 32) - 1])
def test_rows_without_bytes_do_not_become_memory(rows: int) -> None:
    head = layout.ROWS_HEAD.pack(0, 0, rows, 1, 0, 0)
    data = shape_frame(columns=("tokens",)) + layout.frame(layout.ROWS, head + layout.COLUMN_HEAD.pack(0, 0))
    assert [frame.kind for frame in SpoolReader(data).frames()] == [UNDECODABLE]


def test_members_without_bytes_do_not_become_memory() -> None:
    lengths = struct.pack("<3i", 1 << 30, 1 << 30, 1 << 30) + 5 * layout.COLUMN_HEAD.pack(layout.NULL, 0)
    column = layout.COLUMN_HEAD.pack(layout.MEMBERS, len(lengths)) + lengths
    data = shape_frame(columns=("members",)) + layout.frame(
        layout.ROWS, layout.ROWS_HEAD.pack(0, 0, 3, 1, 0, 0) + column
    )
    assert [frame.kind for frame in SpoolReader(data).frames()] == [UNDECODABLE]


def test_a_gap_of_texts_does_not_become_memory() -> None:
    words = layout.frame(layout.WORDS, layout.WORDS_HEAD.pack(0, (1 << 32) - 2, 1) + b"\1\0\0\0a")
    assert [frame.kind for frame in SpoolReader(words).frames()] == [UNDECODABLE]


@given(
    st.lists(st.tuples(st.just(0), *[ANY | st.just(b"x") | st.just([1])] * 5, ANY | members()), max_size=6)
)
@settings(deadline=None, max_examples=50)
def test_whether_a_row_can_be_written_does_not_depend_on_its_neighbours(rows: list[tuple[Any, ...]]) -> None:
    good = [row for row in rows if encodable(COLUMNS, row)]
    if good:
        payload = rows_payload(0, COLUMNS, good, Texts(), 0, 0)
        assert layout.ROWS_HEAD.unpack_from(payload)[2] == len(good)


def test_no_text_can_pass_for_a_frame() -> None:
    with pytest.raises(UnicodeDecodeError):
        layout.MAGIC[:1].decode()


@pytest.mark.parametrize("length", [1 << 20, layout.MAX_PAYLOAD_BYTES + 1, (1 << 32) - 1])
def test_a_length_that_cannot_be_is_damage_and_not_memory(length: int) -> None:
    head = struct.pack("<4sBII", layout.MAGIC, layout.ROWS, length, 0)
    data = head + layout.frame(layout.HEADER, b"{}")
    assert [frame.kind for frame in SpoolReader(data).frames()] == [DAMAGED, "header"]
