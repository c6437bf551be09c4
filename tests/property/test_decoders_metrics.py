"""Laws of the decoders of metrics: what the library writes comes back, hostile bytes cost themselves."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from kvtrace.sources import lmcache_status, mooncake_kv_events_status, prometheus
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeHistogramMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    SummaryMetricFamily,
    UnknownMetricFamily,
)
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvtrace.sources.decoded import Decoded
    from prometheus_client import Metric

LAW = settings(deadline=None)  # the first example pays for imports
NAMES = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,6}", fullmatch=True)
LABELS = st.dictionaries(
    st.from_regex(r"[a-zA-Z][a-zA-Z0-9_]{0,4}", fullmatch=True).filter(
        lambda name: name not in ("le", "quantile")
    ),
    st.text(st.characters(exclude_categories=["Cs", "Cc"], include_characters="\n\t"), max_size=8),
    max_size=3,
)
COUNTS = st.integers(0, 2**53 - 1).map(float) | st.floats(0, 1e300)
VALUES = st.floats() | st.integers(-(10**6), 10**6).map(float)
# The library cuts milliseconds where it could round: 1.001 s is written as 1000. Such times are not drawn.
WRITABLE = st.integers(1, 4 * 10**12).filter(lambda ms: int(ms / 1000 * 1000) == ms)
TIMES = st.none() | WRITABLE.map(lambda ms: ms / 1000)

Row = tuple[str, tuple[tuple[str, str], ...], float | None, int | None]


def _histogram(
    family: Any, labels: tuple[str, ...], counts: list[float], sum_value: float, time: float | None
) -> None:
    """A family's one histogram; buckets count upwards."""
    bounds = [*map(str, range(1, len(counts))), "+Inf"]
    family.add_metric(labels, list(zip(bounds, sorted(counts), strict=True)), sum_value, timestamp=time)


@st.composite
def families(draw: st.DrawFn) -> list[Metric]:
    """Families of every type, each with one child, under names that do not clash."""
    found: list[Metric] = []
    for number, name in enumerate(draw(st.lists(NAMES, max_size=5))):
        labels, time, count = draw(LABELS), draw(TIMES), draw(COUNTS)
        unique, keys, values = f"m{name}{number}x", tuple(labels), tuple(labels.values())
        match draw(st.sampled_from("cghsuqi")):
            case "c":
                family: Any = CounterMetricFamily(unique, "Doc.\n\\", labels=keys)
                family.add_metric(values, count, timestamp=time)
            case "g":
                family = GaugeMetricFamily(unique, "", labels=keys)
                family.add_metric(values, draw(VALUES), timestamp=time)
            case "h":
                family = HistogramMetricFamily(unique, "Doc.", labels=keys)
                _histogram(
                    family,
                    values,
                    draw(st.lists(st.integers(0, 99).map(float), min_size=1, max_size=4)),
                    count,
                    time,
                )
            case "q":
                family = GaugeHistogramMetricFamily(unique, "Doc.", labels=keys)
                buckets = [("1", 2.0), ("+Inf", 3.0)]
                family.add_metric(values, buckets, count, timestamp=time)
            case "s":
                family = SummaryMetricFamily(unique, "Doc.", labels=keys)
                family.add_metric(values, draw(st.integers(0, 9)), count, timestamp=time)
            case "i":
                family = InfoMetricFamily(unique, "Doc.", labels=keys)
                family.add_metric(values, {"version": "1"}, timestamp=time)
            case _:
                family = UnknownMetricFamily(unique, "Doc.", labels=keys)
                family.add_metric(values, draw(VALUES), timestamp=time)
        found.append(family)
    return found


class _Shown:
    """A collector that shows given families."""

    def __init__(self, shown: list[Metric]) -> None:
        self._shown = shown

    def collect(self) -> Iterator[Metric]:
        yield from self._shown


def text_of(shown: list[Metric], write: Callable[[CollectorRegistry], bytes]) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Shown(shown))  # type: ignore[arg-type]
    return write(registry)


