"""LMCache's server, as its lines tell (0.5.5).

    Stored 1280 tokens in 0.009 seconds                  ends with its line; names no request
    Retrieved 1280 tokens in 0.010 seconds
    Prefetch request completed (L1+L2): 5/5 retained keys (2 L1, 3 L2) in 8.4 ms (external_request_id=R, ...)
    L1 memory usage 0.92 above watermark 0.80; triggering eviction.
    Store task 3 to adapter 0 failed for keys: ...

A transfer's row has no op: whose it was is not said. A lookup that finds nothing writes no line: their ratio
is no hit ratio. On a GPU the seconds of a transfer are those of its submission, the copy may still run. Keys
are one a chunk, worker and group of layers: they become tokens only where one worker with one group had
registered and the chunk was said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvtrace.sources.engine_logs.forms import LMCACHE
from kvtrace.sources.engine_logs.lmcache_inprocess import MILLISECOND_NS, SECOND_NS, count
from kvtrace.sources.engine_logs.rules import rule
from kvtrace.sources.records import LATEST_NS, text

if TYPE_CHECKING:
    import re

    from kvtrace.sources.engine_logs.forms import Record
    from kvtrace.sources.engine_logs.log import Log

_L1: dict[str, Any] = {"component": "lmcache.l1", "observer": "server"}
_MAX_WORKERS = 10_000


def _moved(log: Log, record: Record, time_ns: int, found: re.Match[str]) -> None:
    """A transfer of nobody's: no row of the noun, else a request without one had moved nothing."""
    is_load = found[1] == "Retrieved"
    log.before(
        record, time_ns, found[3], SECOND_NS, found[1], tokens=count(found[2]), outcome="ok", state_kind="kv",
        tier_from="host" if is_load else "gpu", tier_to="gpu" if is_load else "host", **_L1,
    )  # fmt: skip


def _found(log: Log, record: Record, time_ns: int, found: re.Match[str]) -> None:
    hits, asked, in_l1, in_l2 = (count(found[number]) for number in range(1, 5))
    chunk = log.chunk_tokens if len(log.workers) == 1 and log.groups <= {"0"} else None

    def tokens(keys: int | None) -> int | None:
        return None if keys is None or not chunk or keys > LATEST_NS // chunk else keys * chunk

    tiers = {"host": tokens(in_l1), "unknown": tokens(in_l2)}
    known = {tier: held for tier, held in tiers.items() if held is not None}
    all_there = hits is not None and asked is not None and hits >= asked
    log.before(
        record, time_ns, found[5], MILLISECOND_NS, "Prefetch request completed", request_id=text(found[6]),
        op="lookup", requested_tokens=tokens(asked), found_tokens=tokens(hits),
        found_by_tier=known if len(known) == len(tiers) else None, outcome="ok" if all_there else "partial",
        component="lmcache", observer="server",
        said={"keys": hits, "asked_keys": asked, "l1_keys": in_l1, "l2_keys": in_l2},
    )  # fmt: skip


def _hasher(log: Log, _record: Record, _time_ns: int, found: re.Match[str]) -> None:
    """The chunk of this server, which its keys stand for."""
    log.chunk_tokens = count(found[1]) or None
    log.workers, log.groups = set(), set()  # of the server that was started before
    log.identity |= {"chunk_size": found[1], "hash_algorithm": found[2]}


def _registered(log: Log, _record: Record, _time_ns: int, found: re.Match[str]) -> None:
    if len(log.workers) < _MAX_WORKERS:
        log.workers.add(found[1])


def _group(log: Log, _record: Record, _time_ns: int, found: re.Match[str]) -> None:
    log.groups.add(found[1])


def _gone(log: Log, record: Record, time_ns: int, found: re.Match[str]) -> None:
    """A worker that went, or that was silent for too long."""
    log.workers.discard(found[2])
    if found[1].startswith("Reaped"):
        log.point(record, time_ns, "worker reaped", component="lmcache", observer="server",
                  said={"worker": found[2], "silent_s": found[3]})  # fmt: skip


