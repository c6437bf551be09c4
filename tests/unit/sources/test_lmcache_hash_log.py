"""LMCache's lookup-hash log: which keys a request asked for."""

from __future__ import annotations

import json

import pytest
from kvtrace.sources.lmcache_hash_log import decode, looks_like
from tests.unit.importer.drawn import INTERNAL, MS, hash_log


def line(**changed: object) -> bytes:
    found = json.loads(hash_log((INTERNAL, 12, 2)))
    return json.dumps({key: value for key, value in (found | changed).items() if value is not None}).encode()


def test_a_line_is_a_row_a_chunk_in_prompt_order() -> None:
    found = decode([line(chunk_hashes=["0xaa", "bb"])], "log")
    assert found.asked == ((INTERNAL, 12 * MS),)
    assert [(row["position"], row["key"], row["tokens"]) for row in found.keys] == [
        (0, "aa", 256), (1, "bb", 256),
    ]  # fmt: skip
    assert {row["key_space"] for row in found.keys} == {"lmcache:unknown:tiny-llama"}
    assert {(row["request_id"], row["time_ns"], row["source"]) for row in found.keys} == {
        (INTERNAL, 12 * MS, "log")
    }
    assert found.losses == ()


def test_the_identity_that_the_keys_assume_is_said_once() -> None:
    found = decode([line(), line(), line(model_name="other")], "log")
    assert {(row["identity_id"], row["field"], row["value"]) for row in found.identities} == {
        ("lmcache:unknown:tiny-llama:256", "model", "tiny-llama"),
        ("lmcache:unknown:tiny-llama:256", "chunk_size", "256"),
        ("lmcache:unknown:tiny-llama:256", "dtype", "bfloat16"),
        ("lmcache:unknown:other:256", "model", "other"),
        ("lmcache:unknown:other:256", "chunk_size", "256"),
        ("lmcache:unknown:other:256", "dtype", "bfloat16"),
    }
    assert len(found.identities) == 6


@pytest.mark.parametrize(
    "bad",
    [
        b"not json",
        line()[:-20],
        line(timestamp=0),
        line(timestamp=-1),
        line(timestamp=1e300),
        line(timestamp=9.3e9),
        line(request_id=None),
        line(chunk_hashes="0xaa"),
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_a_line_that_is_no_lookup_is_counted(bad: bytes) -> None:
    found = decode([bad, line(), b"", b"  "], "log")
    assert [(loss.cause, loss.op, loss.count) for loss in found.losses] == [("undecodable", "lookup", 1)]
    assert len(found.asked) == 1


def test_fields_that_a_later_version_adds_change_nothing() -> None:
    assert decode([line(novelty={"a": [1]})], "log") == decode([line()], "log")


@pytest.mark.parametrize(
    ("head", "is_log"),
    [
        (line(), True),
        (b" " + line() + b"\n{", True),
        (b'{"resourceSpans":[]}', False),
        (b"", False),
        (b"\0\0", False),
    ],
)
def test_a_log_is_known_by_its_first_line(head: bytes, is_log: bool) -> None:  # noqa: FBT001 - a parameter of the table
    assert looks_like(head) is is_log


@pytest.mark.parametrize("size", [0, -256, 2**63])
def test_a_chunk_size_that_cannot_be_is_a_loss(size: int) -> None:
    line = {
        "timestamp": 1.0,
        "request_id": "r",
        "model_name": "m",
        "chunk_size": size,
        "seq_len": 1,
        "chunk_hashes": ["0xa"],
    }
    found = decode([json.dumps(line).encode()], "log")
    assert (found.keys, [loss.count for loss in found.losses]) == ((), [1])
