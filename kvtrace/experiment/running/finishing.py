"""A round becomes a run: engine's and backend's rows joined, the client's results, and what the plan says."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import msgspec

from kvtrace.errors import InputError
from kvtrace.experiment.cutting import cut
from kvtrace.experiment.groups.refusing import OF_PLAN
from kvtrace.experiment.groups.warm import warmed
from kvtrace.experiment.plan import workload
from kvtrace.experiment.running.serving import KVTRACE
from kvtrace.run import open_run
from kvtrace.schema.layout import PARTIAL, RUN_FILE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvtrace.experiment.plan import Plan
    from kvtrace.experiment.running.rounds import Played

IMPORT_SECONDS = 600.0


def finish(played: Played, until_ns: int | None, plan: Plan, folder: Path, say: Callable[[str], None]) -> str:
    """Write the run of one round; returns its name below `runs`.

    until_ns: when the next round of the same engine began; rows from then on are no longer of this one.

    Raises:
        InputError: what was recorded cannot be read, or holds no request of the round.
    """
    name = f"{played.group}-{played.number}"
    parts = []
    for which in ("engine", "backend"):
        recorded = played.recorded / which
        if (recorded / RUN_FILE).exists():
            part = folder / "cut" / name / which
            cut(recorded, part, from_ns=played.from_ns, until_ns=until_ns)
            parts.append(part)
    if not parts or not (parts[0] / "span").is_dir():
        raise InputError(f"{name}: nothing of its requests was recorded; see {folder / 'logs'}.")
    out = folder / "runs" / name
    _join(parts, played, out, folder, say)
    _say_what_it_is(out, played, plan)
    return name


def _join(parts: list[Path], played: Played, out: Path, folder: Path, say: Callable[[str], None]) -> None:
    """One run of all parts; results of a load generator that cannot be read are left out, and said."""
    out.parent.mkdir(exist_ok=True)
    results = [played.results] if played.results.exists() and played.results.stat().st_size else []
    log = folder / "logs" / f"{out.name}-import.log"
    for inputs in ([*parts, *results], parts):
        command = [*KVTRACE, "import", *map(str, inputs), "--out", str(out), "--group", played.group]
        with log.open("ab") as output:
            done = subprocess.run(  # noqa: S603 - our own command
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False,
                timeout=IMPORT_SECONDS,
            )  # fmt: skip
        if not done.returncode:
            return
        if results and inputs is not parts:
            say(f"{out.name}: the load generator's results are nothing that kvtrace reads (logs/{log.name}).")
    raise InputError(f"{out.name}: could not be joined; see {log}.")


def _say_what_it_is(out: Path, played: Played, plan: Plan) -> None:
    """What the plan fixes and what was seen of the warm-up, into run.json, replaced atomically."""
    told: dict[str, Any] = json.loads((out / RUN_FILE).read_bytes())
    told |= {
        "group": played.group,
        "round": played.number,
        "workload": workload(plan.load),
        "fixed": {name: getattr(plan.fixed, name) for name in OF_PLAN},
        "may_differ": list(plan.fixed.may_differ),
        "groups": {name: group.base for name, group in plan.groups.items()},
        "measured_from_ns": played.from_ns,
        "measured_to_ns": played.to_ns,
        "disconnected_ns": played.cut_ns,
        "prefix_cache_reset": played.was_reset,
        "warm": warmed(open_run(played.recorded / "engine"), played.from_ns)._asdict(),
    }
    if plan.fixed.slo is not None:
        asked = msgspec.to_builtins(plan.fixed.slo)
        told["slo"] = {name: target for name, target in asked.items() if target is not None}
    if base := plan.groups[played.group].base:
        told["base"] = base
    partial = out / f"{RUN_FILE}{PARTIAL}"
    partial.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    partial.replace(out / RUN_FILE)
