"""LMCache inside the engine, without a server, as its lines tell (0.5.5, LMCacheConnectorV1).

    Reqid: R, Total tokens 1500, Inference Engine computed tokens: 128, LMCache hit tokens: 1280, ...
    [req_id=R] Retrieved 1152 out of 1152 required tokens (...). size: 0.0022 gb, cost 1.9 ms, ...
    [req_id=R] Stored 1280 out of total 1500 tokens. size: 0.0024 GB, cost 3.1 ms, ...
    Request R is still waiting for async lookup after 3 seconds, returning 0 ...
    LMCache is unhealthy, skipping lookup|store|retrieve operation

What is found, and what is computed already, count from the first token. A line of a lookup is its answer:
when the question was asked nobody says, its row is a point. Sizes are rounded to 0.0001 GiB: they stay
attributes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.sources.engine_logs.forms import LMCACHE
from kvtrace.sources.engine_logs.log import duration_ns
from kvtrace.sources.engine_logs.rules import rule
from kvtrace.sources.records import LATEST_NS, text

if TYPE_CHECKING:
    import re

    from kvtrace.sources.engine_logs.forms import Record
    from kvtrace.sources.engine_logs.log import Log

MILLISECOND_NS, SECOND_NS = 1_000_000, 1_000_000_000
COMPONENT = "lmcache.inprocess"
_TIERS = {"store": ("gpu", "unknown"), "load": ("unknown", "gpu")}
"""Which of its backends took or had the tokens no line says."""


def count(digits: str | None) -> int | None:
    """A count of 64 bits."""
    found = int(digits) if digits else None
    return found if found is not None and found <= LATEST_NS else None


def _asked(log: Log, record: Record, time_ns: int, found: re.Match[str]) -> None:
    total, computed, hit, load = (count(found[number]) for number in range(2, 6))
    whole = hit is not None and total is not None and hit >= total
    log.point(
        record, time_ns, "Reqid", request_id=text(found[1]), op="lookup", requested_tokens=total,
        found_tokens=hit,
        outcome="miss" if hit == 0 else "ok" if whole else "partial", component=COMPONENT,
        observer="client",
        said={"computed_tokens": computed, "need_to_load": load, "declined_below": count(found[6])},
    )  # fmt: skip


def _late(log: Log, record: Record, time_ns: int, found: re.Match[str]) -> None:
    log.before(
        record, time_ns, found[2], SECOND_NS, "async lookup", request_id=text(found[1]), op="lookup",
        outcome="timeout", reason="timeout", component=COMPONENT, observer="scheduler",
    )  # fmt: skip


def _moved(log: Log, record: Record, time_ns: int, found: re.Match[str]) -> None:
    """A transfer that ended with its line and lasted its cost; without one it is a point."""
    op = {"Stored": "store", "Retrieved": "load"}[found[2]]
    tokens, wanted = count(found[3]), count(found[4])
    lack = tokens is not None and wanted is not None and tokens < wanted
    failed = op == "load" and tokens == 0 and wanted
    outcome = "failed" if failed else "partial" if lack and op == "load" else "ok"
    tier_from, tier_to = _TIERS[op]
    log.before(
        record, time_ns, found["cost"], MILLISECOND_NS, found[2], request_id=text(found[1]), op=op,
        tokens=tokens,
        outcome=outcome, reason=None if outcome == "ok" else "unknown", component=COMPONENT, state_kind="kv",
        tier_from=tier_from, tier_to=tier_to, purpose="reuse" if op == "load" else None, observer="worker",
        said={"of_tokens": wanted, "size_gib": found["size"]},
    )  # fmt: skip


def _short(log: Log, record: Record, time_ns: int, found: re.Match[str]) -> None:
    """The connector's own count of what its load lacks; the load has a line of its own."""
    log.point(
        record, time_ns, "failed to load", request_id=text(found[1]), tokens=count(found[2]),
        blocks=count(found[3]), outcome="failed", component=COMPONENT, observer="worker",
    )  # fmt: skip


