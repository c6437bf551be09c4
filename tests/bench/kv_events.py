"""How many block rows a CPU second gives out of KV events, of one process, against the obvious way.

    python tests/bench/kv_events.py [rows]

The recording is drawn as a busy vLLM publishes: half of its rows are blocks of prompts (one event of many
blocks), a quarter are blocks that decoding filled, a quarter evictions (an event a block); 16 tokens a block.
The obvious way is a msgspec loop that makes a dict a block, and polars of all of them: it has no token
digests, no sequence gaps and no unknown fields. Numbers are printed, never asserted.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl
from kvtrace.sources import vllm_kv_events
from kvtrace.sources.decoded import Options
from kvtrace.sources.stream import Limits, open_input
from kvtrace.sources.vllm_kv_events.wire import messages, pack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BLOCK = 16
PROMPT_BLOCKS = 32
TIME_S = 1_795_963_408.0


def stored(rng: random.Random, hashes: list[int], parent: int | None, *, tokens: bool) -> dict[str, Any]:
    """An event as vLLM 0.32 encodes it."""
    ids = [rng.randrange(128_000) for _ in range(BLOCK * len(hashes))] if tokens else []
    return {
        "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": ids,
        "block_size": BLOCK, "lora_id": None, "medium": "GPU", "lora_name": None,
        "extra_keys": [None] * len(hashes), "group_idx": 0, "kv_cache_spec_kind": "full_attention",
    }  # fmt: skip


def batches(rows: int, *, tokens: bool) -> Iterator[list[Any]]:
    """Batches of one engine step: a prompt, and as many single blocks that came and went."""
    rng = random.Random(7)
    for step in range(rows // (2 * PROMPT_BLOCKS)):
        prompt = [rng.getrandbits(64) for _ in range(PROMPT_BLOCKS)]
        events = [stored(rng, prompt, None, tokens=tokens)]
        for _ in range(PROMPT_BLOCKS // 2):
            events.append(stored(rng, [rng.getrandbits(64)], prompt[-1], tokens=tokens))
            removed = {"type": "BlockRemoved", "block_hashes": [rng.getrandbits(64)], "medium": "GPU"}
            events.append(removed | {"group_idx": 0})
        yield [TIME_S + step * 0.01, events, 0]


def wire(path: Path, rows: int, *, tokens: bool, positional: bool = False) -> None:
    """A recording of the wire."""
    with path.open("wb") as file:
        for number, (at, events, rank) in enumerate(batches(rows, tokens=tokens)):
            sent = [list(event.values()) for event in events] if positional else events
            file.write(pack("", number, msgspec.msgpack.encode([at, sent, rank])))


def text(path: Path, rows: int) -> None:
    """A recording as JSON lines, token ids replaced by their number."""
    with path.open("w") as file:
        for number, (at, events, rank) in enumerate(batches(rows, tokens=False)):
            for event in events:
                event.pop("token_ids", None)
            line = {"topic": "", "seq": number, "ts": at, "data_parallel_rank": rank, "events": events}
            file.write(json.dumps(line) + "\n")


def ours(path: Path) -> int:
    """Rows by kvtrace's decoder."""
    with open_input(path) as stream:
        parts = vllm_kv_events.read(stream, path.name, Options(digest_key=b"bench"))
        return sum(part.tables["block"].height for part in parts)


def plain(path: Path) -> int:
    """Rows by a plain loop."""
    with open_input(path) as stream:
        if path.suffix == ".jsonl":
            found = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
            sent = [(line["seq"], line["ts"], line["events"]) for line in found]
        else:
            whole = [item for part in messages(stream, Limits(), framed=False) for item in part]  # type: ignore[union-attr]
            read = [(item.sequence, msgspec.msgpack.decode(item.payload)) for item in whole]
            sent = [(number, batch[0], batch[1]) for number, batch in read]
    rows = []
    for number, at, events in sent:
        for event in events:
            fields = event if isinstance(event, dict) else {"type": event[0], "block_hashes": event[1]}
            parent = fields.get("parent_block_hash")
            for block in fields["block_hashes"]:
                rows.append(
                    {
                        "time_ns": int(at * 1e9), "event": fields["type"], "key": f"{block:016x}",
                        "parent_key": None if parent is None else f"{parent:016x}",
                        "tokens": fields.get("block_size"), "medium_raw": fields.get("medium"),
                        "object_group": fields.get("group_idx"), "seq": number,
                    }
                )  # fmt: skip
                parent = block
    return pl.DataFrame(rows, infer_schema_length=None).height


def rate(work: Callable[[Path], int], path: Path) -> float:
    """Rows a CPU second, the best of three."""
    best = 0.0
    for _ in range(3):
        began = time.process_time()
        rows = work(path)
        best = max(best, rows / (time.process_time() - began))
    return best


def main(rows: int) -> None:
    """Print the rates."""
    with tempfile.TemporaryDirectory() as folder:
        files = {
            "msgpack, token ids": Path(folder) / "tokens.bin",
            "msgpack, no token ids": Path(folder) / "bare.bin",
            "msgpack, positional arrays": Path(folder) / "arrays.bin",
            "JSON lines": Path(folder) / "lines.jsonl",
        }
        wire(files["msgpack, token ids"], rows, tokens=True)
        wire(files["msgpack, no token ids"], rows, tokens=False)
        wire(files["msgpack, positional arrays"], rows, tokens=True, positional=True)
        text(files["JSON lines"], rows)
        for name, path in files.items():
            own, other = rate(ours, path), rate(plain, path)
            print(
                f"{name:28} {path.stat().st_size / 1e6:7.1f} MB  {own:10,.0f} rows/s  "
                f"plain loop {other:10,.0f} rows/s  x{own / other:.1f}"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300_000)
