"""How rows are held in memory."""

from __future__ import annotations

import pyarrow as pa
from kvtrace.sinks.parquet.arrow import CODED_MAP, WORD, with_used_texts


def test_a_part_of_a_table_holds_its_own_ids_and_attributes_alone() -> None:
    maps = [[("a", "1")], None, [], [("b", "2"), ("a", "3")], [("a", "2")]]
    ids = ["r1", "r2", None, "r2", "r3"]
    whole = pa.table({"request_id": pa.array(ids, WORD), "attributes": pa.array(maps, CODED_MAP)})
    for first in range(5):
        part = with_used_texts(whole.slice(first, 2))
        assert part.to_pylist() == whole.to_pylist()[first : first + 2]
        values = [value for row in maps[first : first + 2] for _, value in row or ()]
        assert part["attributes"].chunk(0).items.dictionary.to_pylist() == list(dict.fromkeys(values))
        names = [name for name in ids[first : first + 2] if name is not None]
        own = [name for name in part["request_id"].chunk(0).dictionary.to_pylist() if name is not None]
        assert own == list(dict.fromkeys(names))


def test_a_part_without_rows_stays_without_rows() -> None:
    empty = pa.table({"attributes": pa.array([], CODED_MAP)})
    assert with_used_texts(empty).to_pylist() == []
