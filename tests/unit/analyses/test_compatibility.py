"""Who read what an engine of another kind wrote; identity_rows.py draws the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kvtrace.analyses.compatibility import COLUMNS, compatibility
from kvtrace.analyses.lock_contract import COLUMNS as CONTRACT
from tests.rows import write_run
from tests.unit.analyses.identity_rows import (
    Row,
    S,
    drawn,
    keys,
    load,
    lookup,
    produced,
    reused,
    said,
    span,
    store,
    written,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_the_columns_are_those_of_the_lock_contract_and_what_differs() -> None:
    assert tuple(COLUMNS) == (*CONTRACT, "field", "writer", "reader", "tokens", "enforced_by")


def test_an_empty_run_has_nothing_to_compare(tmp_path: Path) -> None:
    found = compatibility(write_run(tmp_path / "run"))
    assert set(found["status"]) == {"not_applicable"}


def test_a_read_across_a_dtype_that_nobody_compares_is_a_violation(tmp_path: Path) -> None:
    sides = [*said("a", dtype="bfloat16", model="m"), *said("b", dtype="torch.float16", model="m")]
    (row,) = drawn(tmp_path, produced(), reused(), identity=sides)["read_as_written"]
    assert (row["status"], row["severity"], row["field"]) == ("violated", "warning", "dtype")
    assert (row["writer"], row["reader"], row["enforced_by"]) == ("bfloat16", "torch.float16", "nobody")
    assert (row["request_id"], row["key"], row["time_ns"], row["tokens"]) == ("r1", "k0", 6 * S, 128)
    assert row["detail"] == (
        "2 keys written by a with dtype bfloat16 and read by b with torch.float16; neither the key nor the "
        "backend looks at it"
    )


@pytest.mark.parametrize("field", ["lora", "kv_cache_layout", "revision", "tokenizer", "rope_theta"])
def test_lmcache_looks_at_none_of_these(tmp_path: Path, field: str) -> None:
    sides = [*said("a", "key", **{field: "x"}), *said("b", "key", **{field: "y"})]
    (row,) = drawn(tmp_path, produced(), reused(), identity=sides)["read_as_written"]
    assert (row["field"], row["enforced_by"]) == (field, "nobody")


@pytest.mark.parametrize("field", ["hash_seed", "hash_algorithm", "block_size"])
def test_how_vllm_hashes_its_own_blocks_is_nothing_to_lmcache(tmp_path: Path, field: str) -> None:
    sides = [*said("a", model="m", **{field: "1"}), *said("b", model="m", **{field: "2"})]
    (row,) = drawn(tmp_path, produced(), reused(), identity=sides)["read_as_written"]
    assert row["status"] == "pass"


def test_a_dtype_of_the_cache_that_is_automatic_is_the_models(tmp_path: Path) -> None:
    sides = [*said("a", dtype="bfloat16", kv_cache_dtype="auto"),
             *said("b", dtype="bfloat16", kv_cache_dtype="bfloat16")]  # fmt: skip
    (row,) = drawn(tmp_path, produced(), reused(), identity=sides)["read_as_written"]
    assert row["status"] == "pass"


def test_what_is_told_a_request_is_not_compared(tmp_path: Path) -> None:
    sides = [*said("a", model="m", lora="per request"), *said("b", model="m", lora="none")]
    (row,) = drawn(tmp_path, produced(), reused(), identity=sides)["read_as_written"]
    assert row["status"] == "pass"


def test_a_read_is_of_the_last_write_before_it(tmp_path: Path) -> None:
    again = {
        "span": [store("r2", "b", 3)],
        "request_key": keys("r2", 3, "k0", "k1"),
        "block": written(3.5, "k0", "k1"),
    }
    later = {
        "span": [store("r2", "b", 8)],
        "request_key": keys("r2", 8, "k0", "k1"),
        "block": written(8.5, "k0", "k1"),
    }
    sides = [*said("a", dtype="bfloat16"), *said("b", dtype="float16")]
    (row,) = drawn(tmp_path / "own", produced(), again, reused(), identity=sides)["read_as_written"]
    assert (row["status"], row["detail"]) == ("pass", "2 reads of state whose writer's kind is the reader's")
    (row,) = drawn(tmp_path / "late", produced(), later, reused(), identity=sides)["read_as_written"]
    assert row["status"] == "violated"


def test_what_the_key_keeps_apart_was_not_read(tmp_path: Path) -> None:
    """Of TP 2 the chunk's hash is the same and the key another: what b read is what b wrote, long ago."""
    other = {
        "span": [store("r2", "a", 3)],
        "request_key": keys("r2", 3, "k0", "k1"),
        "block": written(3.5, "k0", "k1"),
    }
    sides = [*said("a", dtype="x", tensor_parallel_size="2", pipeline_parallel_size="1"),
             *said("b", dtype="y", tensor_parallel_size="1", pipeline_parallel_size="1")]  # fmt: skip
    (row,) = drawn(tmp_path, produced("b"), other, reused(), identity=sides)["read_as_written"]
    assert row["status"] == "pass"