def _full(log: Log, record: Record, time_ns: int, found: re.Match[str]) -> None:
    """That keys are about to go, not which, nor that any could."""
    component = f"lmcache.{found[1].lower()}"
    log.point(
        record, time_ns, "eviction triggered", op="evict", reason="capacity", component=component,
        tier_from="host" if found[1] == "L1" else "unknown", observer="server", outcome="unknown",
        said={"usage": found[2], "watermark": found[3]},
    )  # fmt: skip
    log.metric(time_ns, "lmcache_log.usage_ratio", float(found[2]), component=component)


def _cleared(log: Log, record: Record, time_ns: int, found: re.Match[str]) -> None:
    log.point(
        record, time_ns, "cleared", op="evict", reason="cleared", tier_from="host", outcome="ok",
        said={"objects": count(found[1]), "remaining": count(found[2])}, **_L1,
    )  # fmt: skip


def _objects(log: Log, _record: Record, time_ns: int, found: re.Match[str]) -> None:
    for name, value in zip(("objects", "write_locked", "read_locked"), found.groups(), strict=True):
        log.metric(time_ns, f"lmcache_log.l1.{name}", float(value))


def _no_room(log: Log, record: Record, time_ns: int, found: re.Match[str]) -> None:
    """A reservation that failed: for a store, or for what was to be read from L2; the line does not say."""
    log.point(
        record, time_ns, "allocation failed", outcome="failed",
        said={"objects": count(found[1]), "object_bytes": count(found[2]), "short_by": count(found[3])},
        **_L1,
    )  # fmt: skip


def _l2_failed(log: Log, record: Record, time_ns: int, found: re.Match[str]) -> None:
    log.point(
        record, time_ns, "L2 store failed", outcome="failed", tier_from="host", tier_to="unknown",
        component="lmcache.l2", observer="server",
        said={"task": count(found[1]), "adapter": count(found[2])},
    )  # fmt: skip


def _broken(log: Log, record: Record, time_ns: int, found: re.Match[str]) -> None:
    """A transfer that failed, or was refused; an operation only where the line says whose."""
    is_load = found[0].startswith(("Some", "Cannot retrieve", "Rejecting RETRIEVE", "RETRIEVE"))
    whose = text(found[1])
    op = {"op": "load" if is_load else "store", "reason": "unknown"} if whose else {}
    log.point(
        record, time_ns, found[0][:64], request_id=whose, outcome="failed",
        tier_from="host" if is_load else "gpu", tier_to="gpu" if is_load else "host", **op, **_L1,
    )  # fmt: skip


def _without_context(log: Log, record: Record, time_ns: int, found: re.Match[str]) -> None:
    """An inquiry of a worker that is not registered, after a restart for one; whose it was is not said."""
    log.point(
        record, time_ns, found[1], op="lookup", outcome="skipped", reason="no_context", component="lmcache",
        observer="server",
    )  # fmt: skip


def _odd(log: Log, record: Record, time_ns: int, found: re.Match[str]) -> None:
    """What must not be, and no operation: a lock that was not held, a session that is not known."""
    known = found.groupdict()
    log.point(
        record, time_ns, found["what"][:64], request_id=text(known.get("request")), component="lmcache",
        observer="server", outcome="failed",
    )  # fmt: skip