def _skipped(log: Log, record: Record, time_ns: int, found: re.Match[str]) -> None:
    """Whose it was is not said: an inquiry that was not made is one all the same, a transfer is none."""
    is_lookup = found[1] == "lookup"
    op = (
        {"op": "lookup", "reason": "unhealthy", "observer": "client"} if is_lookup else {"observer": "worker"}
    )
    log.point(record, time_ns, f"{found[1]} skipped", outcome="skipped", component=COMPONENT, **op)


def _dropped(log: Log, record: Record, time_ns: int, found: re.Match[str]) -> None:
    log.point(
        record, time_ns, "save dropped", request_id=text(found[1]), op="drop", outcome="skipped",
        reason="unknown",
        component=COMPONENT, observer="worker",
    )  # fmt: skip


def _pressure(log: Log, record: Record, time_ns: int, found: re.Match[str]) -> None:
    """A store without room: for all of it, or for what lies beyond some chunks; whose is not said."""
    log.point(
        record, time_ns, "no room", outcome="partial" if found[1] else "skipped", component=COMPONENT,
        observer="worker", said={"stored_chunks": count(found[1])},
    )  # fmt: skip


def _unpinned(log: Log, record: Record, time_ns: int, found: re.Match[str]) -> None:
    log.point(
        record, time_ns, "pins expired", component=COMPONENT, observer="worker",
        said={"objects": count(found[1]), "pinned": count(found[2]),
              "timeout_ns": duration_ns(found[3], SECOND_NS)},
    )  # fmt: skip


def _begins(log: Log, record: Record, time_ns: int, _found: re.Match[str]) -> None:
    log.health.begins(log, record, time_ns)


def _degraded(log: Log, record: Record, time_ns: int, _found: re.Match[str]) -> None:
    log.health.becomes(log, record, time_ns, "degraded")


def _restored(log: Log, record: Record, time_ns: int, _found: re.Match[str]) -> None:
    log.health.becomes(log, record, time_ns, "healthy")


RULES = (
    rule(LMCACHE,
         r"Reqid: (.{1,512}?), Total tokens (\d{1,19}), Inference Engine computed tokens: (\d{1,19}), "
         r"LMCache hit tokens: (\d{1,19}), (?:but )?need to load: (\d{1,19})(?: < min_retrieve (\d{1,19}))?",
         _asked, start="Reqid:"),
    rule(LMCACHE, r"Request (.{1,512}?) is still waiting for async lookup after (\d{1,18}) seconds", _late,
         start="Request"),
    rule(LMCACHE, r"\[req_id=(.{1,512}?)\] (Stored|Retrieved) (\d{1,19}) out of (?:total )?(\d{1,19})"
         r"(?: required)?(?: tokens)?[^.]{0,100}(?:\. size: (?P<size>[\d.]{1,24}) [gG][bB], "
         r"cost (?P<cost>[\d.]{1,24}) ms)?", _moved, start="[req_id="),
    rule(LMCACHE, r"Request (.{1,512}?) failed to load (\d{1,19}) tokens across (\d{1,19}) blocks", _short,
         start="Request"),
    rule(LMCACHE, r"LMCache is unhealthy, skipping (lookup|store|retrieve)(?:_layer)? operation", _skipped,
         start="LMCache"),
    rule(LMCACHE, r"Skipping KV save for request (.{1,512}?): ", _dropped, start="Skipping"),
    rule(LMCACHE,
         r"Local cpu memory under pressure so choosing to (?:store only +(\d{1,18}) total chunks|not store)",
         _pressure, start="Local"),
    rule(LMCACHE,
         r"Force unpinned (\d{1,18}) timeout objects in (\d{1,18}) pinned_objects within (\d{1,18}) sec",
         _unpinned, start="Force"),
    rule(LMCACHE, r"Started health monitor thread", _begins),
    rule(LMCACHE, r"HealthMonitor: System unhealthy", _degraded),
    rule(LMCACHE, r"HealthMonitor: System recovered", _restored),
)  # fmt: skip
