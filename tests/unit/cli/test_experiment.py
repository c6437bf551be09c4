"""kvtrace experiment: hours of runs are not lost with the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import kvtrace.cli.experiment
from kvtrace.cli import main
from tests.unit.experiment.drawn import draw_round

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_page_that_cannot_be_written_names_where_the_runs_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rounds are drawn; what is compared and written is the command's own."""
    (tmp_path / "plan.toml").write_text("[group.a]\nengine = 'x'\n")
    out = tmp_path / "out"
    run = draw_round(out / "runs" / "a-1", "a", [100.0, 200.0])
    (out / "report.html").mkdir()
    monkeypatch.setattr(kvtrace.cli.experiment, "run_all", lambda *_, **__: [run.path])
    assert main(["experiment", str(tmp_path / "plan.toml"), "--out", str(out)]) == 2
    assert f"The runs are in {out / 'runs'}." in capsys.readouterr().err
