from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kvtrace.diff.gates import Gate, Gates, Tail, default_gates, read_gates
from kvtrace.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def read(folder: Path, text: str) -> Gates:
    file = folder / "gates.toml"
    file.write_text(text)
    return read_gates(file)


def test_a_whole_file(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        [[gate]]
        metric = "ttft_ns"
        [[gate]]
        metric = "ledger.block_hold_ns"
        direction = "higher"
        min_effect = 5
        alpha = 0.01
        [[gate]]
        metric = "waste.bytes"
        unit = "relative"
        [[tail]]
        metric = "ttft_ns"
        [[exact]]
        metric = "failed"
        [[sql]]
        name = "slow"
        query = "SELECT count(*) FROM request"
        """,
    )
    assert found.gates == (
        Gate("ttft_ns", "relative", 0.02),
        Gate("ledger.block_hold_ns", "ns", 5.0, "higher", 0.01),
        Gate("waste.bytes", "relative", 0.02),
        Gate("slow", "count", 0.0, query="SELECT count(*) FROM request"),
    )
    assert (found.tails, found.exact, found.named) == ((Tail("ttft_ns"),), ("failed",), True)


def test_an_absolute_gate_has_the_effect_of_its_unit(tmp_path: Path) -> None:
    found = read(tmp_path, '[[gate]]\nmetric = "ttft_ns"\nunit = "absolute"\n')
    assert found.gates == (Gate("ttft_ns", "ns", 1e6),)


def test_the_default_gates_are_neutral_where_nothing_was_observed() -> None:
    found = default_gates()
    assert [(gate.metric, gate.unit, gate.min_effect) for gate in found.gates] == [
        ("ttft_ns", "relative", 0.02),
        ("itl_p50_ns", "relative", 0.02),
        ("exposed_transfer_ns", "ns", 1e6),
        ("recomputed_tokens", "tokens", 1.0),
    ]
    assert found.exact == ("failed", "hung", "violations", "losses")
    assert not found.named


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[gat]]\nmetric = "ttft_ns"', "gat is not known; did you mean gate?"),
        ('[[gate]]\nmetrc = "ttft_ns"', "metrc is not known; did you mean metric?"),
        ('[[gate]]\nmetric = "ttft"', "ttft is not known; did you mean ttft_ns?"),
        ('[[gate]]\nmetric = "ledgr.ttft_ns"', "ledgr is not known; did you mean ledger?"),
        ('[[gate]]\nmetric = "ttft_ns"\ndirection = "lwer"', "lwer is not known; did you mean lower?"),
        ('[[gate]]\nmetric = "ttft_ns"\nunit = "%"', "% is not known; there are relative, absolute."),
        ('[[gate]]\nmetric = "ttft_ns"\nmin_effect = nan', "min_effect must be a number from 0 on, not nan"),
        ('[[gate]]\nmetric = "ttft_ns"\nmin_effect = inf', "min_effect must be a number from 0 on, not inf"),
        (
            '[[gate]]\nmetric = "ttft_ns"\nmin_effect = -0.1',
            "must be a number from 0 on, not -0.1",
        ),
        ('[[gate]]\nmetric = "ttft_ns"\nmin_effect = "2%"', "min_effect must be a number, not '2%'"),
        ('[[gate]]\nmetric = "ttft_ns"\nmin_effect = true', "min_effect must be a number, not True"),
        ('[[gate]]\nmetric = "ttft_ns"\nalpha = 0', "alpha must lie between 0 and 1, not 0"),
        ('[[gate]]\nmetric = "ttft_ns"\nalpha = 1.0', "alpha must lie between 0 and 1, not 1.0"),
        ("[[gate]]\nmin_effect = 0.1", "gate 1: metric must be given, as text"),
        ("[[gate]]\nmetric = 3", "gate 1: metric must be given, as text"),
        ('[gate]\nmetric = "ttft_ns"', "gate must be a list of tables; write [[gate]]"),
        ('[[exact]]\nmetric = "faild"', "faild is not known; did you mean failed?"),
        ('[[exact]]\nmetric = "ledger.ttft_ns"', "ledger.ttft_ns is measured, it always moves"),
        ('[[tail]]\nmetric = "recomputed_tokens"', "recomputed_tokens can be 0 and has no ratios"),
        ('[[sql]]\nname = "slow"', "sql 1: query must be given, as text"),
        ('[[gate]]\nmetric = "ttft_ns"\n[[gate]]\nmetric = "ttft_ns"', "ttft_ns is gated twice"),
        ("", "holds no gate"),
        ("[[gate", "is not TOML"),
        (f"[[gate]]\nalpha = {'9' * 5000}", "is not TOML"),
        (f"[[gate]]\nmetric = {'[' * 100_000}", "is nested too deeply"),
    ],
)
def test_what_is_wrong_in_a_gate_file_is_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "gates.toml"))
    assert "\n" not in str(caught.value).replace(text, "")


def test_a_file_that_is_not_there_or_is_no_text_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_gates(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot be read"):
        read_gates(tmp_path / "bytes.toml")
