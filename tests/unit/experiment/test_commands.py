"""A plan's commands: split as a shell would, placeholders filled in, other braces left."""

from __future__ import annotations

import pytest
from kvtrace.errors import UsageError
from kvtrace.experiment.running.commands import WORDS, filled

VALUES = dict.fromkeys(WORDS, "x y") | {"port": "81"}


def test_json_in_a_command_keeps_its_braces() -> None:
    command = """serve --port {port} --config '{"kv_connector": "A", "extra": {"port": {port}}}' {Other}"""
    assert filled("engine", command, VALUES) == [
        "serve", "--port", "81", "--config", '{"kv_connector": "A", "extra": {"port": 81}}', "{Other}",
    ]  # fmt: skip


def test_a_value_with_blanks_is_one_word() -> None:
    assert filled("load", "drive {out} --x={out}", VALUES) == ["drive", "x y", "--x=x y"]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("serve {prot}", "engine: {prot} is not known; did you mean {port}?"),
        ("serve '", "cannot be split into words"),
        ("", "is empty"),
    ],
)
def test_what_cannot_be_filled_in_is_one_sentence(command: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        filled("engine", command, VALUES)
    assert said in str(refused.value)
