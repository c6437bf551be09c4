from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.pull_request import HEADS, README, draw, summary, written

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pull_request")
    draw(folder)
    return folder


@pytest.mark.parametrize("head", HEADS)
def test_the_readme_shows_what_the_command_prints_of_its_pull_requests(folder: Path, head: str) -> None:
    readme = README.read_text()
    assert readme.count(f"kvtrace diff base/* --vs {head}/* -->") == 2
    assert written(readme, head, summary(folder, head)) == readme, "stale: run python -m tests.pull_request"


def test_one_of_them_fails_and_the_other_passes() -> None:
    shown = [line for line in README.read_text().splitlines() if line.startswith("### kvtrace diff:")]
    assert shown == ["### kvtrace diff: regression", "### kvtrace diff: pass"]