def expected(shown: list[Metric]) -> list[Row]:
    return sorted(
        (
            (
                sample.name,
                tuple(sorted(sample.labels.items())),
                None if math.isnan(sample.value) else sample.value,
                None if sample.timestamp is None else round(float(sample.timestamp) * 1000) * 1_000_000,
            )
            for family in shown
            for sample in family.samples
        ),
        key=str,
    )


def read(text: bytes) -> tuple[list[Row], list[Decoded]]:
    parts = list(prometheus.decode([text.split(b"\n")], "p"))
    rows = [row for part in parts if part.tables for row in part.tables["metric"].to_dicts()]
    found = [
        (
            row["name"],
            tuple(
                sorted((e["key"], e["value"]) for e in row["labels"] if not e["key"].startswith("kvtrace."))
            ),
            row["value"],
            None if row["time_ns"] is None else round(row["time_ns"] / 1e6) * 1_000_000,
        )
        for row in rows
    ]
    return sorted(found, key=str), parts


@LAW
@given(families())
def test_what_the_library_writes_as_openmetrics_comes_back(shown: list[Metric]) -> None:
    text = text_of(shown, generate_openmetrics)
    found, parts = read(text)
    # the library's OpenMetrics writer turns colons of names into underscores
    assert found == sorted(((name.replace(":", "_"), *rest) for name, *rest in expected(shown)), key=str)
    assert [loss for part in parts for loss in part.losses] == []
    assert prometheus.looks_like(text)


@LAW
@given(families())
def test_what_the_library_writes_as_classic_text_comes_back(shown: list[Metric]) -> None:
    text = text_of(shown, generate_latest)
    found, parts = read(text)
    # the classic text calls an info a gauge and parts a gauge histogram's sums from it; names stay
    assert found == expected(shown)
    assert [loss for part in parts for loss in part.losses] == []
    assert prometheus.looks_like(text) == bool(text)


@LAW
@given(families(), families(), st.sampled_from([generate_latest, generate_openmetrics]))
def test_pages_one_after_the_other_are_the_pages(
    one: list[Metric], two: list[Metric], write: Callable[[CollectorRegistry], bytes]
) -> None:
    """The first page twice and another in between: each keeps its rows, and their order."""
    texts = [text_of(shown, write) for shown in (one, one)] + (
        [text_of(two, write)] if write is generate_openmetrics else []
    )
    _, parts = read(b"".join(texts))
    numbers = [
        next(e["value"] for e in row["labels"] if e["key"] == "kvtrace.page")
        for part in parts
        if part.tables
        for row in part.tables["metric"].to_dicts()
    ]
    sizes = [len(expected(shown)) for shown in (one, one, two)[: len(texts)]]
    assert numbers == [str(number) for number, size in enumerate(sizes) for _ in range(size)]


LINES = st.sampled_from(
    [
        b"# TYPE a counter", b"# TYPE h histogram", b"# TYPE s summary", b"# TYPE st stateset",
        b"# UNIT a_s s", b"# HELP a \\", b"# EOF", b"#", b"# TYPE", b"a_total 1", b'h_bucket{le="1"} 1',
        b"h_bucket 1", b"s 1", b"st 1", b'h{a="b"} {count:1,sum:2}', b'a{b="\\', b"a 1 -1", b"{", b"}",
        b"h {count:1,sum:2,schema:0,zero_threshold:0,zero_count:0}", b'a_total 1 # {trace_id="x"} 1 1',
        b"a 1 # {", b'{"a b"} 1', b"a 1 1e999", b'a{le="1",quantile="x"} 1', b"\xff\xfe",
        b"h {count:1,sum:2,positive_deltas:[],schema:0}", b"\xef\xbb\xbf",
    ]
)  # fmt: skip
HOSTILE = st.lists(LINES | st.binary(max_size=30), max_size=14).map(b"\n".join)


