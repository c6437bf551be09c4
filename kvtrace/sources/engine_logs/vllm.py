"""vLLM, as its lines tell (0.32; lines of earlier versions where they are alike).

    Engine 000: Avg prompt throughput: 696.1 tokens/s, ..., Running: 0 reqs, ..., Prefix cache hit rate: 0.0%
    Engine 000: Iteration(7): 1 context requests, 1500 context tokens, ... elapsed time: 12.34 ms
    KV Transfer metrics: vllm:kv_offload_store_bytes=11534336, ...         since the last such line
    GPU KV cache size: 5,120 tokens, Maximum concurrency for 4,096 tokens per request: 1.25x
    Recovered from KV load failure: 1 request(s) rescheduled (1280 tokens affected).
    Failing 1 request(s) due to KV load failure (...). Request IDs: {'cmpl-1'}
    Request R: cannot store chunks                                         no room on the host
    EngineCore encountered a fatal error.
    Sequence group R is preempted by PreemptionMode.RECOMPUTE mode ...     vLLM's engine before V1

Periodic lines become gauges `vllm_log.<what>`, in the unit of their text. Their absence means nothing:
`Preemptions` never shows in 0.32, and an idle engine writes none.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvtrace.sources.engine_logs.forms import VLLM
from kvtrace.sources.engine_logs.lmcache_inprocess import MILLISECOND_NS, count
from kvtrace.sources.engine_logs.rules import rule
from kvtrace.sources.records import number, text

if TYPE_CHECKING:
    from kvtrace.sources.engine_logs.forms import Record
    from kvtrace.sources.engine_logs.log import Log

MAX_VALUES = 100
"""Values of one line of transfer metrics."""
MAX_IDS = 1000
_UNITS = {"tokens/s": "tokens_per_s", "reqs": "reqs", "%": "percent", "": "count"}
_VALUE = re.compile(
    r"([A-Za-z][A-Za-z0-9 _-]{0,63}?): (\d{1,15}(?:\.\d{1,9})?) ?(tokens/s|reqs|%|)(?:,|\.?$)", re.ASCII
)
_FETCH = re.compile(
    r"KV fetch: (\d{1,15}) waiting to start, (\d{1,15}) in progress, (\d{1,15}) completed waiting"
)
_SAMPLE = re.compile(r"'?([A-Za-z][^={}',]{0,200}?)'?(?:=|: )(-?\d[\d.eE+-]{0,40})(?=[,}]|$)", re.ASCII)
_NAMES = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"")


def word(name: str) -> str:
    """A name as part of a metric's."""
    return re.sub(r"[^A-Za-z0-9_:.]+", "_", name).strip("_").lower()


def _periodic(log: Log, _record: Record, time_ns: int, found: re.Match[str]) -> None:
    labels = {"engine": found[1].lstrip("0") or "0"} if found[1] else {}
    for name, value, unit in _VALUE.findall(found[2]):
        log.metric(time_ns, f"vllm_log.{word(name)}_{_UNITS[unit]}", float(value), **labels)
    if fetch := _FETCH.search(found[2]):
        for name, value in zip(("waiting", "in_progress", "completed"), fetch.groups(), strict=True):
            log.metric(time_ns, f"vllm_log.kv_fetch_{name}_reqs", float(value), **labels)


def _iteration(log: Log, record: Record, time_ns: int, found: re.Match[str]) -> None:
    """A step without its members: nobody can say whom it served, so it is no row of the noun."""
    prompts, prompt_tokens, outputs, output_tokens = (count(found[number]) for number in range(3, 7))
    log.before(
        record, time_ns, found[7], MILLISECOND_NS, "Iteration", observer="scheduler",
        said={"engine_index": count(found[1]), "iteration": count(found[2]), "context_requests": prompts,
              "context_tokens": prompt_tokens, "generation_requests": outputs,
              "generation_tokens": output_tokens},
    )  # fmt: skip


def _transfers(log: Log, _record: Record, time_ns: int, found: re.Match[str]) -> None:
    samples = _SAMPLE.findall(found[1])
    for name, digits in samples[:MAX_VALUES]:
        try:
            value = number(float(digits))
        except ValueError:
            value = None
        if value is None:
            log.rows.refuse("values of transfer metrics that are no numbers")
        else:
            log.metric(time_ns, f"vllm_log.kv_transfer.{word(name.rpartition('{')[2])}", value)
    log.rows.refuse("transfer metrics of one line", cause="dropped", count=max(0, len(samples) - MAX_VALUES))


def _pool(log: Log, _record: Record, time_ns: int, found: re.Match[str]) -> None:
    log.metric(time_ns, "vllm_log.kv_cache_size_tokens", float(found[1].replace(",", "")))