_OF = r" for unregistered GPU instance ID \d{1,20}()?"
RULES = (
    rule(LMCACHE, r"(Stored|Retrieved) (\d{1,19}) tokens in ([\d.]{1,24}) seconds", _moved, start="Stored"),
    rule(LMCACHE, r"(Stored|Retrieved) (\d{1,19}) tokens in ([\d.]{1,24}) seconds", _moved,
         start="Retrieved"),
    rule(LMCACHE,
         r"Prefetch request completed \(L1\+L2\): (\d{1,19})/(\d{1,19}) retained keys \((\d{1,19}) L1, "
         r"(\d{1,19}) L2\) in ([\d.]{1,24}) ms \(external_request_id=(.{1,512}?), prefetch_request_id=",
         _found,
         start="Prefetch"),
    rule(LMCACHE, r"TokenHasher initialized: chunk_size=(\d{1,9}), hash_algorithm=([\w.-]{1,64})", _hasher,
         start="TokenHasher"),
    rule(LMCACHE, r"Registered KV cache for GPU ID (-?\d{1,20}) with", _registered, start="Registered"),
    rule(LMCACHE, r"Registered non-GPU context for instance (-?\d{1,20}) ", _registered, start="Registered"),
    rule(LMCACHE, r"Group (\d{1,9}) first-layer tensor", _group, start="Group"),
    rule(LMCACHE, r"(Unregistered) (?:KV cache for GPU|non-CUDA context for instance) ID (-?\d{1,20})()",
         _gone,
         start="Unregistered"),
    rule(LMCACHE, r"(Reaped) (?:GPU|non-GPU) instance (-?\d{1,20}): silent for ([\d.]{1,24})s", _gone,
         start="Reaped"),
    rule(LMCACHE, r"(L1) memory usage (\d{1,9}\.\d{1,9}) above watermark (\d{1,9}\.\d{1,9})", _full,
         start="L1"),
    rule(LMCACHE, r"(L2) usage (\d{1,9}\.\d{1,9}) above watermark (\d{1,9}\.\d{1,9})", _full, start="L2"),
    rule(LMCACHE, r"L1Manager: cleared (\d{1,18}) objects, (\d{1,18}) (?:locked objects )?remaining",
         _cleared,
         start="L1Manager:"),
    rule(LMCACHE, r"L1Manager memcheck: total objects = (\d{1,15}), write-locked = (\d{1,15}), "
         r"read-locked = (\d{1,15})", _objects, start="L1Manager"),
    rule(LMCACHE,
         r"Failed to batched allocate (\d{1,18}) memory blocks of size (\d{1,18}) because no enough memory "
         r"is "
         r"available(?: \(short by (\d{1,18}) blocks\))?", _no_room, start="Failed"),
    rule(LMCACHE, r"Store task (\d{1,18}) to adapter (\d{1,9}) failed for keys", _l2_failed, start="Store"),
    rule(LMCACHE, r"Some keys not found during retrieve!()?", _broken, start="Some"),
    rule(LMCACHE, r"Cannot (?:store|retrieve) keys due to exception()?", _broken, start="Cannot"),
    rule(LMCACHE, rf"Rejecting (?:STORE|RETRIEVE){_OF}", _broken, start="Rejecting"),
    rule(LMCACHE, r"STORE block ID underflow for request_id=(.{1,512}?): ", _broken, start="STORE"),
    rule(LMCACHE, r"RETRIEVE block ID underflow for request_id=(.{1,512}?): ", _broken, start="RETRIEVE"),
    rule(LMCACHE, r"L1Manager: (?P<what>finish (?:read|write) on [\w-]{1,32} key)", _odd, start="L1Manager:"),
    rule(LMCACHE, r"L1Manager: (?P<what>force-(?:deleting locked key|clearing all \d{1,18} objects))", _odd,
         start="L1Manager:"),
    rule(LMCACHE,
         r"Session (?P<request>.{1,512}?) (?P<what>has no lookup ipc key|not found), skipping touch", _odd,
         start="Session"),
    rule(LMCACHE, r"(?P<what>Prefetch job) for request (?P<request>.{1,512}?) not found", _odd,
         start="Prefetch"),
    rule(LMCACHE,
         r"(?P<what>L1 hit chunks exceed total hit chunks)[^\n]{0,64} request=(?P<request>.{1,512})$", _odd,
         start="L1"),
    rule(LMCACHE, r"(?P<what>Error in blocking handler)", _odd, start="Error"),
    rule(LMCACHE, r"(?P<what>Error handling request [\w.]{1,64})", _odd, start="Error"),
    rule(LMCACHE, r"(No (?:GPU context|group layout descs) found) for model", _without_context, start="No"),
)  # fmt: skip