def test_two_degrees_of_one_world_size_are_one_key(tmp_path: Path) -> None:
    sides = [*said("a", tensor_parallel_size="2", pipeline_parallel_size="1"),
             *said("b", tensor_parallel_size="1", pipeline_parallel_size="2")]  # fmt: skip
    rows = drawn(tmp_path, produced(), reused(), identity=sides)["read_as_written"]
    assert [(row["field"], row["enforced_by"]) for row in rows] == [
        ("pipeline_parallel_size", "nobody"), ("tensor_parallel_size", "nobody"),
    ]  # fmt: skip


def test_of_a_product_nobody_knows_its_own_word_counts(tmp_path: Path) -> None:
    sides = [*said("a", "backend", serde="x"), *said("b", "backend", serde="y")]
    part = produced()
    part["block"] = written(1.5, "k0", "k1", component="other.l2", key_space="other:h:m")
    asks = keys("r0", 0.5, "k0", "k1", space="other:h:m") + keys("r1", 5, "k0", "k1", space="other:h:m")
    spans = [*part["span"], lookup("r1", "b", 5, 128), load("r1", "b", 6, 128)]
    (row,) = drawn(tmp_path, span=spans, request_key=asks, block=part["block"], identity=sides)[
        "read_as_written"
    ]
    assert (row["status"], row["enforced_by"]) == ("violated", "backend")


def test_only_what_was_loaded_was_read(tmp_path: Path) -> None:
    part = reused()
    part["span"] = [lookup("r1", "b", 5, 128), load("r1", "b", 6, 64)]
    sides = [*said("a", dtype="bfloat16"), *said("b", dtype="float16")]
    (row,) = drawn(tmp_path, produced(), part, identity=sides)["read_as_written"]
    assert (row["key"], row["tokens"]) == ("k1", 64)


def handed(*prefills: str) -> list[Row]:
    """Engines that prefilled for one user, and b, which decodes from what it was handed."""
    users = [("p" + engine, engine) for engine in prefills] + [("d", "b")]
    asks = [span("request", name, engine, 1, 9, user_request_id="u") for name, engine in users]
    return [*asks, load("d", "b", 3, 512, purpose="handoff", tier_from="peer", component="nixl")]


def test_a_handoff_is_compared_by_its_user_and_nixls_handshake_would_have_refused_it(tmp_path: Path) -> None:
    sides = [*said("a", kv_cache_layout="NHD", dtype="x", revision="x"),
             *said("b", kv_cache_layout="HND", dtype="y", revision="y")]  # fmt: skip
    rows = drawn(tmp_path, span=handed("a"), identity=sides)["read_as_written"]
    assert [(row["field"], row["enforced_by"], row["tokens"]) for row in rows] == [
        ("dtype", "backend", 512), ("revision", "nobody", 512),
    ]  # fmt: skip
    assert rows[0]["detail"] == (
        "1 handoff of state written by a with dtype x and read by b with y; the backend compares it, and "
        "should have stopped that"
    )


