"""Who read what another kind of engine wrote, and what was written under a name nobody asks for. Seconds.

r0 on a: asks k, misses, stores  |--[1 ===== 2]|          the server writes k at 1.5
r1 on b: asks k, finds, loads                  |--[6 == 7]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses.compatibility import COLUMNS, compatibility, invariants
from kvtrace.analyses.lock_contract import COLUMNS as CONTRACT
from tests.rows import write_run

if TYPE_CHECKING:
    from pathlib import Path

S = 1_000_000_000
SPACE = "lmcache:unknown:m"
Row = dict[str, Any]
SERVER = {"process": "l0", "engine": "l0", "role": "server", "product": "lmcache"}


def said(name: str, told: str | None = None, **fields: str) -> list[Row]:
    """An identity, alike on both sides."""
    row = {"identity_id": name, "source": "VllmConfig", "enforced_by": told}
    return [
        row | {"side": side, "field": field, "value": value}
        for side in ("writer", "reader")
        for field, value in fields.items()
    ]


def keys(request: str, at: float, *names: str, space: str = SPACE, size: int = 64) -> list[Row]:
    row: Row = {
        "request_id": request,
        "key_space": space,
        "tokens": size,
        "time_ns": round(at * S),
        "attempt": 1,
    }
    return [row | {"position": place, "key": name} for place, name in enumerate(names)]


def span(op: str, request: str, engine: str, at: float, end: float, **more: Any) -> Row:
    row: Row = {
        "op": op,
        "request_id": request,
        "engine": engine,
        "process": f"{engine}/1",
        "evidence": "shim",
    }
    row |= {"start_ns": round(at * S), "end_ns": round(end * S), "observer": "scheduler", "outcome": "ok"}
    return row | {"span_id": hash((op, request, engine, at)) % 2**63} | more


def lookup(request: str, engine: str, at: float, found: int, asked: int = 128, **more: Any) -> Row:
    return span("lookup", request, engine, at, at + 0.1, found_tokens=found, requested_tokens=asked,
                component="lmcache", **more)  # fmt: skip


def store(request: str, engine: str, at: float, **more: Any) -> Row:
    return span("store", request, engine, at, at + 1, tier_from="gpu", tier_to="host", observer="client",
                component="lmcache", **more)  # fmt: skip


def load(request: str, engine: str, at: float, tokens: int | None = None, **more: Any) -> Row:
    return span("load", request, engine, at, at + 1, tier_from="host", tier_to="gpu", tokens=tokens,
                observer="client", component="lmcache", **more)  # fmt: skip


def written(at: float, *names: str, **more: Any) -> list[Row]:
    row: Row = {"event": "written", "time_ns": round(at * S), "key_space": SPACE, "component": "lmcache.l1"}
    row |= {"tier": "host", "engine": "l0", "process": "l0", "evidence": "native"} | more
    return [row | {"key": name} for name in names]


def produced(engine: str = "a", request: str = "r0", at: float = 1, *names: str) -> dict[str, list[Row]]:
    """A request that found nothing and stored two keys."""
    names = names or ("k0", "k1")
    return {
        "span": [lookup(request, engine, at - 0.5, 0), store(request, engine, at)],
        "request_key": keys(request, at - 0.5, *names),
        "block": written(at + 0.5, *names),
    }


def reused(engine: str = "b", request: str = "r1", at: float = 5) -> dict[str, list[Row]]:
    """One that found and read both."""
    return {
        "span": [lookup(request, engine, at, 128), load(request, engine, at + 1, 128)],
        "request_key": keys(request, at, "k0", "k1"),
    }


def drawn(path: Path, *parts: dict[str, list[Row]], **more: list[Row]) -> dict[str, list[Row]]:
    """Findings by invariant of the run with all these rows."""
    tables: dict[str, list[Row]] = {"process": [SERVER]}
    for part in (*parts, more):
        for table, rows in part.items():
            tables[table] = [*tables.get(table, []), *rows]
    found: dict[str, list[Row]] = {name: [] for name in invariants()}
    frame = compatibility(write_run(path / "run", None, **tables))
    assert frame.schema == COLUMNS
    for row in frame.to_dicts():
        found[row["invariant"]].append(row)
    return found


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
    sides = [*said("a", **{field: "1"}), *said("b", **{field: "2"})]
    (row,) = drawn(tmp_path, produced(), reused(), identity=sides)["read_as_written"]
    assert row["status"] == "pass"


def test_a_dtype_of_the_cache_that_is_automatic_is_the_models(tmp_path: Path) -> None:
    sides = [*said("a", dtype="bfloat16", kv_cache_dtype="auto"),
             *said("b", dtype="bfloat16", kv_cache_dtype="bfloat16")]  # fmt: skip
    (row,) = drawn(tmp_path, produced(), reused(), identity=sides)["read_as_written"]
    assert row["status"] == "pass"


def test_what_is_told_a_request_is_not_compared(tmp_path: Path) -> None:
    sides = [*said("a", lora="per request"), *said("b", lora="none")]
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
    assert (row["status"], row["detail"]) == ("pass", "2 reads of keys whose writer's state is the reader's")
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


def test_engines_that_do_not_say_what_they_are_cannot_be_compared(tmp_path: Path) -> None:
    (row,) = drawn(tmp_path / "none", produced(), reused())["read_as_written"]
    assert (row["status"], row["detail"]) == ("unobserved", "2 reads, and of none both sides are known")
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


# --- stores grow, hits stay 0


def stored(
    at: float, engine: str, *pairs: tuple[str, str], space: str = "vllm:sha256:m", **more: Any
) -> list[Row]:
    """Blocks of an engine on a disk that several share, with the digests of their tokens."""
    row: Row = {
        "event": "stored",
        "time_ns": round(at * S),
        "engine": engine,
        "key_space": space,
        "tokens": 16,
    }
    row |= {"tier": "disk", "component": "vllm.offloading.fs", "evidence": "native"} | more
    return [row | {"key": key, "token_digest": digest} for key, digest in pairs]


def computed(at: float, engine: str, *pairs: tuple[str, str], **more: Any) -> list[Row]:
    return stored(at, engine, *pairs, tier="gpu", component="vllm.gpu", **more)


def test_equal_content_under_different_keys_names_the_seed(tmp_path: Path) -> None:
    sides = [*said("a", "key", hash_algorithm="sha256", hash_seed="1"),
             *said("b", "key", hash_algorithm="sha256", hash_seed="2")]  # fmt: skip
    blocks = [*stored(1, "a", ("x0", "d0"), ("x1", "d1")), *computed(5, "b", ("y0", "d0"), ("y1", "d1"))]
    (row,) = drawn(tmp_path, block=blocks, identity=sides)["written_can_be_asked"]
    assert (row["status"], row["severity"], row["field"]) == ("violated", "warning", "hash_seed")
    assert (row["writer"], row["reader"], row["enforced_by"], row["tokens"]) == ("1", "2", "key", 32)
    assert row["detail"] == (
        "2 keys written by a and never found, of content that b asked for under another key in vain: "
        "hash_seed is 1 where it was written and 2 where it was asked for"
    )


def test_the_algorithm_is_named_by_the_key_space_alone(tmp_path: Path) -> None:
    blocks = [*stored(1, "a", ("x0", "d0")), *computed(5, "b", ("y0", "d0"), space="vllm:xxhash:m")]
    (row,) = drawn(tmp_path, block=blocks)["written_can_be_asked"]
    assert (row["field"], row["writer"], row["reader"]) == ("hash_algorithm", "sha256", "xxhash")


def test_where_neither_side_says_how_it_hashes_the_hash_differs(tmp_path: Path) -> None:
    blocks = [*stored(1, "a", ("x0", "d0")), *computed(5, "b", ("y0", "d0"))]
    (row,) = drawn(tmp_path, block=blocks)["written_can_be_asked"]
    assert row["field"] == "hash"
    assert row["detail"].endswith(
        " in vain: the hash differs, its algorithm or its seed; neither side said which"
    )


def test_two_random_seeds_are_two(tmp_path: Path) -> None:
    sides = [*said("a", hash_seed="random"), *said("b", hash_seed="random")]
    blocks = [*stored(1, "a", ("x0", "d0")), *computed(5, "b", ("y0", "d0"))]
    (row,) = drawn(tmp_path, block=blocks, identity=sides)["written_can_be_asked"]
    assert row["field"] == "hash_seed"
    assert row["detail"].endswith(" in vain: every process draws its own hash_seed")


def test_content_asked_for_before_it_was_written_was_not_missed(tmp_path: Path) -> None:
    blocks = [*computed(1, "b", ("y0", "d0")), *stored(5, "a", ("x0", "d0"))]
    (row,) = drawn(tmp_path, block=blocks)["written_can_be_asked"]
    assert row["status"] == "pass"


def test_a_tier_of_one_engine_alone_keeps_nothing_from_others(tmp_path: Path) -> None:
    blocks = [
        *stored(1, "a", ("x0", "d0"), tier="host", component="vllm.offloading.cpu"),
        *computed(5, "b", ("y0", "d0")),
    ]
    (row,) = drawn(tmp_path, block=blocks)["written_can_be_asked"]
    assert row["status"] == "not_applicable"


def test_keys_of_two_products_are_no_names_of_one_thing(tmp_path: Path) -> None:
    blocks = [*stored(1, "a", ("x0", "d0")), *computed(5, "b", ("y0", "d0"), space="lmcache:unknown:m")]
    (row,) = drawn(tmp_path, block=blocks)["written_can_be_asked"]
    assert row["status"] == "pass"


def missed(engine: str, request: str, at: float, *, space: str = SPACE, **more: Any) -> dict[str, list[Row]]:
    return {
        "span": [lookup(request, engine, at, 0, **more)],
        "request_key": keys(request, at, "k0", "k1", space=space),
    }


def test_an_equal_hash_below_another_model_names_the_model(tmp_path: Path) -> None:
    part = missed("b", "r1", 5, space="lmcache:unknown:/models/m:1")
    (row,) = drawn(tmp_path, produced(), part)["written_can_be_asked"]
    assert (row["field"], row["writer"], row["reader"], row["enforced_by"]) == (
        "model",
        "m",
        "/models/m:1",
        "key",
    )
    assert (row["request_id"], row["tokens"]) == ("r1", 128)


def salt(name: str) -> Row:
    return {"identity_id": f"lmcache:salt:{name}", "side": "writer", "field": "cache_salt", "value": name}


def test_an_equal_hash_of_another_tenant_names_the_salt(tmp_path: Path) -> None:
    part = missed("a", "r1", 5, identity_id="lmcache:salt:ef")
    part["span"].append(lookup("r2", "a", 6, 0, identity_id="lmcache:salt:aa"))
    part["request_key"] += keys("r2", 6, "k0", "k1")
    (row,) = drawn(tmp_path, produced(), part, identity=[salt("ef"), salt("aa")])["written_can_be_asked"]
    assert (row["field"], row["writer"], row["reader"], row["request_id"]) == (
        "cache_salt",
        "none",
        "aa",
        "r2",
    )


def test_a_tenant_whose_state_is_of_use_to_itself_is_left_in_peace(tmp_path: Path) -> None:
    part = missed("a", "r1", 5, identity_id="lmcache:salt:ef")
    (row,) = drawn(tmp_path, produced(), part, reused("a", "r2", 8), identity=[salt("ef")])[
        "written_can_be_asked"
    ]
    assert (row["status"], row["detail"]) == (
        "pass", "2 keys written, none whose content was asked for under another name in vain",
    )  # fmt: skip


def test_an_equal_hash_of_another_world_size_names_the_degree(tmp_path: Path) -> None:
    sides = [*said("a", tensor_parallel_size="1", pipeline_parallel_size="1"),
             *said("b", tensor_parallel_size="2", pipeline_parallel_size="1")]  # fmt: skip
    (row,) = drawn(tmp_path, produced(), missed("b", "r1", 5), identity=sides)["written_can_be_asked"]
    assert (row["field"], row["writer"], row["reader"], row["enforced_by"]) == (
        "tensor_parallel_size", "1", "2", "key",
    )  # fmt: skip


def servers(found: int = 0, **sides: str) -> dict[str, list[Row]]:
    """Two servers with one disk; the second looks up what the first has stored."""
    other = SERVER | {"process": "l1", "engine": "l1"}
    identity = [row for name, chunk in sides.items() for row in said(name, "key", chunk_size=chunk)]
    blocks = written(1.5, "k0", "k1", event="stored", tier="disk", component="lmcache.l2.fs")
    asks = span("lookup", "r1", "l1", 5, 5.1, observer="server", found_tokens=found, requested_tokens=256)
    return {"process": [other], "identity": identity, "block": blocks, "span": [asks]}


def test_chunks_of_two_lengths_are_never_found(tmp_path: Path) -> None:
    (row,) = drawn(tmp_path, servers(l0="256", l1="128"))["written_can_be_asked"]
    assert (row["status"], row["field"], row["writer"], row["reader"]) == (
        "violated",
        "chunk_size",
        "256",
        "128",
    )
    assert (row["enforced_by"], row["request_id"], row["key"]) == ("key", "r1", None)
    assert row["detail"] == (
        "2 stores of l0 into lmcache.l2.fs, and 1 lookup of l1, none of which found anything: chunk_size is "
        "256 where it was written and 128 where it was asked for"
    )


def test_servers_that_make_the_same_keys_and_one_that_finds_are_no_finding(tmp_path: Path) -> None:
    same = drawn(tmp_path / "same", servers(l0="256", l1="256"))["written_can_be_asked"]
    finds = drawn(tmp_path / "finds", servers(128, l0="256", l1="128"))["written_can_be_asked"]
    assert [row["status"] for row in same + finds] == ["unobserved"] * 2


def test_a_cache_inside_the_engine_says_itself_how_it_hashes(tmp_path: Path) -> None:
    sides = [*said("a", hash_seed="1"), *said("b", hash_seed="1")]
    sides += [*said("a:lmcache", "key", hash_seed="random"), *said("b:lmcache", "key", hash_seed="7")]
    inside = {"tier_to": "object", "component": "lmcache.inprocess", "observer": "worker"}
    spans = [span("store", "r0", "a", 1, 2, **inside), lookup("r1", "b", 5, 0)]
    (row,) = drawn(tmp_path, span=spans, identity=sides)["written_can_be_asked"]
    assert (row["status"], row["field"], row["writer"], row["reader"]) == (
        "violated",
        "hash_seed",
        "random",
        "7",
    )
