"""kvtrace collect from the outside: what it prints, how it ends, and what it refuses."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from kvtrace import collect
from kvtrace.cli import main
from kvtrace.errors import RunError
from kvtrace.importer.staging import Staging
from kvtrace.run import open_run
from kvtrace.sources.otlp import json_lines
from tests.unit.collect.collecting import FREE, collector, loads
from tests.unit.collect.test_otlp_grpc import call
from tests.unit.collect.test_otlp_http import post

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 60


def begin(*words: str, **environment: str) -> subprocess.Popen[str]:
    """The command, its output in pipes."""
    return subprocess.Popen(
        [sys.executable, "-m", "kvtrace", "collect", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment},
    )  # fmt: skip


def listener(process: subprocess.Popen[str], name: str) -> str:
    """The address of the next line."""
    assert process.stdout is not None
    said = process.stdout.readline().split()
    assert said[0] == name
    return said[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_a_whole_run(tmp_path: Path, number: signal.Signals) -> None:
    run = tmp_path / "below" / "run"
    process = begin("--out", str(run), "--otlp-grpc", FREE, "--otlp-http", FREE, "--group", "tiered")
    grpc, http = listener(process, "otlp-grpc"), listener(process, "otlp-http")
    call(grpc, loads(3))
    assert post(http, loads(2, first=4))[0] == 200
    assert not run.exists()
    process.send_signal(number)
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err) == (0, "")
    assert out.splitlines() == [
        f"otlp-grpc {grpc}: 3 spans", f"otlp-http {http}: 2 spans", f"{run}: 5 span, 1 process",
        f"Next: kvtrace report {run}",
    ]  # fmt: skip
    assert open_run(run).sql("SELECT count(DISTINCT request_id) FROM span").item() == 5
    assert [path.name for path in run.parent.iterdir()] == ["run"]
    said = json.loads((run / "run.json").read_text())
    assert (said["kind"], said["group"], said["content_kept"]) == ("collect", "tiered", False)


def test_it_ends_by_itself_and_says_that_nothing_came(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(["collect", "--out", str(run), "--otlp-grpc", FREE, "--for", "0.2"]) == 0
    where, *said = capsys.readouterr().out.splitlines()
    assert said == [
        f"{where}: 0 spans", "    nothing came: no exporter sent anything", f"{run}: no rows",
        f"Next: kvtrace report {run}",
    ]  # fmt: skip
    assert open_run(run).sql("SELECT count(*) FROM span").item() == 0


def test_sources_that_stay_silent_are_named_once_while_it_lasts_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "SILENT_SECONDS", 0.0)
    with collector(tmp_path, otlp_http=FREE, kv_events=("tcp://127.0.0.1:9",)) as collecting:
        where = collecting.address("otlp-http")
        time.sleep(1.5)
    assert collecting.said == [
        f"otlp-http {where}: nothing came in 0 s; no exporter sent anything.",
        "kv-events tcp://127.0.0.1:9: nothing came in 0 s; nobody publishes there, or no event happened.",
    ]
    assert collecting.report is not None
    assert [source.notes for source in collecting.report.sources] == [
        ("nothing came: no exporter sent anything",),
        ("nothing came: nobody publishes there, or no event happened",),
    ]


def test_a_kill_leaves_no_run_and_a_folder_without_content(tmp_path: Path) -> None:
    process = begin("--out", str(tmp_path / "run"), "--otlp-grpc", FREE)
    call(listener(process, "otlp-grpc"), loads(3))
    time.sleep(0.5)
    process.kill()
    process.communicate(timeout=SECONDS)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".run.collecting-")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "no source is named"),
        (["--otlp-grpc", "4317"], "is no HOST:PORT"),
        (["--otlp-grpc", "0.0.0.0:0"], "--token-file"),
        (["--otlp-http", "0.0.0.0:0"], "--token-file"),
        (["--otlp-http", FREE, "--for", "0"], "--for 0.0"),
        (["--otlp-http", FREE, "--max-message", "0"], "--max-message"),
        (["--otlp-http", FREE, "--every", "-1"], "--every"),
        (["--kv-events", "127.0.0.1:5557"], "--kv-events"),
        (["--kv-events", "tcp://0.0.0.0:0,bind"], "--kv-events"),
        (["--metrics", "127.0.0.1:8000"], "--metrics"),
        (["--status", "ftp://127.0.0.1"], "--status"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(
    tmp_path: Path, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["collect", "--out", str(tmp_path / "run"), *words]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--otlp-grpc", "--otlp-http"])
def test_a_port_that_is_taken_ends_everything_that_began(tmp_path: Path, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        others = ["--otlp-grpc", FREE, "--otlp-http", FREE]
        others[others.index(option) + 1] = where
        process = begin("--out", str(tmp_path / "run"), *others)
        out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, out) == (2, "")
    reason = "cannot listen there (Address already in use); choose another port, or 0 for a free one."
    assert err == f"kvtrace: {option} {where}: {reason}\n"
    assert list(tmp_path.iterdir()) == []


def test_two_collectors_never_share_a_port(tmp_path: Path) -> None:
    with collector(tmp_path, otlp_grpc=FREE, otlp_http=FREE) as collecting:
        for name in ("otlp-grpc", "otlp-http"):
            where = collecting.address(name)
            process = begin("--out", str(tmp_path / "other"), f"--{name}", where)
            _out, err = process.communicate(timeout=SECONDS)
            assert process.returncode == 2
            assert "cannot listen there" in err


def test_nothing_is_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").mkdir()
    assert main(["collect", "--out", str(tmp_path / "run"), "--otlp-grpc", FREE, "--for", "1"]) == 2
    assert "exists already" in capsys.readouterr().err


EXPORTER = """
import sys, time
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
provider = TracerProvider()
exporter = OTLPSpanExporter("http://" + sys.argv[1], insecure=True)
provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=20, max_export_batch_size=50))
print("begins", flush=True)
for number in range(1_000_000):
    said = {"kvtrace.op": "load", "kvtrace.request.id": f"r{number}"}
    provider.get_tracer("test").start_span("load", attributes=said).end()
    time.sleep(0.0002)
