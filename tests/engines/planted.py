"""Rounds of one engine, each a run of its own, some of them with slower copies: what `diff` has to find.

b a b b a b b a b ...    b: as before, a: after the change; interleaved, so that both see the same machine
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from kvtrace.diff.gates import default_gates
from kvtrace.diff.gathering import gather
from kvtrace.diff.judging import Sides, judge_gates
from kvtrace.diff.pairing import pair
from kvtrace.experiment.cutting import cut
from kvtrace.run import open_run
from tests.engines import native
from tests.engines.leaving import Copies
from tests.engines.prompts import Prompt

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kvtrace.run import Run
    from tests.engines.drive import Client

ORDER = "bab" * 5
PROMPTS, TIMES = 5, 4
"""The pool holds three of the prompts: each of the five is gone when its turn comes."""
REQUESTS = PROMPTS * TIMES
TOKENS = 1420
"""Eleven blocks to load, and a few tokens to compute."""


@dataclass(frozen=True)
class Rounds:
    """Ten runs as before the change, and five after it."""

    before: list[Run]
    after: list[Run]


def play(before_s: float, after_s: float, *, python: Path, folder: Path) -> Rounds:
    """One engine start; copies last so long in the rounds before, and so long after the change."""

    def in_rounds(client: Client) -> None:
        copies = Copies(client.output.parent)
        prompts = [Prompt(number=number, tokens=TOKENS, answer_tokens=1) for number in range(PROMPTS)]
        client.ask(*prompts)
        copies.wait_until_idle(PROMPTS)
        for kind in ORDER:
            copies.last(before_s if kind == "b" else after_s)
            client.sent = PROMPTS  # the same ids in every round: so its requests pair
            client.ask(*prompts * TIMES)
            copies.wait_until_idle()

    played = native.play(native.HOST_SPEC, in_rounds, python=python, out=folder / "run")
    starts = [each.started_ns for each in played.client.responses[PROMPTS::REQUESTS]]
    over = played.client.responses[-1].ended_ns + 1  # vLLM may kill its own core when it stops: a loss, later
    runs: dict[str, list[Run]] = {"b": [], "a": []}
    for number, (kind, from_ns, until_ns) in enumerate(zip(ORDER, starts, [*starts[1:], over], strict=True)):
        cut(played.run, folder / f"round-{number}", from_ns=from_ns, until_ns=until_ns)
        runs[kind].append(open_run(folder / f"round-{number}"))
    return Rounds(runs["b"], runs["a"])


def relabelled(runs: Sequence[Run]) -> tuple[int, int]:
    """Ways to call half of these runs the base, and how many of them fail the default gates."""
    gates, every = default_gates(), range(len(runs))
    told = gather(runs, gates)
    ways = list(combinations(every, len(runs) // 2))
    failed = 0
    for base in ways:
        order = [*base, *(each for each in every if each not in base)]
        measured = [
            (gate, pair([told[each].of(gate) for each in order], relative=gate.unit == "relative"))
            for gate in gates.gates
        ]
        found = judge_gates(measured, Sides(len(base), len(runs) - len(base)))
        failed += any(each.verdict == "worse" for each in found)
    return len(ways), failed