def _starts(log: Log, _record: Record, _time_ns: int, found: re.Match[str]) -> None:
    """A start of the engine, which may be another one of the same file."""
    log.begins_anew()
    log.versions["vllm"] = found[1]


def _recovered(log: Log, record: Record, time_ns: int, found: re.Match[str]) -> None:
    """The load itself, and whose it was, is said by the connector alone, if at all."""
    log.point(
        record, time_ns, "KV load failure recovered", outcome="failed", tokens=count(found[2]),
        observer="scheduler", said={"requests": count(found[1])},
    )  # fmt: skip


def _failing(log: Log, record: Record, time_ns: int, found: re.Match[str]) -> None:
    names = [one or other for one, other in _NAMES.findall(found[3])]
    for name in [known for known in map(text, names) if known][:MAX_IDS]:
        log.point(
            record, time_ns, "KV load failure", request_id=name, op="load", outcome="failed",
            reason="unknown",
            tier_from="unknown", tier_to="gpu", observer="scheduler", component="vllm",
        )  # fmt: skip
    log.rows.refuse(
        "failed loads of one line", op="load", cause="dropped", count=max(0, len(names) - MAX_IDS)
    )


def _died(log: Log, record: Record, time_ns: int, _found: re.Match[str]) -> None:
    """The scheduler's process ends; nobody looks at its cache any more."""
    log.point(record, time_ns, "engine died", outcome="failed", observer="scheduler")
    log.health.ends(log, time_ns)


def _no_chunks(log: Log, record: Record, time_ns: int, found: re.Match[str]) -> None:
    log.point(
        record, time_ns, "cannot store chunks", request_id=text(found[1]), op="drop", outcome="skipped",
        reason="no_room", component="vllm.offload", observer="scheduler",
    )  # fmt: skip


def _odd(log: Log, record: Record, time_ns: int, found: re.Match[str]) -> None:
    """Something went wrong with a request's transfer, or its blocks; when it began is not said."""
    known = found.groupdict()
    late = "timed out" in found[0] or "expired" in found[0]
    log.point(
        record, time_ns, known.get("what") or found[0][:64], request_id=text(known.get("request")),
        outcome="timeout" if late else "failed", observer="scheduler",
    )  # fmt: skip


RULES = (
    rule(VLLM, r"Engine (\d{1,9}): (Avg prompt throughput: .{1,2000})$", _periodic, start="Engine"),
    rule(VLLM, r"()(Avg prompt throughput: .{1,2000})$", _periodic, start="Avg"),
    rule(VLLM,
         r"Engine (\d{1,9}): Iteration\((\d{1,18})\): (\d{1,18}) context requests, (\d{1,18}) context "
         r"tokens, "
         r"(\d{1,18}) generation requests, (\d{1,18}) generation tokens, iteration elapsed time: "
         r"([\d.]{1,24}) ms",
         _iteration, start="Engine"),
    rule(VLLM, r"KV Transfer metrics: (.*)", _transfers, start="KV"),
    *(rule(VLLM, rf"{device} KV cache size: ([\d,]{{1,24}}) tokens", _pool, start=device)
      for device in ("GPU", "CPU", "TPU", "XPU")),
    rule(VLLM, r"Initializing a V1 LLM engine \(v([\w.+-]{1,64})\)", _starts, start="Initializing"),
    rule(VLLM,
         r"Recovered from KV load failure: (\d{1,18}) request\(s\) rescheduled \((\d{1,18}) tokens "
         r"affected\)",
         _recovered, start="Recovered"),
    rule(VLLM,
         r"Failing (\d{1,18}) request\(s\) due to KV load failure \(failure_policy=fail, (\d{1,18}) tokens "
         r"affected\)\. Request IDs: (.*)", _failing, start="Failing"),
    rule(VLLM, r"EngineCore encountered a fatal error", _died),
    rule(VLLM, r"Request (.{1,512}): cannot store chunks$", _no_chunks, start="Request"),
    rule(VLLM, r"Sequence group (?P<request>.{1,512}?) (?P<what>is preempted) by", _odd, start="Sequence"),
    rule(VLLM, r"(?P<what>Releasing expired KV blocks) for request (?P<request>.{1,512}?) which were", _odd,
         start="Releasing"),
    rule(VLLM,
         r"Request (?P<request>.{1,512}?) (?P<what>timed out) after \d{1,18} seconds without being sent",
         _odd,
         start="Request"),
    rule(VLLM, r"Request (?P<request>.{1,512}?) (?P<what>expired) before sending on P side", _odd,
         start="Request"),
    rule(VLLM, r"(?P<what>NIXL transfer failure)", _odd, start="NIXL"),
    rule(VLLM, r"NixlPushConnector: (?P<what>registration) for request (?P<request>.{1,512}?) timed out",
         _odd,
         start="NixlPushConnector:"),
)  # fmt: skip
