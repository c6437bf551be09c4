"""What the page says of a loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.panels._facts import facts
from tests.rows import write_run

if TYPE_CHECKING:
    from pathlib import Path

LOSS = {"source": "import", "process": "lmcache-1", "op": "lookup", "cause": "unclean_end", "count": 1}


def test_a_loss_says_what_was_seen(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", loss=[LOSS | {"detail": "a line of the hash log without a span"}])
    assert "1 lookup record of lmcache-1" in facts(run).lost[0]
    assert "a line of the hash log without a span" in facts(run).lost[0]


def test_a_loss_without_words_of_its_own_has_those_of_its_cause(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", loss=[LOSS])
    assert "another source contradicts it" in facts(run).lost[0]
