"""The plan file: read strictly, bases filled in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kvtrace.errors import UsageError
from kvtrace.experiment.plan import Load, Slo, read_plan, workload

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.experiment.plan import Plan

WHOLE = """
[fixed]
model = "tiny"
gpus = 1
prompt_tokens = [900, 1100]
slo = { ttft_ns = 500_000_000 }
may_differ = ["block_size"]

[load]
command = "drive {base_url}"
rounds = 5

[group.tiered]
engine = "serve --port {port}"
backend = "cache --port {backend_port}"
environment = { A = "1", B = "1" }

[group.tiered_cut]
base = "tiered"
disconnect_at = 0.5
environment = { B = "2" }
"""
CHAIN = "[group.g0]\n" + "".join(f"[group.g{at}]\nbase = 'g{at - 1}'\n" for at in range(1, 3000))


def read(tmp_path: Path, text: str) -> Plan:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    return read_plan(path)


def test_a_plan_is_what_it_says_and_a_group_has_what_its_base_has(tmp_path: Path) -> None:
    plan = read(tmp_path, WHOLE)
    assert plan.fixed.prompt_tokens == (900, 1100)
    assert plan.fixed.slo == Slo(ttft_ns=500_000_000)
    assert plan.load.rounds == 5
    assert list(plan.groups) == ["tiered", "tiered_cut"]
    cut = plan.groups["tiered_cut"]
    assert (cut.engine, cut.backend) == ("serve --port {port}", "cache --port {backend_port}")
    assert (cut.base, cut.disconnect_at) == ("tiered", 0.5)
    assert cut.environment == {"A": "1", "B": "2"}
    assert plan.groups["tiered"].disconnect_at is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[fixd]\n", "fixd is not known; did you mean fixed?"),
        ("[fixed]\nmodle = 'x'", "[fixed]: modle is not known; did you mean model?"),
        ("[fixed]\nslo = { ttft = 1 }", "[fixed] slo: ttft is not known; did you mean ttft_ns?"),
        ("[fixed]\nmay_differ = ['vllm.block_sise']", "block_sise is not known; did you mean block_size?"),
        ("[load]\nround = 2", "[load]: round is not known; did you mean rounds?"),
        ("[load]\nrounds = 0", "rounds and requests must be 1 at least"),
        ("[load]\nsettle_s = nan", "must be seconds"),
        ("[load]\nrounds = '2'", "[load] rounds: Expected `int`, got `str`"),
        ("[group.a]\nengin = 'x'", "[group.a]: engin is not known; did you mean engine?"),
        ("[group.tiered]\n[group.b]\nbase = 'tierd'", "tierd is not known; did you mean tiered?"),
        ("[group.a]\nbase = 'b'\n[group.b]\nbase = 'a'", "its base leads back to itself"),
        ("[group.a]\ndisconnect_at = 1.5", "disconnect_at is a share of the load"),
        ("[group.'../a']\n", "a group's name becomes a folder"),
        ("group = 1", "write [group.NAME]"),
        ("[load", "is not TOML"),
        (f"[load]\nrounds = {'9' * 5000}", "is not TOML"),
        (f"[fixed]\nmodel = {'[' * 20_000}", "is nested too deeply"),
        (CHAIN, "more than 64 groups stand on each other"),
        (f"[group.{'a' * 300}]\n", "a group's name becomes a folder"),
        ("[group.'--help']\n", "a group's name becomes a folder"),
        ('[group."a\\u0000b"]\n', "a group's name becomes a folder"),
        ("[load]\nsettle_s = 1e300", "1000000 at most"),
        ("[load]\ntimeout_s = 1e7", "1000000 at most"),
        ("[group.a]\nstart_s = 1e300", "1000000 at most"),
        ("[fixed]\nprompt_tokens = [9, 1]", "prompt_tokens is a number from 0 on, or [from, to]"),
        ("[fixed]\noutput_tokens = -1", "output_tokens is a number from 0 on"),
        ("[fixed]\ngpus = -3", "gpus must be above 0"),
        ("[fixed]\nslo = { ttft_ns = -1 }", "ttft_ns must be above 0"),
        (f"[fixed]\nslo = {{ ttft_ns = {'9' * 30} }}", "ttft_ns"),
    ],
)
def test_what_is_not_known_is_one_sentence_with_the_nearest_word(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(UsageError) as refused:
        read(tmp_path, text)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value) or "TOML" in said


def test_a_plan_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_plan(tmp_path / "none.toml")


def test_the_workload_is_what_is_asked_and_not_how_often_or_for_how_long() -> None:
    first = workload(Load(command="x", rounds=5))
    for same in (
        Load(command="x", rounds=3),
        Load(command="x", timeout_s=60.0, settle_s=9.0, interleaved=True),
    ):
        assert workload(same) == first
    others = [Load(command="y"), Load(command="x", warmup="w"), Load(command="x", requests=2),
              Load(command="x", request_id_prefix="a")]  # fmt: skip
    assert len({first, *map(workload, others)}) == 5
