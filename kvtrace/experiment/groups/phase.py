"""The measured phase of a run that holds its own warm-up: only what was measured is compared.

warm-0 |--|  warm-1 |--|        kvx-0 |--|  kvx-1 |--|       request_id_prefix = "kvx-"
                                ^ the measured phase begins
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.errors import InputError
from kvtrace.experiment.cutting import LAST_NS, cut
from kvtrace.run import open_run

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.experiment.plan import Plan
    from kvtrace.run import Run

_FIRST = """
SELECT min(r.start_ns) FROM request r JOIN alias a USING (request_id)
WHERE a.kind = 'client' AND starts_with(a.alias, $prefix)
"""
_EARLIER = "SELECT count(*) FROM span WHERE start_ns < $begins"
_MEASURED = "SELECT count(*) FROM request WHERE start_ns >= $begins"


def begins(run: Run, plan: Plan) -> int | None:
    """When the measured phase began, unix ns: run.json says it, else the first request of the plan's prefix.

    Null: nothing tells it, and all of the run was measured.

    Raises:
        InputError: run.json says no time.
    """
    said = run.meta.get("measured_from_ns")
    if isinstance(said, int) and not isinstance(said, bool) and 0 <= said < LAST_NS:
        return said
    if said is not None:
        raise InputError(f"{run.origin}: measured_from_ns in run.json is no time in unix ns.")
    ((first,),) = run.connection().sql(_FIRST, params={"prefix": plan.load.request_id_prefix}).fetchall()
    return first if isinstance(first, int) else None


def measured_part(run: Run, begins_ns: int | None, folder: Path) -> Run:
    """The run itself, or a copy in `folder` without what came before its measured phase.

    Raises:
        InputError: no request is of the measured phase.
    """
    if begins_ns is None:
        return run
    ((earlier,),) = run.connection().sql(_EARLIER, params={"begins": begins_ns}).fetchall()
    if not earlier:
        return run
    ((left,),) = run.connection().sql(_MEASURED, params={"begins": begins_ns}).fetchall()
    if not left:
        raise InputError(f"{run.origin}: holds no request from its measured phase on (measured_from_ns).")
    out = folder / str(len(list(folder.iterdir()))) / run.origin.name
    cut(run.origin, out, from_ns=begins_ns, until_ns=None)
    return open_run(out)
