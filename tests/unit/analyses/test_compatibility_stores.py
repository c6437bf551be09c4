"""Stores that grow while hits stay 0: under which name the same content was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.analyses.identity_rows import (
    SERVER,
    SPACE,
    Row,
    S,
    drawn,
    keys,
    lookup,
    produced,
    reused,
    said,
    span,
    written,
)

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any


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


def test_equal_tokens_that_both_hash_alike_are_of_another_lora_or_salt(tmp_path: Path) -> None:
    alike = {"hash_algorithm": "sha256", "hash_seed": "vllm-none-hash"}
    blocks = [*stored(1, "a", ("x0", "d0")), *computed(5, "b", ("y0", "d0"))]
    (row,) = drawn(tmp_path, block=blocks, identity=[*said("a", **alike), *said("b", **alike)])[
        "written_can_be_asked"
    ]
    assert row["status"] == "pass"


def test_an_engine_hashes_as_it_does_whatever_it_says(tmp_path: Path) -> None:
    blocks = [*stored(1, "a", ("x0", "d0")), *computed(5, "a", ("y0", "d0"))]
    (row,) = drawn(tmp_path, block=blocks)["written_can_be_asked"]
    assert row["status"] == "pass"


def test_chunks_are_hashed_by_the_servers_and_not_by_their_engines(tmp_path: Path) -> None:
    """Of two servers on one disk; what vLLM hashes its own blocks with is nothing to them."""
    digests = [row | {"token_digest": "d" + row["key"][1:]} for row in written(1.5, "k0", "k1")]
    own = [
        row | {"token_digest": "d" + row["key"][1:]}
        for row in written(7, "y0", "y1", engine="l1", process="l1")
    ]
    part, late = produced(), missed("b", "r1", 5)
    part["block"] = digests + own
    late["request_key"] = keys("r1", 5, "y0", "y1")
    late["span"].append(span("lookup", "r1", "l1", 5, 5.1, observer="server", found_tokens=0))
    sides = [*said("a", hash_algorithm="sha256"), *said("b", hash_algorithm="xxhash")]
    sides += [*said("l0", hash_algorithm="blake3"), *said("l1", hash_algorithm="builtin")]
    (row,) = drawn(tmp_path, part, late, identity=sides)["written_can_be_asked"]
    assert (row["field"], row["writer"], row["reader"]) == ("hash_algorithm", "blake3", "builtin")


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
