"""How often do the gates fail where nothing changed, and how often do they find what did?

    python -m tests.bench.diff_power [--files 200] [--seed 9]

A simulation: 1,000 requests a run, 30 gates, 5+5 runs. log x of a request in a run = the request's own size
+ the run's effect (1% run noise: half of its variance a gate's own, half shared by all gates) + 20% noise of
the request in that run. Printed, a row a scenario: how many of the gate files fail, how often the planted
gate is `worse`, beside two rules that people use today on the same runs: "the mean of the p99s rose by more
than 20%" and "p99 of the first head run is more than 5% above that of the first base run".
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
from kvtrace.diff import tail
from kvtrace.diff.gates import Gate
from kvtrace.diff.judging import Sides, judge_gates
from kvtrace.diff.pairing import Paired

RUN_NOISE, REQUEST_NOISE = 0.01, 0.2


@dataclass(frozen=True)
class Scenario:
    """What is planted into the head runs of the first gate."""

    name: str
    shift: float = 0.0
    slow_share: float = 0.0
    slow_factor: float = 3.0
    fixed: bool = False
    """Whether the same requests are slow in every head run."""


SCENARIOS = (
    Scenario("nothing (A/A)"),
    Scenario("+2% (the minimum effect)", shift=0.02),
    Scenario("+3%", shift=0.03),
    Scenario("+5%", shift=0.05),
    Scenario("2% of requests x3, others each run", slow_share=0.02),
    Scenario("2% of requests x3, the same ones", slow_share=0.02, fixed=True),
)


def draw(
    rng: np.random.Generator, scenario: Scenario, *, gates: int, requests: int, sides: Sides
) -> list[np.ndarray]:
    """A gate: request x run, logarithms."""
    runs = sides.base + sides.head
    half = RUN_NOISE / np.sqrt(2)
    shared = rng.normal(0, half, runs)
    found = []
    for gate in range(gates):
        size = rng.normal(18, 0.8, (requests, 1))
        values = size + shared + rng.normal(0, half, runs) + rng.normal(0, REQUEST_NOISE, (requests, runs))
        if gate == 0:
            values[:, sides.base :] += np.log1p(scenario.shift)
            shape = (requests, 1) if scenario.fixed else (requests, sides.head)
            slow = rng.random(shape) < scenario.slow_share
            values[:, sides.base :] += slow * np.log(scenario.slow_factor)
        found.append(values)
    return found


def played(values: list[np.ndarray], sides: Sides) -> tuple[list[str | None], str]:
    """The verdict of every gate, and of the tail gate of the first."""
    asked = []
    for number, each in enumerate(values):
        levels = each.mean(axis=0)
        paired = Paired(levels - levels.mean(), levels, each, len(each), 0, relative=True)
        asked.append((Gate(f"gate_{number}", "relative", 0.02), paired))
    counted = tail.count(values[0][:, : sides.base], values[0][:, sides.base :])
    of_tail = tail.judge(counted, None, alpha=tail.ALPHA, least_share=tail.LEAST_SHARE)
    return [finding.verdict for finding in judge_gates(asked, sides)], of_tail


def today(values: list[np.ndarray], sides: Sides) -> tuple[bool, bool]:
    """Whether a file fails by p99 of five runs + 20%, and by p99 of one run + 5%."""
    p99 = np.exp(np.array([np.quantile(each, 0.99, axis=0) for each in values]))
    base, head = p99[:, : sides.base], p99[:, sides.base :]
    means = head.mean(axis=1) > 1.2 * base.mean(axis=1)
    return bool(means.any()), bool((head[:, 0] > 1.05 * base[:, 0]).any())


def simulate(
    scenario: Scenario, *, files: int, seed: int, gates: int = 30, requests: int = 1000, runs: int = 5
) -> dict[str, float]:
    """Shares of the gate files."""
    rng = np.random.default_rng(seed)
    sides = Sides(runs, runs)
    seen = dict.fromkeys(("fails", "planted gate worse", "tail worse", "p99 +20%", "one p99 +5%"), 0)
    for _ in range(files):
        values = draw(rng, scenario, gates=gates, requests=requests, sides=sides)
        verdicts, of_tail = played(values, sides)
        mean_rule, single_rule = today(values, sides)
        seen["fails"] += "worse" in (*verdicts, of_tail)
        seen["planted gate worse"] += verdicts[0] == "worse"
        seen["tail worse"] += of_tail == "worse"
        seen["p99 +20%"] += mean_rule
        seen["one p99 +5%"] += single_rule
    return {name: count / files for name, count in seen.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--seed", type=int, default=9)
    asked = parser.parse_args()
    for number, scenario in enumerate(SCENARIOS):
        shares = simulate(scenario, files=asked.files, seed=asked.seed + number)
        if number == 0:
            print(f"{asked.files} gate files a row, 30 gates each, 1,000 requests a run, 5+5 runs")
            print(f"{'planted':36}", *(f"{name:>18}" for name in shares))
        print(f"{scenario.name:36}", *(f"{share:18.1%}" for share in shares.values()), flush=True)


if __name__ == "__main__":
    main()
