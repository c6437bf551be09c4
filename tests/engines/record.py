"""Records the scenarios: `python -m tests.engines.record [--scenario NAME ...] --out sample_traces`.

Every scenario gets `<out>/<name with dashes>/raw/`, replaced as a whole when it is complete.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path

from tests.engines import description, drive
from tests.engines.configuration import HOST_TIMES
from tests.engines.cut import Cutter
from tests.engines.ended import ended_well
from tests.engines.environment import engine_python
from tests.engines.privacy import require_private, scrub
from tests.engines.scenarios import RECORDED, Scenario, Session, Stage
from tests.engines.stack import NATIVE, NATIVE_CACHE, Stack, running

# LMCache pushes its metrics every 10 s; spans are exported much sooner.
SETTLE_S = 11.0
SPOOLS = "*.kvspool"
ATTEMPTS = 4


def main() -> None:
    """Parses the command line; a scenario that is not named is not played."""
    names = [scenario.name for session in RECORDED for scenario in session.scenarios]
    parser = argparse.ArgumentParser(prog="python -m tests.engines.record", description=__doc__)
    parser.add_argument("--scenario", action="append", choices=names, help="only this one (repeatable)")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, help="keep the work folders and logs here")
    options = parser.parse_args()
    python = engine_python()
    for session in RECORDED:
        chosen = [each for each in session.scenarios if each.name in (options.scenario or names)]
        if chosen:
            _recorded(session, chosen, python=python, out=options.out, work=options.work)


def _recorded(
    session: Session, scenarios: list[Scenario], *, python: Path, out: Path, work: Path | None
) -> None:
    """Again when vLLM killed one of its processes at the end, at most ATTEMPTS times in all."""
    for attempt in range(1, ATTEMPTS + 1):
        raws = record_session(session, scenarios, python=python, out=out, work=work)
        if all(ended_well(raw) for raw in raws):
            break
        again = "recorded again" if attempt < ATTEMPTS else "kept, with that loss"
        print(f"{', '.join(each.name for each in scenarios)}: vLLM killed a process of its own; {again}.")


def record_session(
    session: Session,
    scenarios: list[Scenario],
    *,
    python: Path,
    out: Path,
    work: Path | None = None,
    native: Path | None = None,
) -> list[Path]:
    """One start of the engines; returns the scenarios' raw folders.

    The run that `kvtrace run` wrote of vLLM is moved to `native`; what this run and that of the cache server
    were made of goes into the raw folder of the one scenario that a recorded start serves.
    """
    if work is not None:
        work.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="engines-", dir=work))
    try:
        with running(session.configuration, folder=folder, python=python) as stack:
            cutter = Cutter(folder)
            raws = [_record(scenario, stack, cutter, python=python, out=out) for scenario in scenarios]
        if session.configuration.kvtrace:
            spools = [*_spools(folder / NATIVE), *sorted((folder / NATIVE_CACHE).rglob(SPOOLS))]
            for raw in raws:
                _take(spools, raw)
            if native is not None:
                shutil.move(folder / NATIVE, native)
        return raws
    finally:
        if work is None:
            shutil.rmtree(folder, ignore_errors=True)


def _record(scenario: Scenario, stack: Stack, cutter: Cutter, *, python: Path, out: Path) -> Path:
    raw = stack.folder / "raw" / scenario.name
    raw.mkdir(parents=True)
    client = drive.Client(stack.vllm_url, raw / "responses.jsonl")
    stage = Stage(stack, client, lambda: _cache_pages(stack, raw))
    _vllm_page(stack, raw / "vllm-metrics-before.txt")
    scenario.play(stage)
    time.sleep(SETTLE_S)
    _vllm_page(stack, raw / "vllm-metrics.txt")
    if stack.cache_alive():
        stage.snapshot()
    cutter.take(raw)
    about = description.of(
        scenario.name,
        scenario.story,
        stack.configuration,
        python=python,
        marks_ns=stage.marks_ns,
        removed=scrub(raw / "otlp.binpb", python=python),
        host_times=_json_lines(stack.folder / HOST_TIMES),
    )
    (raw / "recording.json").write_text(json.dumps(about, indent=2) + "\n")
    require_private(raw)
    return _publish(raw, out / scenario.name.replace("_", "-") / "raw")


def _spools(run: Path) -> list[Path]:
    """The spools as the engine's processes wrote them, wherever the run keeps them by now."""
    found = sorted(run.rglob(SPOOLS))
    if not found:
        raise RuntimeError(f"{run}: kvtrace run left no spool")
    return found


def _take(spools: list[Path], raw: Path) -> None:
    (raw / "spool").mkdir()
    for spool in spools:
        shutil.copy(spool, raw / "spool")
    require_private(raw)


def _json_lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _vllm_page(stack: Stack, to: Path) -> None:
    to.write_bytes(drive.page(f"{stack.vllm_url}/metrics"))


def _cache_pages(stack: Stack, raw: Path) -> None:
    (raw / "lmcache-metrics.txt").write_bytes(drive.page(f"{stack.cache_url}/metrics"))
    (raw / "lmcache-status.json").write_bytes(drive.page(f"{stack.cache_url}/status"))


def _publish(raw: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(raw, to)
    return to


if __name__ == "__main__":
    main()
