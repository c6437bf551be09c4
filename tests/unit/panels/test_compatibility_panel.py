"""Differences as bars: their tokens, who keeps them, and what fits without a bar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvtrace.panels import compatibility
from tests.rows import write_run
from tests.unit.analyses.identity_rows import SERVER, produced, reused, said
from tests.unit.panels.drawn import HOSTILE

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run


def read_by(tmp_path: Path, engine: str, *sides: dict[str, Any]) -> Run:
    """What a wrote, this engine reads."""
    parts = (produced(), reused(engine))
    tables = {
        name: [row for part in parts for row in part.get(name, ())]
        for name in ("span", "request_key", "block")
    }
    return write_run(tmp_path / "run", None, process=[SERVER], identity=list(sides), **tables)


def test_a_difference_is_a_bar_of_its_tokens_in_the_colour_of_who_keeps_it(tmp_path: Path) -> None:
    sides = [*said("a", dtype="x", lora="none"), *said("b", dtype="y", lora=HOSTILE[0])]
    frames = compatibility.data(read_by(tmp_path, "b", *sides))
    figure = compatibility.draw(frames)
    bars = {bar.name: (tuple(bar.x), bar.marker.color) for bar in figure.data}
    assert bars["nobody looks at it"] == ((128, 128), compatibility.COLORS["nobody"])
    assert figure.layout.yaxis.ticktext[0] == "read across: dtype x \N{RIGHTWARDS ARROW} y"
    assert compatibility.notes(frames) == ("Nobody looks at dtype and lora.",)
    rows = compatibility.table(frames)
    assert rows is not None
    assert rows.rows[0] == ("dtype", "x", "y", "read across", "nobody", "128")
    assert "<img" not in figure.to_json()


def test_what_fits_has_its_word_and_no_length(tmp_path: Path) -> None:
    frames = compatibility.data(read_by(tmp_path, "a", *said("a", dtype="x")))
    (bar,) = compatibility.draw(frames).data
    assert (bar.name, tuple(bar.x)) == ("no difference seen", (0, 0))
    assert bar.text[0].startswith("pass \N{EN DASH} 2 reads of state")
    assert compatibility.table(frames) is None


def test_of_many_differences_the_first_are_drawn_and_the_rest_counted(tmp_path: Path) -> None:
    sides = [
        *said("a", dtype="x", lora="none", rope_theta="1"),
        *said("b", dtype="y", lora="l", rope_theta="2"),
    ]
    frames = compatibility.data(read_by(tmp_path, "b", *sides), most=2)
    assert compatibility.notes(frames)[-1] == "3 differences: the first 2 are drawn."
    assert len(compatibility.draw(frames).layout.yaxis.ticktext) == 3  # two, and the contract that holds
