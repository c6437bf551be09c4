"""Does `kvtrace diff` find 3 ms more a copy in a real engine, and does it cry wolf? A quiet machine can tell.

    python -m tests.bench.planted [--folder DIR]

Fifteen rounds of one vLLM with native offloading whose copies take 5 ms at least, in five rounds 8 ms: the
findings of five rounds of each, then every way to call five of the ten others the base. Numbers are printed,
never asserted; how much rounds of one thing differ is said beside them.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from kvtrace.diff.comparing import compare
from kvtrace.diff.gates import default_gates
from kvtrace.diff.measuring import values
from tests.engines import planted
from tests.engines.environment import engine_python

BEFORE_S, AFTER_S = 0.005, 0.008


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="keep the runs here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        rounds = planted.play(BEFORE_S, AFTER_S, python=engine_python(), folder=folder)
        for name in ("ttft_ns", "exposed_transfer_ns"):
            means = [values(run, name)["value"].mean() for run in rounds.before]
            spread = statistics.stdev(means) / statistics.mean(means)
            print(f"{name}: rounds of one thing differ by {spread:.1%} (standard deviation)")
        for found in compare(rounds.before[::2], rounds.after, default_gates()).findings:
            print(f"{found.metric:22} {found.verdict or '-':13} {found.because}")
        ways, failed = planted.relabelled(rounds.before)
        print(f"of {ways} gate files over rounds of one thing {failed} fail")


if __name__ == "__main__":
    main()
