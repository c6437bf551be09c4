"""LMCache's client inside vLLM, as its lines tell (0.5.5, the multi-process connector).

    LOOKUP to URL timed out after 5.0s            an inquiry without an answer; from then on degraded
    LMCache server is unhealthy / healthy again   the heartbeat's view
    Bypassing LMCache for request R               its load failed: the prompt is computed
    Part block hashes mismatch for request R      a lazy store came too late: dropped, stale
    <preempted> by preempted|resumed requests     out of the running ones and back, in a step that is flushed

A timed-out inquiry names no request: its row has none, and nobody may conclude from it that a request that is
not named did not ask.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvtrace.sources.engine_logs.forms import LMCACHE
from kvtrace.sources.engine_logs.log import duration_ns
from kvtrace.sources.engine_logs.rules import rule
from kvtrace.sources.records import text

if TYPE_CHECKING:
    from kvtrace.sources.engine_logs.forms import Record
    from kvtrace.sources.engine_logs.log import Log

SECOND_NS = 1_000_000_000
_NAMES = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"")
_BEAT = "lmcache-heartbeat"


def _timed_out(log: Log, record: Record, time_ns: int, found: re.Match[str]) -> None:
    """The inquiry began as long ago as it was waited for."""
    lasted = found["after"] or (log.timeout_ns or 0) / SECOND_NS
    log.before(
        record, time_ns, lasted, SECOND_NS, found["call"], op="lookup", outcome="timeout", reason="timeout",
        component="lmcache", observer="client", said={"url": found["url"]},
    )  # fmt: skip
    log.health.becomes(log, record, time_ns, "degraded")


def _setting(log: Log, _record: Record, _time_ns: int, found: re.Match[str]) -> None:
    """How long the client waits for an answer."""
    log.timeout_ns = duration_ns(found[1], SECOND_NS)


def _beats(log: Log, record: Record, time_ns: int, _found: re.Match[str]) -> None:
    log.health.begins(log, record, time_ns)


def _stops(log: Log, _record: Record, time_ns: int, _found: re.Match[str]) -> None:
    log.health.ends(log, time_ns)


def _unhealthy(log: Log, record: Record, time_ns: int, _found: re.Match[str]) -> None:
    log.health.becomes(log, record, time_ns, "degraded")


def _healthy(log: Log, record: Record, time_ns: int, _found: re.Match[str]) -> None:
    log.health.becomes(log, record, time_ns, "healthy")


def _recovers(log: Log, record: Record, time_ns: int, found: re.Match[str]) -> None:
    log.point(record, time_ns, found[1], component="lmcache", observer="client")


def _bypassed(log: Log, record: Record, time_ns: int, found: re.Match[str]) -> None:
    log.point(
        record, time_ns, "bypass", request_id=text(found[1]), component="lmcache", observer="scheduler",
        outcome="failed",
    )  # fmt: skip


def _stale(log: Log, record: Record, time_ns: int, found: re.Match[str]) -> None:
    log.point(
        record, time_ns, "lazy store skipped", request_id=text(found[1]), op="drop", reason="stale",
        outcome="skipped", component="lmcache", observer="scheduler",
    )  # fmt: skip


def _failed(log: Log, record: Record, time_ns: int, found: re.Match[str]) -> None:
    """The server's answer to one worker's transfer was that it failed."""
    op = {"store": "store", "retrieve": "load"}[found[1]]
    tiers = {"store": ("gpu", "host"), "load": ("host", "gpu")}[op]
    log.point(
        record, time_ns, f"{found[1]} failed", request_id=text(found[2]), op=op, outcome="failed",
        reason="unknown", component="lmcache.l1", observer="client", tier_from=tiers[0], tier_to=tiers[1],
    )  # fmt: skip


def _uneven(log: Log, record: Record, time_ns: int, found: re.Match[str]) -> None:
    log.point(
        record, time_ns, "uneven hit", request_id=text(found[1]), component="lmcache", observer="scheduler",
        said={"servers": found[2], "chunks": found[3]},
    )  # fmt: skip


def _preempted(log: Log, record: Record, time_ns: int, found: re.Match[str]) -> None:
    """Preempted until resumed; one that nothing resumes has no row: its end was not observed."""
    names = [one or other for one, other in _NAMES.findall(found[2])]
    for name in filter(None, map(text, names)):
        if found[1] == "preempted":
            log.wait(log.preempted, name, log.preempted.get(name, time_ns))
        elif (start_ns := log.preempted.pop(name, None)) is not None:
            log.span(
                record, start_ns, max(start_ns, time_ns), "preempted", request_id=name, op="queue",
                reason="preempted", observer="scheduler",
            )  # fmt: skip
        else:
            log.rows.remark("resumed requests whose preemption no line names")


RULES = (
    rule(LMCACHE, r"(?P<call>LOOKUP) to (?P<url>\S{1,200}) timed out after (?P<after>[\d.]{1,20})s\.",
         _timed_out,
         start="LOOKUP"),
    rule(LMCACHE, r"(?P<call>QUERY_PREFETCH_STATUS) to (?P<url>\S{1,200}) timed out\.(?P<after>)?",
         _timed_out,
         start="QUERY_PREFETCH_STATUS"),
    rule(LMCACHE, r"lmcache\.mp\.mq_timeout = ([\d.]{1,20})", _setting, start="lmcache.mp.mq_timeout"),
    rule(LMCACHE, rf"PeriodicThread {_BEAT}\S{{0,64}} entering main loop", _beats, start="PeriodicThread"),
    rule(LMCACHE, rf"Stopping PeriodicThread: {_BEAT}", _stops, start="Stopping"),
    rule(LMCACHE, r"LMCache server is unhealthy", _unhealthy),
    rule(LMCACHE, r"LMCache server is healthy again\W{1,4}resuming", _healthy, start="LMCache"),
    rule(LMCACHE, r"(LMCache server is healthy again, triggering recovery callback)", _recovers,
         start="LMCache"),
    rule(LMCACHE, r"(Finished re-registering KV caches after server recovery)", _recovers, start="Finished"),
    rule(LMCACHE, r"(Failed to re-register (?:KV caches|dispatcher) after server recovery)", _recovers,
         start="Failed"),
    rule(LMCACHE, r"Bypassing LMCache for request (.{1,512}?) after a failed async KV load", _bypassed,
         start="Bypassing"),
    rule(LMCACHE, r"Part block hashes mismatch for request (.{1,512}), skip it$", _stale, start="Part"),
    rule(LMCACHE, r"Something went wrong when processing the (store|retrieve) request for "
         r"request_id=(.{1,512}?)(?:, result=.{0,64})?$", _failed, start="Something"),
    rule(LMCACHE,
         r"\[req=(.{1,512}?)\] LMCache hit mismatch across servers: (.{1,512}?) \S{1,3} take min=(\d{1,18})",
         _uneven, start="[req="),
    rule(LMCACHE, r"<preempted> by (preempted|resumed) requests: (.*)", _preempted, start="<preempted>"),
)  # fmt: skip
