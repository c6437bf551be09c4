"""What was asked for -> changes, each with its assumption in words, or with why nothing can be replayed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses.bandwidth import bandwidth
from kvtrace.analyses.coverage import coverage
from kvtrace.analyses.whatif.changes import Change, Shorter, hop_of
from kvtrace.errors import UsageError
from kvtrace.schema.vocabulary import TIERS

if TYPE_CHECKING:
    from kvtrace.run import Run

DEFAULT_FACTOR = 2.0
LONGEST_NS = 2**62
"""No time is longer."""
FAILURES, BETTER, FREED, EAGER = (
    "without failures",
    "better of load and recompute",
    "holds freed",
    "eager stores",
)

_SEEN = """
SELECT tier_from, tier_to, count(*) AS loads FROM copy
WHERE op = 'load' AND end_ns > start_ns AND evidence IS DISTINCT FROM 'predicted'
GROUP BY ALL ORDER BY ALL
"""
_LOOKUPS = """
SELECT count(*), quantile_disc(end_ns - start_ns, 0.5) FILTER (outcome IS DISTINCT FROM 'timeout')::BIGINT
FROM lookup WHERE end_ns >= start_ns AND start_ns >= 0 AND evidence IS DISTINCT FROM 'predicted'
"""
_STAYS = (
    "What else a request was recorded doing or waiting for meanwhile stays, and so do steps of others: "
    "nobody is admitted in the middle of one."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a caller of the question named; all of it unset: the default changes."""

    path: str | None
    bandwidth_factor: float | None
    latency_ns: int | None
    lookup_ns: int | None
    choose: str | None
    without: str | None
    holds: str | None
    stores: str | None

    @property
    def named(self) -> bool:
        """Whether a change was named."""
        return any(getattr(self, name) is not None for name in self.__slots__)

    def check(self) -> None:
        """Raise UsageError for what cannot be replayed."""
        words = {"choose": "better", "without": "failures", "holds": "freed", "stores": "eager"}
        for name, word in words.items():
            if getattr(self, name) not in (None, word):
                raise UsageError(f"whatif: {name} can only be {word}, not {getattr(self, name)}.")
        factor = self.bandwidth_factor
        if self.path is None and (factor is not None or self.latency_ns is not None):
            raise UsageError("whatif: name the path that changes, e.g. --path host:gpu.")
        if factor is not None and not factor >= 1:
            raise UsageError(
                f"whatif: bandwidth_factor must be at least 1, not {factor}: what a slower path would hold "
                "up, this run did not show. Ask a run that was recorded on it."
            )
        if self.latency_ns is not None and self.latency_ns > 0:
            raise UsageError(
                f"whatif: latency_ns is added to every copy and must not be above 0, not {self.latency_ns}: "
                "what a slower path would hold up, this run did not show."
            )
        if self.lookup_ns is not None and self.lookup_ns < 0:
            raise UsageError(f"whatif: lookup_ns must be at least 0, not {self.lookup_ns}.")


def changes(run: Run, options: Options) -> list[Change]:
    """The changes that were named, each by itself; the default ones where none was."""
    options.check()
    seen = [(str(one), str(other)) for one, other, _ in run.connection().sql(_SEEN).fetchall()]
    every = not options.named
    found: list[Change] = []
    if options.path is not None:
        factor = options.bandwidth_factor
        if factor is None and options.latency_ns is None:
            factor = DEFAULT_FACTOR
        found.append(_path(run, _ends(options.path), factor, options.latency_ns, seen))
    elif every:
        found += [_path(run, path, DEFAULT_FACTOR, None, seen) for path in seen]
    ((lookups, typical_ns),) = run.connection().sql(_LOOKUPS).fetchall()
    if every or options.lookup_ns is not None:
        found.append(_lookups(run, min(options.lookup_ns or 0, LONGEST_NS), lookups))
    if every or options.without:
        found.append(_failures(run, lookups, typical_ns, seen=bool(seen)))
    if every or options.choose:
        found.append(_better(run, seen=bool(seen)))
    if every or options.holds:
        found.append(_freed(run))
    if every or options.stores:
        found.append(_eager(run))
    return found


def _ends(path: str) -> tuple[str, str]:
    """disk:host or disk->host -> its tiers."""
    ends = tuple(path.replace("->", ":").split(":"))
    if len(ends) != 2 or not set(ends) <= set(TIERS):
        raise UsageError(f"whatif: {path} is no path; say e.g. disk:host, of the tiers {', '.join(TIERS)}.")
    return ends[0], ends[1]


