"""One call of the scheduler into the connector after the other -> rows."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from kvtrace.sources.kvbm_recorder.requests import COMPONENT, Inquiry, Slot
from kvtrace.sources.records import LATEST_NS, Rows, at, attributes, span_ns, text, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MS = 1_000_000
RECORDER_START_NS = 1_000_000_000
"""Where the recorder's 0 is put: no row of a run begins at 0."""
MAX_LIVE = 50_000
"""Requests that may be under way; the oldest then becomes an open row."""
ACTIONS = (
    "CreateSlot", "GetNumNewMatchedTokens", "UpdateStateAfterAlloc", "BuildConnectorMeta", "RequestFinished",
    "HasSlot", "ResetCache",
)  # fmt: skip
CLOCK = "calls (times count from a second after 1970: the recorder writes milliseconds since its own start)"
LOSSY = "KVBM's recorder drops calls when its queue is full and says so in the engine's log alone"
ASKED_ITSELF = "calls of HasSlot, which the connector makes by itself"
_STEP = {
    "op": "step", "name": "BuildConnectorMeta", "observer": "scheduler", "evidence": "native",
    "clock": "host", "component": COMPONENT, "attribution": "operation",
}  # fmt: skip


class Actions:
    """Takes records in their order, adds rows."""

    def __init__(self, source: str) -> None:
        self.rows = Rows(source)
        self._live: dict[str, Slot] = {}
        self._taken = 0
        self._calls: dict[str, Callable[[int, Any, Any], None]] = {
            "CreateSlot": self._created, "GetNumNewMatchedTokens": self._asked,
            "UpdateStateAfterAlloc": self._admitted, "BuildConnectorMeta": self._scheduled,
            "RequestFinished": self._finished, "HasSlot": self._has_slot, "ResetCache": self._reset,
        }  # fmt: skip

    def take(self, value: Any) -> None:
        """One record: {timestamp, event: {name: [asked, answered]}}; older ones have no answer."""
        elapsed, event = span_ns(at(value, "timestamp"), MS), at(value, "event")
        if elapsed is None or not isinstance(event, dict) or len(event) != 1:
            self.rows.refuse("lines that are no call of a connector")
            return
        ((name, body),) = event.items()
        call = self._calls.get(name)
        if call is None:
            self.rows.refuse("calls of a kind that this version does not know")
            return
        asked, answered = body if isinstance(body, list) and len(body) == 2 else (body, None)
        self._taken += 1
        call(RECORDER_START_NS + elapsed, asked, answered)

    def finish(self) -> None:
        """Requests that are still under way, and what to know of the file."""
        for slot in self._live.values():
            self._over(slot, None)
        self._live = {}
        for words in (CLOCK, LOSSY) if self._taken else ():
            self.rows.remark(words, self._taken)

    def _slot(self, request: Any, time_ns: int, op: str) -> Slot | None:
        """The request of a call; one that was not seen before began before the file, or here."""
        name = text(request)
        if name is None:
            self.rows.refuse("calls without a request", op=op)
            return None
        slot = self._live.get(name)
        if slot is None:
            if len(self._live) >= MAX_LIVE:
                oldest = next(iter(self._live))
                self._over(self._live.pop(oldest), None)
            slot = self._live[name] = Slot(name, time_ns)
        return slot

    def _created(self, time_ns: int, asked: Any, _answered: Any) -> None:
        tokens = at(asked, "tokens")
        slot = self._slot(at(asked, "request", "request_id"), time_ns, "request")
        if slot is None:
            return
        slot.said["lora_name"] = at(asked, "request", "lora_name")
        if isinstance(tokens, list):
            slot.prompt_tokens = len(tokens)
            self.rows.drop("token_ids", len(tokens))

    def _asked(self, time_ns: int, asked: Any, answered: Any) -> None:
        slot = self._slot(at(asked, "request_id"), time_ns, "lookup")
        computed = whole(at(asked, "num_computed_tokens"))
        matched = whole(at(answered, "num_new_matched_tokens"))
        if slot is None:
            return
        if computed is None or matched is None:
            self.rows.refuse("lookups without their numbers of tokens", op="lookup")
            return
        asynchronous = at(answered, "has_matched")
        inquiry = Inquiry(time_ns, time_ns, whole(at(asked, "request_num_tokens")), computed, matched)
        inquiry.asynchronous = asynchronous if isinstance(asynchronous, bool) else None
        slot.asked(inquiry)

    def _admitted(self, time_ns: int, asked: Any, _answered: Any) -> None:
        slot = self._slot(at(asked, "request_id"), time_ns, "lookup")
        if slot is not None:
            self._add(slot.admit(whole(at(asked, "num_external_tokens"))))

    def _scheduled(self, time_ns: int, asked: Any, answered: Any) -> None:
        """A pass of the scheduler; one that computes nothing is no step."""
        output = at(asked, "scheduler_output")
        scheduled = at(output, "num_scheduled_tokens")
        if not isinstance(scheduled, dict):
            self.rows.refuse("passes of the scheduler without its output", op="step")
            return
        members = list(_members(output, scheduled, self.rows))
        operations = at(answered, "metadata", "operations")
        known = isinstance(operations, list)
        kinds = Counter(text(at(one, "transfer_type")) for one in operations) if known else Counter()
        if not members and not kinds:
            return
        tokens = sum(member["scheduled_tokens"] for member in members)
        said = {f"{kind.lower()}s": kinds[kind] if known else None for kind in ("Load", "Store")}
        self.rows.add("span", {
            **_STEP, "start_ns": time_ns, "members": members, "tokens": min(tokens, LATEST_NS),
            "attributes": attributes(iteration=whole(at(answered, "metadata", "iteration")), **said),
        })  # fmt: skip

    def _finished(self, time_ns: int, asked: Any, answered: Any) -> None:
        slot = self._slot(at(asked, "request_id"), time_ns, "request")
        if slot is not None:
            del self._live[slot.request_id]
            slot.said["blocks_held"] = at(answered, "is_finished")
            self._over(slot, max(time_ns, slot.start_ns))

    def _over(self, slot: Slot, end_ns: int | None) -> None:
        self._add(slot.told())
        self.rows.add("span", slot.row(end_ns))

    def _add(self, row: dict[str, Any] | None) -> None:
        if row is not None:
            self.rows.add("span", row)

    def _has_slot(self, _time_ns: int, _asked: Any, _answered: Any) -> None:
        self.rows.remark(ASKED_ITSELF)

    def _reset(self, time_ns: int, _asked: Any, answered: Any) -> None:
        went = at(answered, "result")
        self.rows.add("span", {
            "op": "evict", "name": "ResetCache", "start_ns": time_ns, "end_ns": time_ns, "reason": "cleared",
            "outcome": {True: "ok", False: "failed"}.get(went) if isinstance(went, bool) else "unknown",
            "component": COMPONENT, "observer": "scheduler", "evidence": "native", "clock": "host",
            "attribution": "aggregate",
        })  # fmt: skip


def _members(output: Any, scheduled: dict[str, Any], rows: Rows) -> Iterator[dict[str, Any]]:
    """Requests of a pass, and what of each was there before it; token ids are dropped."""
    for kind, phase in (("new_requests", "prefill"), ("cached_requests", None)):
        found = at(output, kind)
        for one in found if isinstance(found, list) else ():
            request, tokens = (
                text(at(one, "request_id")),
                at(one, "prompt_token_ids") or at(one, "new_token_ids"),
            )
            rows.drop("token_ids", len(tokens) if isinstance(tokens, list) else 0)
            count = whole(scheduled.get(request)) if request is not None else None
            if request is None or count is None:
                rows.refuse("requests of a pass without an id or a number of tokens", op="step")
            elif count:
                yield {
                    "request_id": request, "phase": phase, "scheduled_tokens": count, "output_tokens": None,
                    "computed_before": whole(at(one, "num_computed_tokens")),
                }  # fmt: skip
