"""Pages from real HTTP servers on loopback: metrics, status, and servers that are slow, dead or lie."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest
from kvtrace.collect.pages import fetching, polling
from kvtrace.collect.pages.fetching import Missed, Page, fetch, place
from kvtrace.errors import UsageError
from tests.unit.collect.collecting import collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

METRICS = '# TYPE hits counter\nhits_total{{tier="host"}} {0}\n# TYPE used gauge\nused {1}\n'
LMCACHE = {"is_healthy": True, "engine_type": "mp", "storage_manager": {"l1_manager": {"used_bytes": 7}}}
MOONCAKE = {
    "enabled": False, "published_batches": 0, "published_events": 0, "dropped_events": 0,
    "skipped_unparsed_keys": 0,
}  # fmt: skip


@contextmanager
def serving(answer: Callable[[BaseHTTPRequestHandler], None], port: int = 0) -> Iterator[str]:
    """A server whose every GET is answered so."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with suppress(OSError):
                answer(self)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Page | Missed]:
    """What every poll found, as soon as it is over."""
    found: list[Page | Missed] = []

    def counting(where: fetching.Place) -> Page | Missed:
        one = fetch(where)
        found.append(one)
        return one

    monkeypatch.setattr(polling, "fetch", counting)
    return found


def until(asked: list[Page | Missed], more: int) -> None:
    """Wait until so many more polls are over."""
    wanted, deadline = len(asked) + more, time.monotonic() + 30
    while len(asked) < wanted:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def page(body: str, status: int = 200, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    """The same page always."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body.encode())

    return answer


def test_every_page_of_metrics_has_its_time(tmp_path: Path, asked: list[Page | Missed]) -> None:
    counts = iter(range(1000))

    def answer(handler: BaseHTTPRequestHandler) -> None:
        number = next(counts)
        page(METRICS.format(number, 10 * number))(handler)

    began = time.time_ns()
    with serving(answer) as url:
        with collector(tmp_path, metrics=(url,), every_seconds=0.2) as collecting:
            until(asked, 5)
        ended = time.time_ns()
    rows = collecting.sql(
        "SELECT time_ns, value, labels['tier'] AS tier, labels['kvtrace.page']::INT AS page, kind "
        "FROM metric WHERE name = 'hits_total' ORDER BY time_ns"
    )
    times = rows["time_ns"].to_list()
    assert rows.height >= 4
    assert rows["value"].to_list() == rows["page"].to_list() == list(range(rows.height))
    assert set(rows["tier"]) == {"host"}
    assert set(rows["kind"]) == {"counter"}
    assert began < times[0]
    assert times[-1] < ended
    assert times == sorted(set(times))
    assert collecting.lost() == {}
    assert collecting.report is not None
    (source,) = collecting.report.sources
    assert (source.name, source.other_rows) == (f"metrics {url}/metrics", 2 * rows.height)


def test_a_status_of_lmcache_becomes_metrics_and_an_identity(
    tmp_path: Path, asked: list[Page | Missed]
) -> None:
    document = json.dumps(LMCACHE | {"chunk_size": 256})
    with serving(page(document)) as url, collector(tmp_path, status=(url,), every_seconds=0.2) as collecting:
        until(asked, 2)
    used = "SELECT DISTINCT value FROM metric WHERE name LIKE '%l1_manager.used_bytes'"
    assert collecting.sql(used).item() == 7
    assert collecting.sql("SELECT count(*) FROM metric WHERE time_ns IS NULL").item() == 0
    assert collecting.sql("SELECT field, value FROM identity").rows() == [("chunk_size", "256")]


def test_a_mooncake_that_publishes_nothing_is_said_to(tmp_path: Path, asked: list[Page | Missed]) -> None:
    url_path = "/kv_events/status"
    with (
        serving(page(json.dumps(MOONCAKE))) as url,
        collector(tmp_path, status=(url + url_path,)) as collecting,
    ):
        until(asked, 1)
    assert collecting.report is not None
    assert collecting.report.sources[0].notes == (
        "KV events are not enabled: nothing is published, whatever the master's flags and log say",
    )
    enabled = "SELECT DISTINCT value, kind FROM metric WHERE name = 'mooncake_kv_events.enabled'"
    assert collecting.sql(enabled).rows() == [(0.0, "gauge")]
    assert collecting.lost() == {}


def test_events_that_mooncake_dropped_are_counted_once_however_often_it_says_so(
    tmp_path: Path, asked: list[Page | Missed]
) -> None:
    dropped = iter([3, 3, 5, 2])  # 2: it was started anew

    def answer(handler: BaseHTTPRequestHandler) -> None:
        count = next(dropped, 2)
        page(json.dumps(MOONCAKE | {"enabled": True, "dropped_events": count}))(handler)

    with serving(answer) as url, collector(tmp_path, status=(url,), every_seconds=0.1) as collecting:
        until(asked, 6)
    assert collecting.sql("SELECT op, cause, sum(count)::INT FROM loss GROUP BY ALL").rows() == [
        ("publish", "dropped", 7)
    ]


def slowly(handler: BaseHTTPRequestHandler) -> None:
    """A byte now and then, for longer than anybody waits."""
    handler.send_response(200)
    handler.end_headers()
    for _ in range(200):
        handler.wfile.write(b"#")
        handler.wfile.flush()
        time.sleep(0.05)


def endlessly(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b"# nothing\n" * 1000)


def halfway(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"hits 1\n")


@pytest.mark.parametrize(
    ("answer", "cause", "detail"),
    [
        (slowly, "exporter_failure", "page that took too long"),
        (endlessly, "dropped", "page longer than"),
        (halfway, "exporter_failure", "page that is no HTTP, or was cut"),
        (page("<html>hello</html>"), "undecodable", "page that is no metrics"),
        (page(""), "undecodable", "page that is no metrics"),
        (page("hits 1", 500), "exporter_failure", "page that was answered with status 500"),
        (page("", 302, Location="http://127.0.0.1:1/"), "exporter_failure", "with status 302"),
        (page("hits 1", Content_Encoding="gzip"), "undecodable", "page that came compressed"),
    ],
)
def test_a_bad_peer_is_counted_and_ends_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: list[Page | Missed],
    answer: Callable[[BaseHTTPRequestHandler], None],
    cause: str,
    detail: str,
) -> None:
    monkeypatch.setattr(fetching, "SECONDS", 0.5)
    monkeypatch.setattr(fetching, "MAX_BYTES", 1 << 20)
    with ExitStack() as stack:
        bad, good = (
            stack.enter_context(serving(answer)),
            stack.enter_context(serving(page(METRICS.format(1, 2)))),
        )
        collecting = stack.enter_context(collector(tmp_path, metrics=(bad, good), every_seconds=0.3))
        until(asked, 8)
        collecting.stop.set()
        collecting._thread.join()
    lost = collecting.sql(
        "SELECT source, cause, count, from_ns <= to_ns AS timed, detail FROM loss"
    ).to_dicts()
    assert {(row["source"], row["cause"], row["timed"]) for row in lost} == {
        (f"metrics {bad}/metrics", cause, True)
    }
    assert all(detail in row["detail"] and row["count"] >= 2 for row in lost)
    assert collecting.sql("SELECT count(*) FROM metric WHERE name = 'hits_total'").item() >= 2
    assert collecting.report is not None
    assert "nothing came: no page of metrics could be read" in collecting.report.sources[0].notes


def test_a_dead_peer_is_counted_with_the_times_between_which_it_was(
    tmp_path: Path, asked: list[Page | Missed]
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with collector(tmp_path, metrics=(url,), status=(url,), every_seconds=0.1) as collecting:
            until(asked, 8)
    rows = collecting.sql(
        "SELECT source, cause, count >= 3 AS many, to_ns > from_ns AS later, detail FROM loss ORDER BY 1"
    )
    detail = "page that cannot be reached"
    assert rows.rows() == [
        (f"metrics {url}/metrics", "exporter_failure", True, True, detail),
        (f"status {url}/status", "exporter_failure", True, True, detail),
    ]


def test_a_server_owes_no_page_before_its_first_and_after_its_last_but_between_them(
    tmp_path: Path, asked: list[Page | Missed]
) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with collector(tmp_path, metrics=(url,), every_seconds=0.1) as collecting:
        until(asked, 3)
        for _ in range(2):
            with serving(page(METRICS.format(1, 2)), port):
                until(asked, 3)
            until(asked, 3)
    assert collecting.report is not None
    before, after = collecting.report.sources[0].notes
    assert before.endswith("polls found nobody there before the first page came")
    assert after.endswith("polls found nobody there after the last page came")
    between = "from_ns > (SELECT min(time_ns) FROM metric) AND to_ns < (SELECT max(time_ns) FROM metric)"
    rows = collecting.sql(f"SELECT cause, count > 1, {between} FROM loss")
    assert rows.rows() == [("exporter_failure", True, True)]


def test_a_peer_that_takes_a_connection_and_says_nothing_costs_its_time_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetching, "SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = place(f"http://127.0.0.1:{silent.getsockname()[1]}", "--metrics", "/metrics")
        found = fetch(where)
    assert isinstance(found, Missed)
    assert found.detail == "page that took too long"


def test_one_bad_line_of_a_page_is_counted_and_the_others_stay(
    tmp_path: Path, asked: list[Page | Missed]
) -> None:
    text = METRICS.format(5, 6) + "this is no sample at all {\n" + "x" * 20_000 + " 1\n"
    with serving(page(text)) as url, collector(tmp_path, metrics=(url,), every_seconds=60) as collecting:
        until(asked, 1)
    assert collecting.sql("SELECT count(*) FROM metric").item() == 4
    assert collecting.lost() == {"undecodable": 4}


def test_a_page_is_what_its_server_said() -> None:
    with serving(page("hits 1\n")) as url:
        found = fetch(place(f"{url}/other?x=1", "--metrics", "/metrics"))
    assert isinstance(found, Page)
    assert found.content == b"hits 1\n"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8000",
        "ftp://x/",
        "http://",
        "http://x:99999/",
        "http://u:p@x/",
        "http://x/a b",
        "http://[x",
    ],
)
def test_what_is_no_url_is_one_sentence(url: str) -> None:
    with pytest.raises(UsageError, match="--metrics"):
        place(url, "--metrics", "/metrics")