"""


def test_an_exporter_that_is_killed_leaves_what_it_had_sent_and_the_next_is_served(tmp_path: Path) -> None:
    with collector(tmp_path, otlp_grpc=FREE) as collecting:
        where = collecting.address("otlp-grpc")
        with subprocess.Popen([sys.executable, "-c", EXPORTER, where], stdout=subprocess.PIPE) as exporter:
            assert exporter.stdout is not None
            exporter.stdout.readline()
            time.sleep(1.0)
            exporter.kill()
        call(where, loads(7))
    own = "FROM span WHERE process = 'engine-1'"
    assert collecting.sql(f"SELECT count(*) {own}").item() == 7
    sent = collecting.sql("SELECT request_id[2:]::INT AS n FROM span WHERE process <> 'engine-1' ORDER BY n")
    assert sent.height > 0
    assert sent["n"].to_list() == list(range(sent.height))  # whole exports, one after the other
    assert set(collecting.lost()) <= {"dropped"}  # an export that was cut


def test_a_disk_that_is_full_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Staging, "take_spans", full)
    collecting = collector(tmp_path, otlp_grpc=FREE).__enter__()
    call(collecting.address("otlp-grpc"), loads(1))
    collecting._thread.join(SECONDS)
    assert not collecting._thread.is_alive()  # ends by itself
    with pytest.raises(RunError, match=r"No space left on device.*Free space"):
        collecting.__exit__()
    assert list(tmp_path.iterdir()) == []


def test_a_decoder_that_fails_costs_its_messages_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def odd(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(json_lines, "decode", odd)
    with collector(tmp_path, otlp_grpc=FREE, otlp_http=FREE) as collecting:
        text = {"Content-Type": "application/json"}
        post(collecting.address("otlp-http"), b'{"resourceSpans": []}', text)
        call(collecting.address("otlp-grpc"), loads(2))
    assert collecting.lost() == {"undecodable": 1}
    assert collecting.sql("SELECT count(*) FROM span").item() == 2
