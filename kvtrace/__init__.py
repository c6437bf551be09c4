"""kvtrace: trace analysis for tiered KV caches in LLM serving.

A run is a directory of Parquet tables, made by `kvtrace import` from what engines already write. Open
it, ask it questions, look at it:

    import kvtrace
    run = kvtrace.open_run("run")
    run.sql("SELECT request_id, ttft_ns FROM request ORDER BY ttft_ns DESC LIMIT 5")
    kvtrace.analyze(run, "exposure", window="ttft")
    kvtrace.figure(run, "exposure")

Code that an instrumented process runs names what it works for, and what it moves:

    with kvtrace.request("cmpl-7"):
        cache.copy_(pages)
    @kvtrace.transfer(op="load", tier_from="disk", tier_to="host")
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing costs an engine's start more than all of the recorder
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

    import plotly.graph_objects as go
    import polars as pl

    from kvtrace.instrument import request, transfer
    from kvtrace.run import Run

__version__ = "0.1.0.dev0"
__all__ = ["__version__", "analyze", "figure", "open_run", "request", "transfer"]


def __getattr__(name: str) -> Any:
    """`request` and `transfer`, of the half that records: imported when first named."""
    if name not in ("request", "transfer"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kvtrace import instrument

    found = globals()[name] = getattr(instrument, name)
    return found


def open_run(path: str | Path) -> Run:
    """Open a run directory; see kvtrace.run.open_run."""
    from kvtrace.run import open_run as opened

    return opened(path)


def analyze(
    run: Run | str | Path | Sequence[Run | str | Path], question: str, **options: Any
) -> pl.DataFrame:
    """Ask one question of a run; `kvtrace list` names them all, `kvtrace describe` their columns.

    A question over several runs is asked of a list of them, in its order: `analyze([a, b], "eager_vs_lazy")`.

    Raises:
        UsageError: no such question, or it takes more or fewer runs.
    """
    from collections.abc import Sequence

    from kvtrace.analyses import answer

    runs = [run] if isinstance(run, str) or not isinstance(run, Sequence) else run
    return answer(question, [_opened(each) for each in runs], **options)


def figure(run: Run | str | Path, panel: str, **options: Any) -> go.Figure:
    """Draw one panel of a run as a plotly figure.

    Raises:
        UsageError: no such panel.
    """
    from kvtrace.panels import panel as find

    module = find(panel)
    return module.draw(module.data(_opened(run), **options))


def _opened(run: Run | str | Path) -> Run:
    from kvtrace.run import Run

    return run if isinstance(run, Run) else open_run(run)
