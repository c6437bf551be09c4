"""How far are the times of native offloading's copies from those that the copies' own thread measured?

    python -m tests.bench.usable        starts vLLM with HostSpec once (about 40 s on a quiet machine)

Printed: what kvtrace recorded minus what host_offload.py measured, in us, of submit, start and end; then how
long after the worker's report a load is usable, and after the copy's end. That is vLLM's own polling: it asks
its worker once a step.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtrace.run import open_run
from tests.engines import native
from tests.engines.environment import engine_python

if TYPE_CHECKING:
    from tests.engines.native import Played

SEEN = """
    SELECT s.attributes['job']::BIGINT AS job, s.submit_ns, s.start_ns, s.end_ns, t.usable_ns
    FROM span s LEFT JOIN transfer t USING (transfer_id)
    WHERE s.observer = 'worker' AND s.op IN ('load', 'store')
"""


def differences(played: Played) -> dict[str, list[float]]:
    """Name of a difference -> its values, us, one a copy."""
    rows = open_run(played.run).connection().sql(SEEN).pl().to_dicts()
    seen: dict[int, dict[str, Any]] = {row["job"]: row for row in rows}
    found: dict[str, list[float]] = {}
    for own in played.times:
        row = seen[own["job"]]
        for name in ("submit", "start", "end"):
            found.setdefault(name, []).append((row[f"{name}_ns"] - own[f"{name}_ns"]) / 1e3)
        if not own["stores"]:
            found.setdefault("report to usable", []).append((row["usable_ns"] - own["reported_ns"]) / 1e3)
            found.setdefault("end to report", []).append((own["reported_ns"] - own["end_ns"]) / 1e3)
            found.setdefault("end to usable", []).append((row["usable_ns"] - own["end_ns"]) / 1e3)
            next_poll = (own["next_poll_ns"] - own["reported_ns"]) / 1e3
            found.setdefault("report to next poll", []).append(next_poll)
    return found


def main() -> None:
    """Play, and print least, median and most of each difference."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        played = native.play(native.HOST_SPEC, native.native_offload, python=engine_python(), out=out)
        for name, values in differences(played).items():
            values.sort()
            middle = values[len(values) // 2]
            print(f"{name:20} n={len(values):3} us: {values[0]:9.1f} {middle:9.1f} {values[-1]:9.1f}")


if __name__ == "__main__":
    main()
