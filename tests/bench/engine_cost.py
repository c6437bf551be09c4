"""TTFT and request time of a real vLLM with and without kvtrace: `python -m tests.bench.engine_cost`.

Three engines run side by side on this machine: two without kvtrace, one started by `kvtrace run`. Every
round asks each of them the same prompts, in turns, the order rotating, so that what else happens here
falls on all three alike. The two that are the same give the noise beside which kvtrace's cost has to be
seen. Medians of the paired ratios, with 95% bootstrap intervals over the rounds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from scipy import stats
from tests.engines import drive
from tests.engines.configuration import Configuration
from tests.engines.environment import engine_python
from tests.engines.prompts import plain
from tests.engines.stack import running

ENGINES = {"without": False, "without again": False, "with kvtrace": True}


def measure(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Metric -> engine -> one number a round, ns."""
    found: dict[str, dict[str, list[float]]] = {
        metric: {name: [] for name in ENGINES} for metric in ("ttft_ns", "request_ns", "four_at_once_ns")
    }
    with ExitStack() as open_engines:
        clients = {}
        for name, kvtrace in ENGINES.items():
            folder = Path(open_engines.enter_context(tempfile.TemporaryDirectory(prefix="cost-")))
            configuration = Configuration(connector="native", kvtrace=kvtrace)
            stack = open_engines.enter_context(running(configuration, folder=folder, python=engine_python()))
            clients[name] = drive.Client(stack.vllm_url, folder / "responses.jsonl")
        for number in range(-2, rounds):  # the first two rounds warm up
            names = list(ENGINES)
            for name in names[number % 3 :] + names[: number % 3]:
                one, many = _round(clients[name], number)
                if number < 0:
                    continue
                found["ttft_ns"][name].append((one.first_token_ns or one.ended_ns) - one.started_ns)
                found["request_ns"][name].append(one.ended_ns - one.started_ns)
                found["four_at_once_ns"][name].append(
                    max(each.ended_ns for each in many) - min(each.started_ns for each in many)
                )
    return found


def _round(client: drive.Client, number: int) -> tuple[drive.Response, list[drive.Response]]:
    """A new prompt alone, then four prompts at once, half of them seen before."""
    (one,) = client.ask(*plain(100 + number))
    return one, client.ask_at_once(*plain(1000 + number, 2000 + number, 100 + number, 99 + number))


def ratio(base: list[float], head: list[float]) -> dict[str, float]:
    """Median of head / base over the rounds, with its interval."""
    ratios = np.log(np.asarray(head) / np.asarray(base))
    low, high = stats.bootstrap(
        (ratios,), np.median, method="percentile", rng=np.random.default_rng(7)
    ).confidence_interval
    middle, low, high = (round(float(np.exp(value)), 4) for value in (np.median(ratios), low, high))
    return {"ratio": middle, "low": low, "high": high}


def main() -> None:
    """Prints one JSON object a metric: the noise of two equal engines, and kvtrace's cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    found = measure(parser.parse_args().rounds)
    for metric, series in found.items():
        noise = ratio(series["without"], series["without again"])
        cost = ratio(series["without"], series["with kvtrace"])
        medians = {name: float(np.median(values)) for name, values in series.items()}
        print(json.dumps({"metric": metric, "noise": noise, "kvtrace": cost, "median_ns": medians}))


if __name__ == "__main__":
    main()
