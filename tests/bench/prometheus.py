"""How much the decoder of metric pages adds to the library's own loop, in CPU time of one process, one run.

    python tests/bench/prometheus.py [pages]

The page is a recorded one of a sample (vLLM 0.32), classic text as it was scraped, many times one after the
other, and the same families written as OpenMetrics by the library. The baseline is the library's parser over
each page, reading the value of every sample: no rows, no kinds, no limits, and nothing left of a page with a
bad line. Numbers are printed, never asserted.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kvtrace.sources import prometheus
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as classic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client import Metric

PAGE = Path(__file__).parents[2] / "sample_traces" / "l2-loads" / "raw" / "vllm-metrics.txt"


class Shown:
    """A collector that shows given families."""

    def __init__(self, families: list[Metric]) -> None:
        self.families = families

    def collect(self) -> Iterator[Metric]:
        yield from self.families


def as_openmetrics(text: str) -> str:
    """The same families as OpenMetrics; `_created` families are left to their histograms' names."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Shown([family for family in classic(text) if not family.name.endswith("_created")]))  # type: ignore[arg-type]
    return generate_latest(registry).decode()


def bare(parser: Callable[[str], Iterable[Metric]], pages: list[str]) -> int:
    """The library alone."""
    return sum(
        1 for page in pages for family in parser(page) for sample in family.samples if sample.value != -1
    )


def ours(pages: list[str]) -> int:
    """All pages of one file, to rows."""
    lines = [page.encode().split(b"\n") for page in pages]
    parts = prometheus.decode(lines, "bench")
    return sum(part.tables["metric"].height for part in parts if part.tables)


def cpu_s(work: Callable[[], object]) -> float:
    """CPU seconds, the better of two."""
    taken = []
    for _ in range(2):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return min(taken)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    text = PAGE.read_text()
    for name, page, parser in (
        ("classic", text, classic),
        ("openmetrics", as_openmetrics(text), openmetrics),
    ):
        pages = [page] * count
        samples = bare(parser, pages[:1]) * count
        assert ours(pages) == samples
        library, decoder = cpu_s(lambda: bare(parser, pages)), cpu_s(lambda: ours(pages))  # noqa: B023
        broken = [
            page.replace("\n", "\n{bad\n", 1) + "bad line\n" if name == "classic" else page for page in pages
        ]
        damaged = cpu_s(lambda: ours(broken))  # noqa: B023
        print(
            f"{name}: {samples:,} samples of {count} pages; library {samples / library:,.0f}/s, "
            f"decoder {samples / decoder:,.0f}/s, ratio {decoder / library:.2f}"
            + (f"; with two bad lines a page {samples / damaged:,.0f}/s" if name == "classic" else "")
        )


if __name__ == "__main__":
    main()
