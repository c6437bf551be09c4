"""Gate files: which numbers may move, which way, and how far.

    [[gate]]                      a metric, tested over the runs
    metric = "ttft_ns"            or question.column, such as "ledger.block_hold_ns"
    direction = "lower"           which way is good: lower (default) or higher
    min_effect = 0.02             a change that does not matter; 2%, 1 ms or 1 token unless said
    alpha = 0.05
    unit = "relative"             or "absolute": what min_effect is in; the metric's own habit unless said

    [[tail]]                      a few requests much slower than before (see tail.py)
    metric = "ttft_ns"            alpha, min_share

    [[exact]]                     a count that must not move
    metric = "failed"

    [[sql]]                       your own number: one row with one number a run
    name = "slow"                 query; direction, min_effect (0 unless said), alpha as above

Read strictly: what is not known here is an error that names the nearest known word.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from kvtrace.analyses import questions
from kvtrace.diff import tail
from kvtrace.diff.toml import read_toml
from kvtrace.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from kvtrace.diff.verdicts import Direction

MEASURED = ("ttft_ns", "itl_p50_ns", "exposed_transfer_ns", "recomputed_tokens")
COUNTS = ("failed", "hung", "violations", "losses")
POSITIVE = frozenset({"ttft_ns", "itl_p50_ns", "itl_p99_ns", "bandwidth_bytes_per_s"})
"""What can never be 0, by name or column: compared as a ratio. All else is a difference in its unit."""
LEAST = {"relative": 0.02, "ns": 1e6, "tokens": 1.0, "bytes": 0.0, "count": 0.0}
"""min_effect where nobody says one: 2%, 1 ms, 1 token; bytes and counts have none."""
ALPHA = 0.05

Unit = Literal["relative", "ns", "tokens", "bytes", "count"]


@dataclass(frozen=True)
class Gate:
    """A metric that is tested over the runs; `query` where the metric is the user's own SQL."""

    metric: str
    unit: Unit
    min_effect: float
    direction: Direction = "lower"
    alpha: float = ALPHA
    query: str | None = None


@dataclass(frozen=True)
class Tail:
    """A metric of which few requests may become much slower."""

    metric: str
    alpha: float = tail.ALPHA
    min_share: float = tail.LEAST_SHARE


@dataclass(frozen=True)
class Gates:
    """A gate file. `named`: somebody wrote it, so that what was not observed is no pass."""

    gates: tuple[Gate, ...]
    tails: tuple[Tail, ...] = ()
    exact: tuple[str, ...] = ()
    named: bool = True


def default_gates() -> Gates:
    """TTFT, inter-token time, exposed transfer, recomputed tokens, the tail of TTFT, and all exact counts."""
    gates = tuple(_gate({"metric": metric}, "default") for metric in MEASURED)
    return Gates(gates, (Tail("ttft_ns"),), COUNTS, named=False)


def unit_of(metric: str) -> Unit:
    """In what a metric's change is told unless a gate says otherwise."""
    column = metric.rpartition(".")[2]
    return "relative" if column in POSITIVE else own_unit(metric)


def own_unit(metric: str) -> Unit:
    """What a metric's values are in, by how its name ends."""
    column = metric.rpartition(".")[2]
    endings: tuple[Unit, ...] = ("ns", "tokens", "bytes")
    return next((unit for unit in endings if column.endswith(f"_{unit}")), "count")


def read_gates(path: Path) -> Gates:
    """A gate file.

    Raises:
        UsageError: it cannot be read, is not TOML, or a table, key, word or number in it is not known.
    """
    content = read_toml(path)
    for table in content:
        _known(f"{path}: [[{table}]]", table, _READERS)
    found: dict[str, list[Any]] = {table: [] for table in _READERS}
    for table, reader in _READERS.items():
        entries = content.get(table, [])
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise UsageError(f"{path}: {table} must be a list of tables; write [[{table}]].")
        for number, entry in enumerate(entries, start=1):
            found[table].append(reader(entry, f"{path}: {table} {number}"))
    gates = Gates((*found["gate"], *found["sql"]), tuple(found["tail"]), tuple(found["exact"]))
    if not (gates.gates or gates.tails or gates.exact):
        raise UsageError(f"{path}: holds no gate; add a [[gate]] with a metric.")
    for names in ([g.metric for g in gates.gates], [t.metric for t in gates.tails], gates.exact):
        if twice := next((name for name in names if list(names).count(name) > 1), None):
            raise UsageError(f"{path}: {twice} is gated twice in the same way; leave one.")
    return gates