def test_a_handoff_that_two_engines_could_have_given_is_nobodys(tmp_path: Path) -> None:
    sides = [row for name, value in (("a", "x"), ("b", "y"), ("c", "x")) for row in said(name, dtype=value)]
    (row,) = drawn(tmp_path, span=handed("a", "c"), identity=sides)["read_as_written"]
    assert (row["status"], row["detail"]) == ("unobserved", "1 read, and of none both sides are known")


def test_engines_that_do_not_say_what_they_are_cannot_be_compared(tmp_path: Path) -> None:
    (row,) = drawn(tmp_path / "none", produced(), reused())["read_as_written"]
    assert (row["status"], row["detail"]) == ("unobserved", "2 reads, and of none both sides are known")
    apart = [*said("a", dtype="x", block_size="16"), *said("b", tokenizer="x", block_size="32")]
    (row,) = drawn(tmp_path / "other", produced(), reused(), identity=apart)["read_as_written"]
    assert row["status"] == "unobserved"
    (row,) = drawn(tmp_path / "part", produced(), reused(), reused("a", "r2", 8))["read_as_written"]
    assert row["status"] == "inconclusive"
    assert row["detail"].endswith("; 2 reads between engines that did not say what their state is")


def test_stores_of_two_engines_at_once_name_no_writer(tmp_path: Path) -> None:
    at_once = {
        "span": [lookup("r2", "c", 0.5, 0), store("r2", "c", 1)],
        "request_key": keys("r2", 0.5, "k0", "k1"),
    }
    sides = [*said("a", dtype="x"), *said("b", dtype="y"), *said("c", dtype="z")]
    (row,) = drawn(tmp_path, produced(), at_once, reused(), identity=sides)["read_as_written"]
    assert row["status"] == "unobserved"


def test_an_engine_that_says_two_things_of_itself_decides_nothing(tmp_path: Path) -> None:
    sides = [*said("a", dtype="x", model="m"), *said("b", dtype="x", model="m"), *said("b", dtype="y")]
    (row,) = drawn(tmp_path, produced(), reused(), identity=sides)["read_as_written"]
    assert (row["status"], row["detail"].rpartition("; ")[2]) == (
        "inconclusive",
        "b told dtype as x and as y",
    )


def test_with_losses_nothing_passes_and_what_differs_is_still_told(tmp_path: Path) -> None:
    lost = [{"cause": "dropped", "op": "store", "count": 3}]
    (row,) = drawn(tmp_path / "own", produced(), reused("a"), identity=said("a", dtype="x"), loss=lost)[
        "read_as_written"
    ]
    assert (row["status"], row["detail"][-17:]) == ("inconclusive", "3 records missing")
    sides = [*said("a", dtype="x"), *said("b", dtype="y")]
    (row,) = drawn(tmp_path / "two", produced(), reused(), identity=sides, loss=lost)["read_as_written"]
    assert row["status"] == "violated"


def test_what_is_loaded_without_keys_is_unobserved(tmp_path: Path) -> None:
    (row,) = drawn(tmp_path, span=[load("r1", "b", 6, 128)])["read_as_written"]
    assert (row["status"], row["detail"]) == (
        "unobserved",
        "1 load, and which keys they read was not recorded",
    )


def test_keys_written_while_nobody_tells_what_was_found_are_unobserved(tmp_path: Path) -> None:
    part = produced()
    (row,) = drawn(tmp_path, block=part["block"], request_key=part["request_key"])["written_can_be_asked"]
    assert (row["status"], row["detail"]) == (
        "unobserved",
        "2 keys written; what was asked for and found was not recorded",
    )


BOTH = [*said("a", dtype="bfloat16", model="m"), *said("b", dtype="float16", model="m")]


def unsized(rows: list[Row], *places: int) -> list[Row]:
    """Keys of which nobody said how many tokens they are."""
    return [row | {"tokens": None} if row["position"] in places else row for row in rows]


def test_a_key_that_two_tell_is_one_key(tmp_path: Path) -> None:
    part = reused()
    part["request_key"] = [
        row | {"source": name} for name in ("log", "server") for row in part["request_key"]
    ]
    (row,) = drawn(tmp_path, produced(), part, identity=BOTH)["read_as_written"]
    assert (row["detail"].split(" written")[0], row["tokens"]) == ("2 keys", 128)


