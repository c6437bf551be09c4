"""Everything that is neither a key's, a lookup's nor a copy's: points in time, counts, samples.

What nobody here knows becomes a row with its numbers alone: a text may be what a person wrote. Token ids of
block allocations are counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.recorder import shape

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from kvtrace.instrument.lmcache.blocks import FirstLevel, Handler, Row

_SAME = {"observer": "server", "evidence": "native", "outcome": "ok"}
_WHEN = ("name", "start_ns", "end_ns", "attributes.seq")
SESSION = shape("span", (*_WHEN, "request_id"), attribution="request", component="lmcache", **_SAME)
COUNTS = shape(
    "span", (*_WHEN, "attributes.succeeded", "attributes.failed"), attribution="key", component="lmcache.l1",
    **_SAME,
)  # fmt: skip
EVICTED = shape("span", (*_WHEN, "attributes.key_count"), component="lmcache.l2", **_SAME)
ALLOCATED = shape(
    "span", (*_WHEN, "request_id", "blocks", "tokens", "attributes.instance_id"), attribution="request",
    component="vllm.gpu", **_SAME,
)  # fmt: skip
TIMEOUT = shape(
    "span", (*_WHEN, "request_id", "attributes.exception_type", "attributes.message"), observer="server",
    evidence="native", outcome="timeout", component="lmcache",
)  # fmt: skip
PHASE = shape(
    "span",
    ("name", "start_ns", "end_ns", "attributes.seq", "transfer_id", "bytes", "device",
     "attributes.direction", "attributes.elapsed_ms"),
    clock="gpu", component="lmcache", **_SAME,
)  # fmt: skip
SAMPLE = shape("metric", ("time_ns", "name", "value"), kind="gauge")
CAPACITY = shape(
    "metric", ("time_ns", "value", "labels.tier", "labels.backend", "labels.shared"),
    name="lmcache.capacity_bytes", kind="gauge",
)  # fmt: skip
LONGEST = 200
_UNDONE = {
    "sm.read.prefetched_finished": ("read", "unreleased"),
    "sm.write.finished": ("write", "unfinished"),
}
"""Event -> mode and reason of its failed keys: a release that released nothing, a write that was too late."""


class Points:
    """Events that need nothing but themselves, and the clock by which a time in seconds is ours."""

    def __init__(self, offset_ns: int = 0) -> None:
        self._offset_ns = offset_ns

    def handlers(self) -> dict[str, Handler]:
        """Name of an event -> what decodes it."""
        return {
            "mp.request.start": _session("mp.request.start"),
            "mp.request.end": _session("mp.request.end"),
            "mp.vllm.end_session": _session("mp.vllm.end_session"),
            "mp.vllm.block_allocation": _allocated,
            "l1.eviction.loop_tick": _ticked,
            "l2.keys.evicted": lambda seq, at, _, said: [
                (EVICTED, "l2.keys.evicted", at, at, seq, said.get("key_count"))
            ],
            "sm.capacity.changed": _capacity,
            "timeout.raised": _timeout,
            "mp.transfer.phase_samples": self._phases,
        }

    def _phases(self, seq: int, _at: int, _sid: str, said: dict[str, Any]) -> list[Row]:
        """Sections of copies that CUDA timed; a kernel's time is mostly its wait for the device."""
        rows: list[Row] = []
        for phase, direction, device, elapsed_ms, size, transfer, start_s, end_s in said.get("samples") or ():
            start, end = (round(seconds * 1e9) - self._offset_ns for seconds in (start_s, end_s))
            name = f"transfer.{getattr(phase, 'name', phase)}".lower()
            way = str(getattr(direction, "name", direction))
            rows.append((PHASE, name, start, end, seq, transfer or None, size, str(device), way, elapsed_ms))
        return rows


def storage(first: FirstLevel) -> dict[str, Handler]:
    """The storage manager's own counts; of failed releases and writes also the keys."""

    def handler(name: str) -> Handler:
        def rows(seq: int, at: int, _sid: str, said: dict[str, Any]) -> list[Row]:
            good, bad = said.get("succeeded_keys") or (), said.get("failed_keys") or ()
            counted: list[Row] = [(COUNTS, name, at, at, seq, len(good), len(bad))]
            return counted + (first.failed(seq, at, bad, *_UNDONE[name]) if name in _UNDONE and bad else [])

        return rows

    names = ("sm.write.reserved", "sm.write.finished", "sm.read.prefetched", "sm.read.prefetched_finished")
    return {name: handler(name) for name in names}


def numbers(name: str) -> Handler:
    """A handler of an event of which only its numbers matter, or are known: no text."""

    def rows(seq: int, at: int, sid: str, said: dict[str, Any]) -> list[Row]:
        found = {key: value for key, value in said.items() if isinstance(value, (bool, int, float))}
        columns = tuple(f"attributes.{key}"[:LONGEST] for key in sorted(found))
        kind = shape("span", (*_WHEN, "request_id", *columns), component="lmcache", **_SAME)
        return [(kind, name, at, at, seq, sid or None, *(found[key] for key in sorted(found)))]

    return rows


def _session(name: str) -> Handler:
    def rows(seq: int, at: int, sid: str, said: dict[str, Any]) -> list[Row]:
        return [(SESSION, name, at, at, seq, said.get("request_id") or sid or None)]

    return rows


def _allocated(seq: int, at: int, _sid: str, said: dict[str, Any]) -> list[Row]:
    """One row a request of the scheduler's report; its token ids are counted here and go no further."""
    instance = said.get("instance_id")
    return [
        (ALLOCATED, "mp.vllm.block_allocation", at, at, seq, record.req_id, len(record.new_block_ids),
         len(record.new_token_ids), instance)
        for record in said.get("records") or ()
    ]  # fmt: skip


def _ticked(_seq: int, at: int, _sid: str, said: dict[str, Any]) -> list[Row]:
    samples: Iterable[tuple[str, Any]] = (
        ("lmcache.l1.usage_ratio", said.get("usage")),
        ("lmcache.l1.watermark", said.get("watermark")),
        ("lmcache.l1.eviction_triggered", said.get("triggered")),
    )
    return [(SAMPLE, at, name, float(value)) for name, value in samples if value is not None]


def _capacity(_seq: int, at: int, _sid: str, said: dict[str, Any]) -> list[Row]:
    """A compartment's capacity; 0 is LMCache's word for no limit, which is no number."""
    rows: list[Row] = []
    for part in getattr(said.get("snapshot"), "modules", ()):
        tier, shared = getattr(part.tier, "value", part.tier), "true" if part.shared else "false"
        rows.append((CAPACITY, at, float(part.capacity_bytes) or None, str(tier), str(part.backend), shared))
    return rows


def _timeout(seq: int, at: int, sid: str, said: dict[str, Any]) -> list[Row]:
    kind, message = str(said.get("exception_type")), str(said.get("message"))[:LONGEST]
    return [(TIMEOUT, "timeout.raised", at, at, seq, sid or None, kind, message)]
