"""Blended answers against full ones: known answers by hand, hostile files, verdicts."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kvtrace.analyses.blend import COLUMNS, blend
from kvtrace.analyses.inventory import inventory
from kvtrace.cli import main
from kvtrace.panels._facts import facts
from tests.unit.analyses.blend_rows import (
    HALVES,
    LN2,
    TOKENS,
    UNIFORM,
    asked,
    asked_all,
    blending,
    drawn,
    file_of,
    of_logits,
)
from tests.unit.analyses.exposure.drawing import request

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


Row = dict[str, Any]


def test_token_ids_agree_position_by_position(tmp_path: Path) -> None:
    row = asked(tmp_path, {"request_id": "r0", **TOKENS})
    assert (row["compared"], row["positions"], row["left_out"]) == ("tokens", 4, 0)
    assert row["top1_agreement"] == 0.75
    assert row["kl_mean"] is row["logit_diff_max"] is None
    assert (row["seen_blended"], row["e2e_ns"]) == (True, 100)


def test_what_only_the_longer_answer_has_disagrees(tmp_path: Path) -> None:
    row = asked(tmp_path, {"request_id": "r0", "full_tokens": [1, 2], "blended_tokens": [1, 2, 3, 4]})
    assert (row["positions"], row["top1_agreement"]) == (4, 0.5)


def test_logits_by_hand(tmp_path: Path) -> None:
    """Half against three quarters: KL = ln(2 / sqrt 3), differences ln 1.5 and ln 2; then two equal rows."""
    row = asked(tmp_path, of_logits([[0.0, 0.0], [1.0, 5.0]], [[math.log(3), 0.0], [1.0, 5.0]]))
    kl = math.log(2 / math.sqrt(3))
    assert (row["compared"], row["positions"], row["left_out"], row["top1_agreement"]) == (
        "logits",
        2,
        0,
        1.0,
    )
    assert (row["kl_max"], row["kl_mean"]) == pytest.approx((kl, kl / 2))
    assert row["logit_diff_max"] == pytest.approx(LN2)
    assert row["logit_diff_mean"] == pytest.approx((math.log(1.5) + LN2) / 4)


def test_the_likeliest_token_may_change_though_little_else_does(tmp_path: Path) -> None:
    row = asked(tmp_path, of_logits([[1.0, 1.01], [3.0, 1.0]], [[1.01, 1.0], [3.0, 1.0]]))
    assert row["top1_agreement"] == 0.5
    assert row["kl_mean"] < 1e-4


def test_a_token_that_both_rule_out_is_no_difference(tmp_path: Path) -> None:
    row = asked(tmp_path, of_logits([HALVES], [[LN2, 0.0, -math.inf, -math.inf]]))
    assert (row["positions"], row["left_out"]) == (1, 0)
    assert row["logit_diff_max"] == pytest.approx(math.log(1.5))


@pytest.mark.parametrize(
    "bad", [[math.nan, 0.0, 0.0, 0.0], [math.inf, 0.0, 0.0, 0.0], HALVES, [-math.inf] * 4]
)
@pytest.mark.parametrize("side", [0, 1])
def test_positions_that_cannot_be_compared_are_left_out_and_counted(
    tmp_path: Path, bad: list[float], side: int
) -> None:
    sides = [[UNIFORM, UNIFORM], [UNIFORM, UNIFORM]]
    sides[side][1] = bad
    row = asked(tmp_path, of_logits(*sides), limits="[most]\nkl_mean = 1.0")
    assert (row["positions"], row["left_out"], row["kl_mean"]) == (1, 1, 0.0)
    assert (row["verdict"], row["because"]) == ("unverified", "positions that cannot be compared: 1")


def test_nothing_but_nan_gives_null_and_no_zero(tmp_path: Path) -> None:
    row = asked(tmp_path, of_logits([[math.nan] * 2], [[0.0, 0.0]]), limits="[most]\nkl_mean = 1.0")
    assert (row["positions"], row["left_out"], row["kl_mean"], row["top1_agreement"]) == (0, 1, None, None)
    assert (row["verdict"], row["because"]) == ("unverified", "not measured: kl_mean")


def test_positions_of_one_side_alone_are_left_out(tmp_path: Path) -> None:
    row = asked(tmp_path, of_logits([UNIFORM], [UNIFORM, UNIFORM, UNIFORM]))
    assert (row["positions"], row["left_out"]) == (1, 2)


def test_many_large_rows_are_read_in_parts(tmp_path: Path) -> None:
    """Seventy positions of 65,536 tokens are three parts."""
    drawn_rows = np.random.default_rng(7).normal(size=(70, 65_536)).astype(np.float32)
    np.save(tmp_path / "full.npy", drawn_rows)
    drawn_rows[69] += 5.0
    drawn_rows[69, 0] += 1.0
    np.save(tmp_path / "blended.npy", drawn_rows)
    row = asked(tmp_path, {"request_id": "r0", "full_logits": "full.npy", "blended_logits": "blended.npy"})
    assert (row["positions"], row["left_out"]) == (70, 0)
    assert row["logit_diff_max"] == pytest.approx(1.0, rel=1e-4)
    assert row["kl_max"] == pytest.approx(70 * row["kl_mean"])


def safetensors(path: Path, dtype: str, **arrays: np.ndarray) -> None:
    header, data = {"__metadata__": {"by": "hand"}}, b""
    for name, array in arrays.items():
        raw = array.tobytes()
        header[name] = {
            "dtype": dtype,
            "shape": array.shape,
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.mark.parametrize("dtype", ["F32", "F16", "F64", "BF16"])
def test_safetensors_need_no_library(tmp_path: Path, dtype: str) -> None:
    full, other = np.array([[0.0, 0.0]]), np.array([[1.0, 0.0]])  # exact in every form
    as_stored: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "F32": lambda a: a.astype("<f4"), "F16": lambda a: a.astype("<f2"), "F64": lambda a: a,
        "BF16": lambda a: (a.astype("<f4").view("<u4") >> 16).astype("<u2"),
    }  # fmt: skip
    safetensors(tmp_path / "l.safetensors", dtype, full=as_stored[dtype](full), other=as_stored[dtype](other))
    named = {"full_logits": "l.safetensors#full", "blended_logits": "l.safetensors#other"}
    row = asked(tmp_path, {"request_id": "r0", **named})
    assert row["logit_diff_max"] == pytest.approx(math.log((1 + math.e) / 2))


def test_parquet_says_the_same_as_lines(tmp_path: Path) -> None:
    line = {**of_logits([[0.0, 1.0]], [[0.5, 0.25]], recompute_ratio=0.15), "ignored": 3, **TOKENS}
    by_line = asked(tmp_path, line)
    pq.write_table(pa.Table.from_pylist([line]), tmp_path / "pairs.parquet")
    found = blend(drawn(tmp_path / "again"), pairs=tmp_path / "pairs.parquet", through="numpy").to_dicts()
    assert found == [by_line]


def test_a_pair_may_name_the_request_as_its_client_did(tmp_path: Path) -> None:
    alias = [{"alias": "mine", "kind": "client", "request_id": "r0"}]
    (row,) = asked_all(tmp_path, drawn(tmp_path, alias=alias), {"request_id": "mine", **TOKENS})
    assert (row["request_id"], row["seen_blended"], row["e2e_ns"]) == ("r0", True, 100)


def test_a_pair_of_a_request_that_is_not_in_the_run_keeps_its_own_times(tmp_path: Path) -> None:
    line = {"request_id": "elsewhere", **TOKENS, "blended_e2e_ns": 7, "full_e2e_ns": 9}
    rows = asked_all(tmp_path, drawn(tmp_path), line)
    assert [(row["request_id"], row["seen_blended"], row["e2e_ns"], row["full_e2e_ns"]) for row in rows] == [
        ("elsewhere", None, 7, 9), ("r0", True, 100, None),
    ]  # fmt: skip


def test_recomputed_of_reused_is_the_pairs_word_else_the_runs(tmp_path: Path) -> None:
    told = blending(found_tokens=100, attributes=[("recomputed_tokens", "15")])
    run = drawn(tmp_path, request(), told)
    assert blend(run)["recompute_ratio"].to_list() == [0.15]
    (row,) = asked_all(tmp_path, run, {"request_id": "r0", **TOKENS, "recompute_ratio": 0.2})
    assert row["recompute_ratio"] == 0.2


def test_quality_is_shown_with_its_drop(tmp_path: Path) -> None:
    row = asked(tmp_path, {"request_id": "r0", **TOKENS, "full_quality": 0.75, "blended_quality": 0.5})
    assert (row["quality_full"], row["quality_blended"], row["quality_drop"]) == (0.75, 0.5, 0.25)


# verdicts


def test_without_pairs_every_blended_request_is_unverified(tmp_path: Path) -> None:
    run = drawn(tmp_path, request(), blending(), request() | {"request_id": "r1"})
    (row,) = blend(run).to_dicts()
    assert (row["request_id"], row["verdict"], row["because"]) == ("r0", "unverified", "no pair was given")
    assert (row["compared"], row["positions"], row["run_verdict"]) == (None, None, "unverified")


def test_without_thresholds_nothing_is_accepted(tmp_path: Path) -> None:
    row = asked(tmp_path, {"request_id": "r0", "full_tokens": [1], "blended_tokens": [1]})
    assert (row["verdict"], row["because"]) == ("unverified", "no thresholds were given")
    assert row["run_verdict"] == "unverified"


def test_a_limit_that_is_met_exactly_is_met(tmp_path: Path) -> None:
    row = asked(tmp_path, {"request_id": "r0", **TOKENS}, limits="[least]\ntop1_agreement = 0.75")
    assert (row["verdict"], row["run_verdict"]) == ("accepted", "accepted")


def test_a_limit_that_is_not_met_is_named_with_both_numbers(tmp_path: Path) -> None:
    limits = "[least]\ntop1_agreement = 0.9\n[most]\nkl_mean = 0.1"
    row = asked(tmp_path, {"request_id": "r0", **TOKENS}, limits=limits)
    assert (row["verdict"], row["run_verdict"]) == ("rejected", "rejected")
    assert row["because"] == "top1_agreement 0.75 is below 0.9"


def test_the_run_is_accepted_only_when_all_that_was_blended_was_compared(tmp_path: Path) -> None:
    run = drawn(tmp_path, request(), blending(), blending("r1"))
    good = {"full_tokens": [1], "blended_tokens": [1]}
    limits = "[least]\ntop1_agreement = 1.0"
    rows = asked_all(tmp_path, run, {"request_id": "r0", **good}, limits=limits)
    assert [(row["verdict"], row["run_verdict"]) for row in rows] == [
        ("accepted", "unverified"), ("unverified", "unverified"),
    ]  # fmt: skip
    both = [{"request_id": name, **good} for name in ("r0", "r1")]
    rows = asked_all(tmp_path, run, *both, limits=limits)
    assert {row["run_verdict"] for row in rows} == {"accepted"}
    rows = asked_all(tmp_path, run, *both, limits=f"requests = 3\n{limits}")
    assert {row["run_verdict"] for row in rows} == {"unverified"}


@pytest.mark.parametrize("most", ["1e18", "0"])
def test_a_pair_in_which_nothing_was_compared_is_unverified_and_counts_for_nothing(
    tmp_path: Path, most: str
) -> None:
    none = {"request_id": "r0", "full_tokens": [], "blended_tokens": []}
    row = asked(tmp_path, none, limits=f"rejected = 1\n[most]\ne2e_ns = {most}")
    assert (row["verdict"], row["because"]) == ("unverified", "no position was compared")
    assert row["run_verdict"] == "unverified"


def test_as_many_may_be_rejected_as_the_thresholds_allow(tmp_path: Path) -> None:
    lines = [{"request_id": "r0", **TOKENS}, {"request_id": "x", "full_tokens": [1], "blended_tokens": [1]}]
    limits = "rejected = 1\n[least]\ntop1_agreement = 1.0"
    rows = asked_all(tmp_path, drawn(tmp_path), *lines, limits=limits)
    assert [row["verdict"] for row in rows] == ["rejected", "accepted"]
    assert {row["run_verdict"] for row in rows} == {"accepted"}


# who was blended, and where it is said


def test_reuse_of_a_prefix_alone_or_of_nothing_is_not_blended(tmp_path: Path) -> None:
    """LMCache's blend server: b got chunks beyond its prefix, a only a prefix, c a no-op; d used nothing."""

    def load(name: str, **more: Any) -> Row:
        row = {"op": "load", "name": "cb.retrieve", "component": "lmcache.blend", "request_id": name}
        return row | {"start_ns": 5, "end_ns": 9, "outcome": "ok"} | more

    def looked(name: str, beyond: int) -> Row:
        row = {"op": "lookup", "component": "lmcache.blend", "request_id": name, "start_ns": 1, "end_ns": 2}
        return row | {"attributes": [("non_prefix_hit_tokens", str(beyond))]}

    run = drawn(
        tmp_path, load("a"), looked("a", 0), load("b"), looked("b", 256), looked("c", 256),
        {"name": "cb.retrieve.noop", "component": "lmcache.blend", "request_id": "c", "outcome": "skipped"},
        blending("d") | {"tokens": 0}, blending("e", outcome="failed"), load("f"),
    )  # fmt: skip
    assert blend(run)["request_id"].to_list() == ["b", "f"]


