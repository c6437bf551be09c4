"""Which group is each group's base: as the plan says, else as run.json does (kvtrace experiment writes it).

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
        base = run.meta.get("base")
        if isinstance(base, str):
            found.setdefault(group, {})[base] = None
    told = {group: tuple(said) for group, said in found.items()}
    planned = {name: (group.base,) if group.base else () for name, group in plan.groups.items()}
    return told | planned


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
