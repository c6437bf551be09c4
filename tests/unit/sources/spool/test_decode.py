"""Frames of a spool that grows, that is damaged, and of every type of column."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from kvtrace.recorder.encoding import Texts, rows_payload
from kvtrace.schema import frames as layout
from kvtrace.schema.tables import TABLES
from kvtrace.sources.spool.decode import DAMAGED, UNDECODABLE, SpoolReader, together
from kvtrace.sources.spool.frame import column_type

if TYPE_CHECKING:
    from pathlib import Path

HEADER = layout.frame(layout.HEADER, b'{"pid": 7}')


def shape(
    number: int, columns: tuple[str, ...], table: str = "span", part: str = "whole", **constants: Any
) -> bytes:
    content = {"number": number, "table": table, "part": part, "columns": columns, "constants": constants}
    return layout.frame(layout.SHAPE, json.dumps(content).encode())


class Pieces:
    """Rows of two columns, a piece a frame, in one epoch."""

    def __init__(self) -> None:
        self.texts = Texts()
        self.count = 0

    def __call__(self, *values: tuple[int, str], number: int = 0) -> bytes:
        rows = [(number, *value) for value in values]
        payload = rows_payload(number, ("tokens", "request_id"), rows, self.texts, self.count, 9)
        self.count += len(rows)
        return self.texts.frame() + layout.frame(layout.ROWS, payload)


def tokens(reader: SpoolReader, **options: Any) -> list[int]:
    frames = reader.frames(reader.position, **options)
    return [row["tokens"] for frame in frames if frame.kind == "rows" for row in frame.columns.to_pylist()]


@pytest.fixture
def pieces() -> Pieces:
    return Pieces()


def test_a_growing_file_is_followed_frame_by_frame(tmp_path: Path, pieces: Pieces) -> None:
    path = tmp_path / "one"
    data = HEADER + shape(0, ("tokens", "request_id")) + pieces((1, "a"), (2, "b")) + pieces((3, "a"))
    cut = len(data) - 5
    path.write_bytes(data[:cut])
    reader = SpoolReader(path)
    assert tokens(reader) == [1, 2]
    assert reader.header == {"pid": 7}
    assert reader.torn > 0
    assert tokens(reader) == []
    with path.open("ab") as file:
        file.write(data[cut:] + pieces((4, "c")))
    assert tokens(reader) == [3, 4]
    assert reader.torn == 0
    assert reader.position == path.stat().st_size


@pytest.mark.parametrize("kept", [0, 5, 14, 40])
def test_a_file_that_became_shorter_while_it_was_read_ends_there(
    tmp_path: Path, pieces: Pieces, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "one"
    first = HEADER + shape(0, ("tokens", "request_id")) + pieces((1, "a"))
    data = first + pieces((2, "b"))
    path.write_bytes(data)
    reader = SpoolReader(path)
    real = reader._source.size

    def size() -> int:
        found = real()
        path.write_bytes(data[: len(first) + kept])
        return found

    monkeypatch.setattr(reader._source, "size", size)
    assert tokens(reader) == [1]
    assert reader.torn > 0
    monkeypatch.undo()
    path.write_bytes(data)
    assert tokens(reader) == [2]


def test_a_file_is_read_in_parts_that_end_with_a_frame(pieces: Pieces) -> None:
    data = HEADER + shape(0, ("tokens", "request_id")) + b"".join(pieces((n, f"r{n}")) for n in range(50))
    reader = SpoolReader(data)
    found = []
    while reader.position < len(data):
        before = reader.position
        found += tokens(reader, most_bytes=200)
        assert before < reader.position < before + 200 + 200
    assert found == list(range(50))


def test_a_file_larger_than_a_block_is_read_whole(
    tmp_path: Path, pieces: Pieces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvtrace.sources.spool.source.BLOCK_BYTES", 64)
    path = tmp_path / "one"
    path.write_bytes(
        HEADER + shape(0, ("tokens", "request_id")) + b"".join(pieces((n, f"r{n}")) for n in range(20))
        + b"x" * 300 + b"".join(pieces((n, f"r{n}")) for n in range(20, 30))
    )  # fmt: skip
    assert tokens(SpoolReader(path)) == list(range(30))


def test_a_text_lost_with_its_frame_makes_rows_undecodable_and_never_null(pieces: Pieces) -> None:
    first, lost, needs = pieces((1, "a")), pieces((2, "b")), pieces((3, "b"), (4, "a"))
    other, later = pieces((5, "a"), (6, "c")), pieces((7, "b"))
    broken = bytearray(lost)
    broken[20] ^= 1
    data = HEADER + shape(0, ("tokens", "request_id")) + first + bytes(broken) + needs + other + later
    found = list(SpoolReader(data).frames())
    kinds = ["header", "rows", DAMAGED, UNDECODABLE, UNDECODABLE, "rows", UNDECODABLE]
    assert [frame.kind for frame in found] == kinds
    assert [frame.rows for frame in found] == [0, 1, 0, 1, 2, 2, 1]
    rows = [row for frame in found if frame.kind == "rows" for row in frame.columns.to_pylist()]
    assert [row["request_id"] for row in rows] == ["a", "a", "c"]


def test_rows_of_an_epoch_whose_texts_were_lost_are_undecodable(pieces: Pieces) -> None:
    first = pieces((1, "a"))
    pieces.texts.next_epoch()
    words, rows = pieces((2, "b")), pieces((3, "b"))
    data = HEADER + shape(0, ("tokens", "request_id")) + first + rows
    assert [frame.kind for frame in SpoolReader(data).frames()] == ["header", "rows", UNDECODABLE]
    data = HEADER + shape(0, ("tokens", "request_id")) + first + words + rows
    assert tokens(SpoolReader(data)) == [1, 2, 3]


def test_rows_of_a_shape_that_was_lost_are_undecodable(pieces: Pieces) -> None:
    data = HEADER + shape(1, ("tokens", "request_id")) + pieces((1, "a")) + pieces((2, "a"), number=1)
    assert [frame.kind for frame in SpoolReader(data).frames()] == ["header", UNDECODABLE, "rows"]


def test_going_on_after_damage_reads_what_was_read_the_first_time(pieces: Pieces) -> None:
    """A frame whose length was hit leads into the middle of another; what it led past is not skipped."""
    frames = [HEADER, shape(0, ("tokens", "request_id"))] + [
        pieces((n, f"r{n}"), (n, "x")) for n in range(20)
    ]
    broken = bytearray(b"".join(frames[:5]))
    at = broken.rindex(layout.MAGIC)
    (length,) = layout.struct.unpack_from("<I", broken, at + 5)
    layout.struct.pack_into("<I", broken, at + 5, length + 700)
    data = bytes(broken) + b"".join(frames[5:])
    whole = list(SpoolReader(data).frames())
    assert [frame.kind for frame in whole].count(DAMAGED) == 1
    for frame in whole[4:]:
        again = list(SpoolReader(data).frames(frame.start))
        assert [(f.kind, f.start) for f in again] == [
            (f.kind, f.start) for f in whole if f.start >= frame.start
        ]


@pytest.mark.parametrize("table", sorted(TABLES))
def test_every_column_comes_in_the_type_of_its_table(table: str) -> None:
    columns = tuple(c.name for c in TABLES[table] if not c.type.startswith("map"))
    values = {"string": "text", "float64": 1.5, "list<member>": (["r"], ["decode"], [1], [1], [5])}
    row = (0, *(values.get(column_type(table, name), 7) for name in columns))
    texts = Texts()
    payload = rows_payload(0, columns, [row, (0, *[None] * len(columns))], texts, 0, 0)
    data = shape(0, columns, table) + texts.frame() + layout.frame(layout.ROWS, payload)
    (batch,) = together(SpoolReader(data).frames())
    for name in columns:
        kind, found = column_type(table, name), batch.columns[name]
        assert found.null_count == 1, name
        if kind == "string":
            assert found.type == pa.dictionary(pa.int32(), pa.string())
        elif kind == "list<member>":
            assert found.to_pylist() == [
                [{"request_id": "r", "phase": "decode", "scheduled_tokens": 1}
                 | {"output_tokens": 1, "computed_before": 5}], None,
            ]  # fmt: skip
        else:
            assert str(found.type).replace("double", "float64") == kind
            assert found.to_pylist() == [values.get(kind, 7), None]


def test_columns_of_no_table_are_text_and_tiers_are_numbers() -> None:
    columns = ("attributes.a", "no_such_column", "found_by_tier.host")
    texts = Texts()
    payload = rows_payload(0, columns, [(0, 1.5, 7, 3), (0, None, None, None)], texts, 0, 0)
    data = shape(0, columns, evidence="shim", attempt=1, **{"attributes.b": 5}) + texts.frame()
    (batch,) = together(SpoolReader(data + layout.frame(layout.ROWS, payload)).frames())
    constants = {"evidence": "shim", "attempt": 1, "attributes.b": "5"}
    assert batch.columns.to_pylist() == [
        {"attributes.a": "1.5", "no_such_column": "7", "found_by_tier.host": 3, **constants},
        {"attributes.a": None, "no_such_column": None, "found_by_tier.host": None, **constants},
    ]


def test_frames_of_one_shape_are_one_batch_over_epochs_and_kinds_of_values(pieces: Pieces) -> None:
    first = pieces((1, "a"), (2, "b"))
    rows = rows_payload(0, ("tokens", "request_id"), [(0, None, "b"), (0, "x", "d")], pieces.texts, 2, 0)
    pieces.count += 2
    second = pieces.texts.frame() + layout.frame(layout.ROWS, rows)
    pieces.texts.next_epoch()
    third = shape(0, ("tokens", "request_id")) + pieces((5, "c"), (6, "a"))
    data = HEADER + shape(0, ("tokens", "request_id")) + first + second + third
    (batch,) = together(SpoolReader(data).frames())
    assert batch.columns["tokens"].to_pylist() == [1, 2, None, None, 5, 6]
    assert batch.columns["request_id"].to_pylist() == ["a", "b", "b", "d", "c", "a"]
    assert batch.numbers.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("column", "value", "found"),
    [
        ("span_id", -1, None), ("tokens", 1.5, None), ("tokens", 2.0, 2), ("tokens", 1e300, None),
        ("bucket", 255, 255), ("bucket", 256, None), ("tokens", "12", 12), ("tokens", "twelve", None),
        ("span_id", 1 << 64, None),
        ("tokens", True, 1), ("request_id", 12, "12"), ("request_id", float("nan"), "nan"),
    ],
)  # fmt: skip
def test_a_value_that_its_column_cannot_hold_is_null(column: str, value: Any, found: Any) -> None:
    texts = Texts()
    payload = rows_payload(0, (column,), [(0, value), (0, None)], texts, 0, 0)
    data = shape(0, (column,)) + texts.frame() + layout.frame(layout.ROWS, payload)
    (batch,) = together(SpoolReader(data).frames())
    assert batch.columns[column].to_pylist() == [found, None]