def _gate(entry: dict[str, Any], where: str) -> Gate:
    _keys(where, entry, ("metric", "direction", "min_effect", "alpha", "unit"))
    metric = _metric(where, entry, (*MEASURED, *COUNTS))
    unit = unit_of(metric)
    said = _word(where, entry, "unit", ("relative", "absolute"), "")
    if said:
        unit = "relative" if said == "relative" else own_unit(metric)
    return _statistical(where, entry, metric, unit, LEAST[unit])


def _sql(entry: dict[str, Any], where: str) -> Gate:
    _keys(where, entry, ("name", "query", "direction", "min_effect", "alpha"))
    name, query = _text(where, entry, "name"), _text(where, entry, "query")
    return _statistical(where, entry, name, "count", 0.0, query=query)


def _statistical(
    where: str, entry: dict[str, Any], metric: str, unit: Unit, least: float, query: str | None = None
) -> Gate:
    direction: Any = _word(where, entry, "direction", ("lower", "higher"), "lower")
    min_effect = _number(where, entry, "min_effect", least)
    return Gate(metric, unit, min_effect, direction, _level(where, entry, ALPHA), query)


def _tail(entry: dict[str, Any], where: str) -> Tail:
    _keys(where, entry, ("metric", "alpha", "min_share"))
    metric = _metric(where, entry, MEASURED)
    if unit_of(metric) != "relative":
        raise UsageError(f"{where}: {metric} can be 0 and has no ratios; a tail needs ttft_ns or the like.")
    share = _number(where, entry, "min_share", tail.LEAST_SHARE)
    return Tail(metric, _level(where, entry, tail.ALPHA), share)


def _exact(entry: dict[str, Any], where: str) -> str:
    _keys(where, entry, ("metric",))
    metric = _metric(where, entry, (*COUNTS, "recomputed_tokens"))
    if unit_of(metric) == "relative":
        raise UsageError(f"{where}: {metric} is measured, it always moves; gate it with [[gate]].")
    return metric


_READERS: dict[str, Callable[[dict[str, Any], str], Any]] = {
    "gate": _gate, "tail": _tail, "exact": _exact, "sql": _sql,
}  # fmt: skip


def _metric(where: str, entry: dict[str, Any], plain: tuple[str, ...]) -> str:
    """A metric of this list, or question.column; whether the column is there, the run's answer will say."""
    metric = _text(where, entry, "metric")
    name, dot, column = metric.partition(".")
    if dot and column:
        _known(f"{where}: {metric}", name, questions())
    else:
        _known(where, metric, plain)
    return metric


def _keys(where: str, entry: dict[str, Any], keys: tuple[str, ...]) -> None:
    for key in entry:
        _known(where, key, keys)


def _known(where: str, word: str, words: Iterable[str]) -> None:
    there = list(words)
    if word not in there:
        near = difflib.get_close_matches(word, there, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(there)}."
        raise UsageError(f"{where}: {word} is not known; {hint}")


def _text(where: str, entry: dict[str, Any], key: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{where}: {key} must be given, as text.")
    return value


def _word(where: str, entry: dict[str, Any], key: str, words: tuple[str, ...], default: str) -> str:
    if key not in entry:
        return default
    word = _text(where, entry, key)
    _known(f"{where}: {key}", word, words)
    return word


def _number(where: str, entry: dict[str, Any], key: str, default: float) -> float:
    value = entry.get(key, default)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise UsageError(f"{where}: {key} must be a number, not {value!r}.")
    if not math.isfinite(value) or value < 0:
        raise UsageError(f"{where}: {key} must be a number from 0 on, not {value!r}.")
    return float(value)


def _level(where: str, entry: dict[str, Any], default: float) -> float:
    alpha = _number(where, entry, "alpha", default)
    if not 0 < alpha < 1:
        raise UsageError(f"{where}: alpha must lie between 0 and 1, not {alpha!r}.")
    return alpha