def _path(
    run: Run, path: tuple[str, str], factor: float | None, latency_ns: int | None, seen: list[tuple[str, str]]
) -> Shorter:
    hop = "->".join(path)
    parts, words, fixed_ns = [], [], 0
    if factor is not None:
        fixed_ns = _latency(run, path)
        parts.append(f"bandwidth x{factor:g}")
        share = f"1/{factor:g}" if math.isfinite(factor) else "nothing"
        words.append(
            f"its latency ({fixed_ns / 1e6:g} ms, as measured) and {share} of what it took beyond"
            if fixed_ns
            else f"{share} of its time (no latency was measured)"
        )
    if latency_ns is not None:
        parts.append(f"{latency_ns / 1e6:+g} ms a copy")
        words.append(f"{-latency_ns / 1e6:g} ms less, down to none")
    told = (
        f"Every copy {hop} takes {', then '.join(words)}. {_STAYS} "
        "Low: who waited behind a copy of another moves too."
    )
    unseen = ""
    if path not in seen:
        fact = "loads_to_gpu" if path[1] == "gpu" else "loads_between_tiers"
        unseen = f"no load {hop} with an end was recorded{_instrument(run, fact)}"
    return Shorter(
        name=f"{hop}: {', '.join(parts)}", assumption=told, unseen=unseen, hop=hop_of(*path), copies=True,
        factor=factor or 1.0, latency_ns=fixed_ns, less_ns=min(-(latency_ns or 0), LONGEST_NS),
    )  # fmt: skip


def _latency(run: Run, path: tuple[str, str]) -> int:
    """What a copy of no bytes takes as measured, ns: of the component with most copies; 0 where unknown."""
    rows = bandwidth(run).filter(
        (pl.col("tier_from") == path[0]) & (pl.col("tier_to") == path[1]) & ~pl.col("includes_queue")
    )
    told = rows.sort("transfers", descending=True)["latency_ns"].drop_nulls()
    value = float(told[0]) if told.len() else 0.0
    return max(0, round(value)) if math.isfinite(value) else 0


def _lookups(run: Run, at_most_ns: int, seen: int) -> Shorter:
    unseen = "" if seen else f"no lookup with an end was recorded{_instrument(run, 'lookup_found_tokens')}"
    return Shorter(
        name=f"lookups: at most {at_most_ns / 1e6:g} ms", lookup_ns=at_most_ns, unseen=unseen,
        assumption=f"No lookup takes longer than {at_most_ns / 1e6:g} ms, and finds the same. {_STAYS}",
    )  # fmt: skip


def _failures(run: Run, lookups: int, usual_ns: int | None, *, seen: bool) -> Shorter:
    """usual_ns: what half of the lookups that did not time out take at most."""
    unseen, typical_ns = "", usual_ns or 0
    if not lookups and not seen:
        unseen = (
            f"neither a load nor a lookup with an end was recorded{_instrument(run, 'lookup_found_tokens')}"
        )
    elif lookups and usual_ns is None:
        unseen = "no lookup that did not time out was recorded: how long an answer takes is not known"
    told = (
        f"Lookups that timed out take what half of the others take at most ({typical_ns / 1e6:.3f} ms), "
        "loads that failed take no time; both still bring nothing: what was computed instead is computed. "
    )
    return Shorter(
        name=FAILURES, assumption=told + _STAYS, unseen=unseen, copies=True, lookup_ns=typical_ns,
        failed_only=True,
    )  # fmt: skip


def _better(run: Run, *, seen: bool) -> Change:
    told = (
        "A request whose loads cost it more than computing the same tokens would have (break_even, fitted "
        "from this engine's prefill steps) computes them. Its steps get longer, those of others do not."
    )
    unseen = "" if seen else f"no load with an end was recorded{_instrument(run, 'loads_to_gpu')}"
    return Change(name=BETTER, assumption=told, unseen=unseen)


def _freed(run: Run) -> Change:
    ((holds,),) = run.connection().sql("SELECT count(*) FROM hold").fetchall()
    told = (
        "No GPU block waits for a transfer that still needs it: time of queue_capacity that holds are to "
        "blame for (blockers) is gone, less what was going on behind it. Low: that is gone too."
    )
    return Change(
        name=FREED,
        assumption=told,
        unseen="" if holds else f"no hold was recorded{_instrument(run, 'gpu_blocks_held')}",
    )


def _eager(run: Run) -> Change:
    connection = run.connection()
    ((stores,),) = connection.sql("SELECT count(*) FROM store").fetchall()
    ((keys,),) = connection.sql("SELECT count(*) FROM request_key").fetchall()
    told = (
        "Stores begin when they are decided, and take as long. Tokens that a lookup missed by less than they "
        "waited to begin (missed_by_lag) are loaded at what a loaded token cost in this run instead of "
        "computed (break_even's fit). What more writing would cost is not in it."
    )
    missing = "" if stores and keys else (
        f"no store was recorded{_instrument(run, 'stores')}" if not stores
        else f"which keys a request asked for was not recorded{_instrument(run, 'request_keys')}"
    )  # fmt: skip
    return Change(name=EAGER, assumption=told, unseen=missing)


def _instrument(run: Run, fact: str) -> str:
    """What would record it, in brackets; nothing where it was recorded, of other requests."""
    rows = coverage(run).filter(pl.col("fact") == fact)
    return "" if rows["observed"][0] else f" ({rows['instrument'][0]} would show it)"