def test_the_names_that_another_maker_gave_the_same_tokens_take_none_of_what_was_found(
    tmp_path: Path,
) -> None:
    part = reused()
    others = keys("r1", 5, "a0", "a1", space="dynamo:engine:unknown")
    (row,) = drawn(tmp_path, produced(), part, request_key=others, identity=BOTH)["read_as_written"]
    assert (row["status"], row["field"], row["tokens"]) == ("violated", "dtype", 128)


def test_keys_of_no_known_size_may_have_been_read_and_nobody_knows(tmp_path: Path) -> None:
    part = reused()
    part["request_key"] = unsized(part["request_key"], 0, 1)
    (row,) = drawn(tmp_path / "all", produced(), part, identity=BOTH)["read_as_written"]
    assert row["status"] == "unobserved"
    part["request_key"] = unsized(reused()["request_key"], 1)
    (row,) = drawn(tmp_path / "one", produced(), part, identity=BOTH)["read_as_written"]
    assert (row["status"], row["key"], row["tokens"]) == ("violated", "k0", 64)
    alike = [*said("a", model="m"), *said("b", model="m")]
    (row,) = drawn(tmp_path / "alike", produced(), part, identity=alike)["read_as_written"]
    assert (row["status"], row["detail"].rpartition("; ")[2]) == (
        "inconclusive", "1 key that may have been read, of how many tokens is not known",
    )  # fmt: skip


def test_what_nothing_was_found_of_was_not_found_however_large(tmp_path: Path) -> None:
    asks = unsized(keys("r1", 5, "k0", "k1", space="lmcache:unknown:n"), 0, 1)
    (row,) = drawn(tmp_path, produced(), span=[lookup("r1", "b", 5, 0)], request_key=asks)[
        "written_can_be_asked"
    ]
    assert (row["status"], row["field"]) == ("violated", "model")


def test_a_key_that_may_have_been_found_is_neither_in_vain_nor_of_use(tmp_path: Path) -> None:
    vain = {
        "span": [lookup("r2", "b", 7, 0)],
        "request_key": keys("r2", 7, "k0", "k1", space="lmcache:unknown:n"),
    }
    found = reused()
    found["request_key"] = unsized(found["request_key"], 0, 1)
    (row,) = drawn(tmp_path / "two", produced(), found, vain)["written_can_be_asked"]
    assert (row["status"], row["detail"].rpartition("; ")[2]) == (
        "inconclusive", "whether 2 keys asked for had been found is not known",
    )  # fmt: skip
    only = found | {"block": written(1.5, "k0", "k1")}
    (row,) = drawn(tmp_path / "one", only)["written_can_be_asked"]
    assert row["status"] == "unobserved"


@pytest.mark.parametrize("first", ["a", "c"])
def test_a_key_that_two_wrote_at_one_instant_is_nobodys(tmp_path: Path, first: str) -> None:
    """Whose state lies there is not known, and no order of the rows decides it."""
    second = "c" if first == "a" else "a"
    blocks = [
        row for name in (first, second) for row in written(1.5, "k0", "k1", engine=name, process=f"{name}/1")
    ]
    sides = [*said("a", dtype="float16"), *said("c", dtype="bfloat16"), *said("b", dtype="bfloat16")]
    (row,) = drawn(tmp_path, reused(), block=blocks, identity=sides)["read_as_written"]
    assert (row["status"], row["detail"]) == ("unobserved", "2 reads, and of none both sides are known")


def test_what_only_another_key_was_written_for_was_written_before_the_records_began(tmp_path: Path) -> None:
    """The dtype is part of the key: what b read is what b wrote, and nobody saw it."""
    inside = "lmcache.inprocess.cpu"
    blocks = written(1.5, "k0", "k1", engine="a", process="a/1", component=inside)
    sides = [*said("a", kv_cache_dtype="fp8", model="m"), *said("b", kv_cache_dtype="bfloat16", model="m")]
    (row,) = drawn(tmp_path, reused(), block=blocks, identity=sides)["read_as_written"]
    assert (row["status"], row["detail"]) == ("unobserved", "2 reads, and of none both sides are known")
