"""Lines as they come: colours, wrappers, JSON, earlier forms; and lines that are no records."""

from __future__ import annotations

import json

import pytest
from kvtrace.sources import lmcache_log, vllm_log
from kvtrace.sources.engine_logs.forms import LONGEST, record

LINE = "(EngineCore pid=12) INFO 11-30 04:00:05 [core.py:402] init engine"

COLOURED = (
    "\x1b[0;36m(EngineCore pid=12)\x1b[0;0m \x1b[32mINFO\x1b[0m \x1b[90m11-30 04:00:05\x1b[0m "
    "\x1b[90m[core.py:402]\x1b[0m init engine"
)


def form(line: str) -> tuple[object, ...]:
    found = record(line.encode())
    assert found is not None
    return found.product, found.when, found.place, found.pid, found.message


@pytest.mark.parametrize(
    "line",
    [
        LINE,
        COLOURED,
        f"vllm-1  | {LINE}",
        f"[pod/vllm-0/main] 2026-11-30T04:00:05.1Z {LINE}",
        f"2026-11-30T04:00:05.123456789Z stderr F {LINE}",
        f"Nov 30 04:00:05 host vllm[77]: {LINE}",
        json.dumps({"log": LINE + "\n", "stream": "stderr", "time": "2026-11-30T04:00:05.1Z"}),
    ],
)
def test_whoever_wrote_it_down_a_record_of_vllm_is_the_same(line: str) -> None:
    assert form(line) == ("vllm", "11-30 04:00:05", "core.py:402", 12, "init engine")


def test_an_earlier_vllm_has_no_process_and_half_a_bracket() -> None:
    assert form("INFO 12-30 10:11:11 metrics.py:467] Avg")[2:] == ("metrics.py:467", None, "Avg")


def test_a_record_of_lmcache_has_its_place_at_the_end() -> None:
    line = (
        "\x1b[32;20m[2026-11-30 04:00:05,001] LMCache INFO:\x1b[0m Stored 1 \x1b[3m(a.py:7:lmcache.a)\x1b[0m"
    )
    assert form(line) == ("lmcache", "2026-11-30 04:00:05,001", "a.py:7", None, "Stored 1")


def test_vllms_json_form_is_a_record() -> None:
    said = {"asctime": "2026-11-30 04:00:05,001", "levelname": "INFO", "name": "vllm.v1.engine.core",
            "processName": "EngineCore", "process": 12, "message": "init engine"}  # fmt: skip
    assert form(json.dumps(said)) == ("vllm", "2026-11-30 04:00:05,001", "core", 12, "init engine")


def test_a_runtimes_time_is_kept_beside_the_records_own() -> None:
    found = record(f"2026-11-30T04:00:05.5Z {LINE}".encode())
    assert found is not None
    assert found.stamp == "2026-11-30T04:00:05.5Z"


@pytest.mark.parametrize(
    "line",
    [
        "",
        'INFO:     127.0.0.1:5 - "POST /v1/completions HTTP/1.1" 200 OK',
        "Traceback (most recent call last):",
        "prompt said: (EngineCore pid=12) INFO 11-30 04:00:05 [core.py:402] init engine",
        "{",
        '{"asctime": 1, "levelname": "INFO", "name": "vllm.x", "message": "m"}',
        json.dumps({"log": json.dumps({"log": LINE, "time": "x"}), "time": "x"}),
        "\x00\xff" * 10,
    ],
)
def test_what_is_no_record_is_none(line: str) -> None:
    assert record(line.encode("utf-8", "surrogateescape")) is None


def test_a_record_that_goes_on_is_cut() -> None:
    found = record((LINE + "x" * LONGEST).encode())
    assert found is not None
    assert found.cut
    assert len(found.message) < LONGEST


def test_a_log_of_vllm_holds_lines_of_lmcache_and_is_vllms() -> None:
    other = "[2026-11-30 04:00:05,001] LMCache INFO: Stored 1 (a.py:7:lmcache.v1.a)"
    both = f"banner\n{other}\n{LINE}\n".encode()
    assert (vllm_log.looks_like(both), lmcache_log.looks_like(both)) == (True, False)
    alone = f"banner\n{other}\n".encode()
    assert (vllm_log.looks_like(alone), lmcache_log.looks_like(alone)) == (False, True)


@pytest.mark.parametrize(
    "when", ["2026-11-30 04:00:06 TP0", "2026-11-30 04:00:06.123 DP0 TP1", "2026-11-30 04:00:06"]
)
def test_a_log_of_sglang_is_not_vllms_though_it_holds_lines_of_it_and_of_lmcache(when: str) -> None:
    other = "[2026-11-30 04:00:05,001] LMCache INFO: Stored 1 (a.py:7:lmcache.v1.a)"
    head = f"INFO 11-30 04:00:05 [__init__.py:239] platform\n{other}\n[{when}] Prefill batch\n".encode()
    assert not vllm_log.looks_like(head)
    assert not lmcache_log.looks_like(head)
