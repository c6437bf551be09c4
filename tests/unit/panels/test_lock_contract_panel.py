"""The lock contract as a picture: a band an invariant, a dot a violation, a word beside every colour."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kvtrace.analyses.lock_contract import invariants
from kvtrace.errors import UsageError
from kvtrace.panels import lock_contract
from tests.rows import write_run
from tests.unit.analyses.cache_rows import DROPPED, asked, drawn, event, written
from tests.unit.panels.drawn import HOSTILE

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run


def broken(tmp_path: Path, key: str = "k") -> Run:
    """K was never written (25), q was removed after its lock's time to live (18); losses begin never."""
    rows = [
        asked("locked", 0),
        event("reserved", 1, key),
        event("locked", 25, key),
        event("unlocked", 26, key),
    ]
    rows += [*written(1, "q"), event("locked", 2, "q"), event("removed", 18, "q")]
    return drawn(tmp_path, *rows)


def test_every_invariant_has_a_band_with_its_word_the_broken_ones_first(tmp_path: Path) -> None:
    frames = lock_contract.data(broken(tmp_path))
    figure = lock_contract.draw(frames)
    bands = {name: bar.name for bar in figure.data if bar.type == "bar" for name in bar.y}
    assert set(bands) == {name.replace("_", " ") for name in invariants()}
    assert bands["readable was written"] == "violated"
    assert bands["not removed while locked"] == "violated: bound to happen"
    assert bands["records complete"] == "pass"
    assert bands["freed once"] == "not applicable"
    order = list(figure.layout.yaxis.categoryarray)
    assert order[:2] == ["readable was written", "reservation written or returned"]
    for bar in figure.data:
        if bar.type == "bar":
            assert all(text.startswith(bar.name) for text in bar.text)
            assert bar.marker.color in lock_contract.COLORS.values()


def test_a_violation_is_a_dot_at_its_time(tmp_path: Path) -> None:
    figure = lock_contract.draw(lock_contract.data(broken(tmp_path)))
    (dots,) = (trace for trace in figure.data if trace.type == "scatter")
    assert dict(zip(dots.y, dots.x, strict=True))["readable was written"] == 25
    assert dict(zip(dots.y, dots.x, strict=True))["not removed while locked"] == 18


def test_what_is_broken_stands_in_words_and_in_the_table(tmp_path: Path) -> None:
    frames = lock_contract.data(broken(tmp_path))
    said = lock_contract.notes(frames)
    assert said[0] == "Violated: readable was written and reservation written or returned."
    assert said[1].startswith(
        "Violated, and bound to happen by a time to live or a forced clear: not removed"
    )
    table = lock_contract.table(frames)
    assert table is not None
    assert table.rows[0] == (
        "readable was written", "violated",
        "locked for a reader 24 s after it was reserved, and never written", "k", "1", "25.000",
    )  # fmt: skip


def test_of_many_violations_the_first_are_drawn_and_the_rest_are_counted(tmp_path: Path) -> None:
    frames = lock_contract.data(broken(tmp_path), most=1)
    assert frames.dots.height == 1
    assert lock_contract.notes(frames)[-1].endswith("the first 1 with a time are drawn.")


def test_with_losses_the_picture_says_inconclusive_and_nothing_passes(tmp_path: Path) -> None:
    rows = [asked("locked", 0), *written(1), event("locked", 2), event("unlocked", 3)]
    whole = lock_contract.data(drawn(tmp_path / "whole", *rows))
    assert lock_contract.notes(whole)[0].endswith("seen to hold, none violated.")
    lossy = lock_contract.data(drawn(tmp_path / "lossy", *rows, loss=DROPPED))
    assert "pass" not in lossy.board["shown"].to_list()
    assert lock_contract.notes(lossy)[0].startswith("Inconclusive: ")


def test_an_empty_run_says_what_would_fill_it(tmp_path: Path) -> None:
    frames = lock_contract.data(write_run(tmp_path / "run"))
    assert "would fill this" in str(frames.empty)
    assert lock_contract.notes(frames) == ()
    assert lock_contract.table(frames) is None


def test_a_hostile_key_stays_text(tmp_path: Path) -> None:
    frames = lock_contract.data(broken(tmp_path, HOSTILE[3]))
    figure = lock_contract.draw(frames).to_json()
    assert "<b>bold" not in figure
    table = lock_contract.table(frames)
    assert table is not None
    assert "\u202e" not in "".join(cell for row in table.rows for cell in row)


def test_a_bound_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="bound_s"):
        lock_contract.data(write_run(tmp_path / "run"), bound_s=0)