@LAW
@given(HOSTILE)
@example(b"# TYPE st stateset\nst 1\n# EOF")
@example(b'# TYPE h histogram\nh{a="b"} {count:1,sum:2}\n# EOF')
def test_no_bytes_raise_and_no_sample_line_vanishes(text: bytes) -> None:
    parts = list(prometheus.decode([text.split(b"\n")], "p"))
    prometheus.looks_like(text)
    rows = sum(part.tables["metric"].height for part in parts if part.tables)
    lost = sum(loss.count for loss in parts[-1].losses)
    lines = [line for line in text.split(b"\n") if line.strip()]
    samples = sum(not line.removeprefix(b"\xef\xbb\xbf").strip().startswith(b"#") for line in lines)
    # native histograms give two rows; the library drops a series that comes twice at one time
    assert rows <= 2 * samples
    assert bool(rows or lost) or samples <= lines.count(b"\xef\xbb\xbf")


@LAW
@given(families(), st.integers(0, 400), st.binary(min_size=1, max_size=4))
def test_bytes_put_into_a_page_cost_at_most_the_families_around_them(
    shown: list[Metric], place: int, put: bytes
) -> None:
    """A page with garbage on a line of its own keeps every sample."""
    lines = text_of(shown, generate_latest).split(b"\n")
    garbage = b"\x01" + put.replace(b"\n", b" ").replace(b"#", b" ")
    lines.insert(min(place, len(lines)), garbage)
    found, parts = read(b"\n".join(lines))
    assert found == expected(shown)
    assert [loss.count for part in parts for loss in part.losses] == [1]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | st.just("7"), inner, max_size=3)
    ),
    max_leaves=12,
)


def _numbers(value: Any) -> int:
    """How many numbers a page has that are no ids."""
    if isinstance(value, dict):
        return sum(_numbers(entry) for key, entry in value.items() if not key.endswith("_ids"))
    if isinstance(value, list):
        return sum(map(_numbers, value))
    return isinstance(value, int | float)


@LAW
@given(st.dictionaries(st.text(max_size=6), JSON, max_size=5))
def test_every_number_of_a_status_page_is_a_row(page: dict[str, Any]) -> None:
    found = lmcache_status.decode(json.dumps(page).encode(), "s")
    rows = found.tables["metric"].height if found.tables else 0
    assert rows + sum(loss.count for loss in found.losses) == _numbers(page)


@LAW
@given(st.binary(max_size=60) | JSON.map(json.dumps).map(str.encode))
def test_no_bytes_of_a_status_page_raise(page: bytes) -> None:
    lmcache_status.looks_like(page)
    found = lmcache_status.decode(page, "s")
    assert bool(found.tables) or found.losses or isinstance(json.loads(page), dict)


KV_STATUS = st.fixed_dictionaries(
    {"enabled": st.booleans() | JSON},
    optional={
        name: st.integers(0, 2**53) | JSON
        for name in ("published_batches", "published_events", "dropped_events", "skipped_unparsed_keys")
    },
)


@LAW
@given(st.binary(max_size=60) | (KV_STATUS | JSON).map(json.dumps).map(str.encode))
def test_no_page_about_kv_events_raises_and_each_count_of_one_is_a_row(page: bytes) -> None:
    mooncake_kv_events_status.looks_like(page)
    found = mooncake_kv_events_status.decode(page, "s")
    rows = found.tables["metric"].to_dicts() if found.tables else []
    if not rows:
        assert [loss.cause for loss in found.losses] == ["undecodable"]
        return
    said = json.loads(page)
    counts = {name: said.get(name) for name in ("published_events", "dropped_events")}
    told = {row["name"].rpartition(".")[2]: row["value"] for row in rows}
    for name, count in counts.items():
        known = isinstance(count, int) and not isinstance(count, bool) and 0 <= count < 2**63
        assert not known or told[name] == count
    assert told["enabled"] == float(said["enabled"])
