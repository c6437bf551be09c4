"""What run.json repeats of the plan (kvtrace experiment writes it): the groups, their bases, what may differ.

tiered_cut ─► tiered ─► gpu_prefix ─► no_reuse       a run of any of the first two begins with a warm tier
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvtrace.experiment.plan import Plan
    from kvtrace.run import Run


def bases(runs: Sequence[Run], named: Sequence[str], plan: Plan) -> dict[str, tuple[str, ...]]:
    """Group -> its base; several where the runs of a group do not agree. named: the group of each run."""
    found: dict[str, dict[str, None]] = {}
    for run, group in zip(runs, named, strict=True):
        for name, base in [*told_groups(run).items(), (group, run.meta.get("base"))]:
            if isinstance(base, str):
                found.setdefault(name, {})[base] = None
    told = {group: tuple(said) for group, said in found.items()}
    planned = {name: (group.base,) if group.base else () for name, group in plan.groups.items()}
    return told | planned


def told_groups(run: Run) -> dict[str, object]:
    """The groups of the plan in their order, and each one's base, where run.json repeats them."""
    said = run.meta.get("groups")
    return said if isinstance(said, dict) else {}


def told_may_differ(runs: Sequence[Run]) -> tuple[str, ...]:
    """The factors that every run's own plan lets differ."""
    told = [said if isinstance(said := run.meta.get("may_differ"), list) else [] for run in runs]
    return tuple(
        word
        for word in (told[0] if told else [])
        if isinstance(word, str) and all(word in each for each in told)
    )


def with_bases(group: str, known: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """The group, its base, the base of that, each once: a run.json may lead in a circle."""
    seen: set[str] = set()
    ahead = [group]
    while ahead:
        name = ahead.pop()
        if name not in seen:
            seen.add(name)
            yield name
            ahead += known.get(name, ())
