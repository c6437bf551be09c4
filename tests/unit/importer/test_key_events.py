"""Key events of engines and of their published streams: each once, and of the right engine.

native e0   0:warm 1:a 2:b 3:c          e1   0:warm 1:x 2:y 3:z
file        0:warm 1:a 2:b 3:c 4:d      of e0: four are its own rows, the fifth becomes its own
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kvtrace.importer import import_files
from kvtrace.run import open_run
from tests.rows import write_run

if TYPE_CHECKING:
    from pathlib import Path

AT = 1_700_000_000
WARM = 7
SPACE = "vllm:sha256:m"


def native(engine: str, *keys: int, process: str | None = None) -> list[dict[str, Any]]:
    """One stored block a message, as the engine's own recording has it."""
    return [
        {"time_ns": (AT + n) * 1_000_000_000, "event": "stored", "tier": "gpu", "component": "vllm.gpu",
         "key_space": SPACE, "key": f"{key:016x}", "seq": n, "engine": engine, "process": process or engine,
         "evidence": "native"}
        for n, key in enumerate(keys)
    ]  # fmt: skip


def published(path: Path, *keys: int) -> Path:
    """The same as the engine publishes them."""
    events = ({"type": "BlockStored", "block_hashes": [key], "parent_block_hash": None, "token_ids": [],
               "block_size": 16, "medium": "GPU"} for key in keys)  # fmt: skip
    lines = ({"topic": "", "seq": n, "ts": AT + n + 0.25, "events": [one]} for n, one in enumerate(events))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def counted(tmp_path: Path, rows: list[dict[str, Any]], file: Path) -> list[tuple[Any, ...]]:
    run = write_run(tmp_path / "native", block=rows, span=[])
    report = import_files([run.path, file], tmp_path / "run")
    query = "SELECT engine, count(*) FROM block GROUP BY engine ORDER BY engine NULLS LAST"
    return open_run(report.run).sql(query).rows()


def test_a_stream_is_that_of_the_engine_that_has_most_of_it(tmp_path: Path) -> None:
    rows = native("e0", WARM, 1, 2, 3) + native("e1", WARM, 11, 12, 13)
    assert counted(tmp_path, rows, published(tmp_path / "kv.jsonl", WARM, 1, 2, 3, 4)) == [
        ("e0", 5),
        ("e1", 4),
    ]


def test_a_replica_that_began_with_the_same_prompt_is_not_that_engine(tmp_path: Path) -> None:
    """Only the warm-up is equal: all its events count, and they are nobody's that is known."""
    file = published(tmp_path / "kv.jsonl", WARM, 11, 12, 13)
    assert counted(tmp_path, native("e0", WARM, 1, 2, 3), file) == [("e0", 4), (None, 4)]


def test_a_clearing_at_the_same_number_makes_no_two_streams_one(tmp_path: Path) -> None:
    rows = native("e0", 1, 2, 3)
    rows.append({**rows[0], "event": "cleared", "key": None, "seq": 3})
    file = published(tmp_path / "kv.jsonl", 11, 12, 13)
    cleared = {"topic": "", "seq": 3, "ts": AT + 3, "events": [{"type": "AllBlocksCleared"}]}
    file.write_text(file.read_text() + json.dumps(cleared) + "\n")
    assert counted(tmp_path, rows, file) == [("e0", 4), (None, 4)]


def test_what_an_engine_did_not_record_itself_is_counted_from_its_stream(tmp_path: Path) -> None:
    """e0 lost its warm-up, e1 has the like: it is still an event of e0."""
    rows = native("e0", WARM, 1, 2, 3)[1:] + native("e1", WARM, 11, 12, 13)
    assert counted(tmp_path, rows, published(tmp_path / "kv.jsonl", WARM, 1, 2, 3)) == [("e0", 4), ("e1", 4)]
