"""The plan in docs/experiment.md is one that the reader takes, every command included."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kvtrace.experiment.plan import Fixed, Group, Load, Plan, read_plan
from kvtrace.experiment.running.commands import WORDS, filled

if TYPE_CHECKING:
    import msgspec

TEXT = (Path(__file__).parents[3] / "docs" / "experiment.md").read_text(encoding="utf-8")


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    (text,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "plan.toml").write_text(text)
    return read_plan(tmp_path / "plan.toml")


def test_it_is_read_and_its_commands_can_be_filled_in(plan: Plan) -> None:
    values = dict.fromkeys(WORDS, "81")
    assert list(plan.groups) == ["no_reuse", "gpu_prefix", "tiered", "tiered_cut"]
    words = filled("engine", plan.groups["tiered_cut"].engine or "", values)
    connector = json.loads(words[words.index("--kv-transfer-config") + 1])
    assert connector["kv_connector_extra_config"]["lmcache.mp.port"] == 81
    assert "81" in filled("backend", plan.groups["tiered_cut"].backend or "", values)
    for command in (plan.load.command, plan.load.warmup):
        assert not [word for word in filled("load", command or "", values) if "{" in word]


@pytest.mark.parametrize("table", [Fixed, Load, Group])
def test_every_word_of_a_plan_is_explained(table: type[msgspec.Struct]) -> None:
    assert not [name for name in table.__struct_fields__ if f"`{name}" not in TEXT]


def test_every_placeholder_is_explained() -> None:
    assert not [name for name in WORDS if f"`{{{name}}}`" not in TEXT]