def test_a_lookup_of_nobody_that_found_no_chunk_takes_no_request_away(tmp_path: Path) -> None:
    load = {"op": "load", "component": "lmcache.blend", "request_id": "r0", "start_ns": 5, "end_ns": 9}
    nobody = {"op": "lookup", "component": "lmcache.blend", "start_ns": 1, "end_ns": 2}
    nobody["attributes"] = [("non_prefix_hit_tokens", "0")]
    assert blend(drawn(tmp_path, request(), load, nobody))["request_id"].to_list() == ["r0"]


def test_info_and_the_report_say_that_a_blended_run_is_unverified(tmp_path: Path) -> None:
    run = drawn(tmp_path)
    (row,) = inventory(run).filter(what="run", name="blended").to_dicts()
    assert row["value"] == 1
    assert row["detail"].startswith("unverified")
    said = facts(run)
    assert ("blended", "1 request, unverified") in said.chips
    assert any("blended" in line and "unverified" in line for line in said.seen)


def test_a_server_started_to_blend_is_labelled_though_it_told_no_request(tmp_path: Path) -> None:
    run = drawn(tmp_path, request(), meta={"engines": {"l0": {"product": "lmcache", "server_mode": "blend"}}})
    (row,) = inventory(run).filter(what="run", name="blended").to_dicts()
    assert (row["value"], row["detail"][:10]) == (None, "unverified")
    assert ("blended", "unverified") in facts(run).chips


def test_a_run_that_did_not_blend_says_nothing_of_it(tmp_path: Path) -> None:
    run = drawn(tmp_path, request(), meta={"engines": {"l0": {"server_mode": "default"}}})
    assert inventory(run).filter(name="blended").height == 0
    assert [name for name, _ in facts(run).chips if name == "blended"] == []
    found = blend(run)
    assert found.height == 0
    assert found.schema == COLUMNS


def test_the_command_takes_both_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs, limits = file_of(tmp_path, {"request_id": "r0", **TOKENS}), tmp_path / "limits.toml"
    limits.write_text("[least]\ntop1_agreement = 0.7")
    words = ["analyze", "blend", str(drawn(tmp_path).path), "--pairs", str(pairs)]
    assert main([*words, "--thresholds", str(limits), "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["verdict"], row["run_verdict"]) == ("accepted", "accepted")
    pairs.write_text("{")
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "pairs.jsonl, line 1: is no JSON" in said
