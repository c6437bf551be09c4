"""Laws of the replay behind `whatif`, on drawn runs: each request, each of the three replays."""

from __future__ import annotations

import itertools
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl
from hypothesis import given
from kvtrace.analyses.exposure import exposure
from kvtrace.analyses.exposure.cache import prepare
from kvtrace.analyses.whatif.changes import Shorter, hop_of
from kvtrace.analyses.whatif.replay import HIGH, LOW, PREDICTED, replay
from tests.property.oracle_whatif import PATHS, Rows, loading_runs, saved_by_ticks
from tests.property.test_exposure import cases
from tests.rows import write_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.analyses.exposure.cache import Prepared
    from kvtrace.run import Run

HOPS = (("host", "gpu"), ("disk", "host"))
LOOKUPS = Shorter(name="", assumption="", lookup_ns=0)
FAILURES = Shorter(name="", assumption="", copies=True, lookup_ns=1, failed_only=True)

Saved = npt.NDArray[np.int64]


def path(hop: tuple[str, str], factor: float = 1.0, less_ns: int = 0) -> Shorter:
    """A path that is so much faster."""
    return Shorter(name="", assumption="", copies=True, hop=hop_of(*hop), factor=factor, less_ns=less_ns)


@dataclass(frozen=True)
class Drawn:
    """A drawn run, made ready once; the requests with a first token and an exact partition, in order."""

    run: Run
    prepared: Prepared
    requests: pl.DataFrame

    def saved(self, *changes: Shorter) -> list[Saved]:
        """Rows LOW, PREDICTED, HIGH of those requests."""
        own = self.requests["number"].to_numpy()
        return [found.ns[:, own] for found in replay(self.prepared, changes)]

    def exposed(self, column: str, classes: tuple[str, ...], hop: str | None = None) -> Saved:
        """A column of their ttft's partition, summed over classes, and of loads over one hop."""
        rows = exposure(self.run, window="ttft").filter(
            pl.col("class").is_in(list(classes)), pl.col("hop").is_null() | (pl.col("hop") == (hop or ""))
        )
        sums = rows.group_by("request_id").agg(pl.col(column).sum())
        joined = self.requests.join(sums, on="request_id", how="left", maintain_order="left")
        return joined[column].fill_null(0).to_numpy()


@contextmanager
def world(run: Rows) -> Iterator[Drawn]:
    """The run on disk."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [{"run_id": "r", "span_id": number, **row} for number, row in enumerate(run, 1)]
        opened = write_run(Path(folder) / "run", span=rows)
        prepared = prepare(opened)
        known = prepared.table.select(
            "request_id", "number", "ttft_exact", ttft_ns=pl.col("token_ns") - pl.col("start_ns")
        )
        yield Drawn(opened, prepared, known.filter("ttft_exact", pl.col("ttft_ns").is_not_null()))


@given(loading_runs())
@cases(6)
def test_a_factor_of_one_and_a_bound_that_nothing_reaches_change_nothing(run: Rows) -> None:
    with world(run) as found_in:
        long = replace(LOOKUPS, lookup_ns=1 << 60)
        for found in found_in.saved(*(path(hop) for hop in HOPS), long):
            assert not found.any()


@given(loading_runs())
@cases(6)
def test_a_faster_path_never_raises_a_prediction(run: Rows) -> None:
    with world(run) as rows:
        for hop in HOPS:
            slower = rows.saved(*(path(hop, factor) for factor in (1.5, 2, 4, float("inf"))))
            shorter = rows.saved(*(path(hop, less_ns=less) for less in (1, 3, 9)))
            for found in (slower, shorter):
                for one, other in itertools.pairwise(found):
                    assert (other >= one).all()


@given(loading_runs())
@cases(6)
def test_a_load_of_no_time_gives_what_was_exposed_at_most_and_so_never_more_than_its_total(
    run: Rows,
) -> None:
    """Hidden time gives nothing: only instants at which this hop, or a wait for loads, had won are gone."""
    with world(run) as rows:
        for hop in HOPS:
            (found,) = rows.saved(path(hop, float("inf")))
            name = "->".join(hop)
            total = rows.exposed("total_ns", ("load",), name)
            waits = rows.exposed("exposed_ns", ("wait_load",))
            own = rows.exposed("exposed_ns", ("load",), name)
            for mode in (PREDICTED, HIGH):
                assert (found[mode] <= total).all()
                assert (found[mode] <= own + waits).all()


@given(loading_runs())
@cases(6)
def test_lookups_of_no_time_give_what_was_exposed_at_most(run: Rows) -> None:
    with world(run) as rows:
        (found,) = rows.saved(LOOKUPS)
        own = rows.exposed("exposed_ns", ("lookup", "wait_lookup"))
        assert (found[PREDICTED] <= own).all()


@given(loading_runs())
@cases(6)
def test_the_replays_are_in_order_and_take_no_more_than_there_is(run: Rows) -> None:
    with world(run) as rows:
        ttft = rows.requests["ttft_ns"].to_numpy()
        changes = [*(path(hop, 3) for hop in HOPS), LOOKUPS, FAILURES]
        for found in rows.saved(*changes):
            assert (found[HIGH] >= 0).all()
            assert (found[PREDICTED] >= found[HIGH]).all()
            assert (found[LOW] >= found[PREDICTED]).all()
            assert (found[LOW] <= ttft).all()


@given(loading_runs())
@cases(16)
def test_each_replay_is_what_stepping_through_every_tick_gives(run: Rows) -> None:
    with world(run) as rows:
        for factor in (2.0, 5.0, float("inf")):
            found = rows.saved(*(path(hop, factor) for hop in HOPS))
            for name, mine in zip(PATHS, found, strict=True):
                expected = saved_by_ticks(run, name, factor)
                ids = rows.requests["request_id"]
                assert dict(zip(ids, map(tuple, mine.T.tolist()), strict=True)) == expected
