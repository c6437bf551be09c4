"""What is known of a request while it lasts, and the rows that it becomes.

CreateSlot  GetNum...  GetNum...  UpdateState...            RequestFinished
|           |---- one lookup ---|                           |
|------------------------------ request --------------------|
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvtrace.sources.records import LATEST_NS, attributes

COMPONENT = "kvbm"
_WHO = {
    "id_kind": "internal", "observer": "scheduler", "evidence": "native", "clock": "host",
    "component": COMPONENT, "attribution": "request",
}  # fmt: skip


@dataclass(slots=True)
class Inquiry:
    """A question that may be asked again before blocks are there; the last answer is the one that counts."""

    start_ns: int
    end_ns: int
    requested: int | None
    computed: int
    matched: int
    asynchronous: bool | None = None
    calls: int = 1


@dataclass(slots=True)
class Slot:
    """A request: the ns of its first record, and what the calls said of it."""

    request_id: str
    start_ns: int
    prompt_tokens: int | None = None
    gpu_hit_tokens: int | None = None
    selected_tokens: int | None = None
    attempt: int = 1
    admitted: bool = False
    inquiry: Inquiry | None = None
    said: dict[str, Any] = field(default_factory=dict)

    def asked(self, inquiry: Inquiry) -> None:
        """A call of GetNumNewMatchedTokens: a new inquiry, or the last one asked again."""
        if self.admitted:  # asked after an admission: it was preempted, or its load failed
            self.attempt, self.admitted = self.attempt + 1, False
        if self.prompt_tokens is None:
            self.prompt_tokens = inquiry.requested
        known = self.inquiry
        if known is None:
            self.inquiry = inquiry
            return
        known.calls += 1
        if (known.computed, known.matched) != (inquiry.computed, inquiry.matched):
            known.end_ns = max(inquiry.end_ns, known.start_ns)
            known.computed, known.matched = inquiry.computed, inquiry.matched

    def admit(self, external: int | None) -> dict[str, Any] | None:
        """It got its blocks; the row of the inquiry that this ends. The first says what the request loads."""
        found = self.inquiry
        if found is not None and self.attempt == 1:
            self.gpu_hit_tokens, self.selected_tokens = found.computed, external
        self.admitted = True
        return self.told()

    def told(self) -> dict[str, Any] | None:
        """The row of an inquiry that is over."""
        found, self.inquiry = self.inquiry, None
        if found is None:
            return None
        return {
            **_WHO, "op": "lookup", "name": "GetNumNewMatchedTokens", "request_id": self.request_id,
            "start_ns": found.start_ns, "end_ns": found.end_ns, "attempt": self.attempt,
            "requested_tokens": found.requested,
            "found_tokens": min(found.computed + found.matched, LATEST_NS) if found.matched else 0,
            "outcome": "ok" if found.matched else "miss",
            "attributes": attributes(
                calls=found.calls, returned_tokens=found.matched, asked_from_tokens=found.computed,
                asynchronous=found.asynchronous,
            ),
        }  # fmt: skip

    def row(self, end_ns: int | None) -> dict[str, Any]:
        """The request; open when its end is not there. How it ended is not said."""
        return {
            **_WHO, "op": "request", "name": "slot", "request_id": self.request_id, "start_ns": self.start_ns,
            "end_ns": end_ns, "status": None if end_ns is not None else "open",
            "prompt_tokens": self.prompt_tokens, "gpu_hit_tokens": self.gpu_hit_tokens,
            "selected_tokens": self.selected_tokens,
            "attributes": attributes(**self.said),
        }  # fmt: skip
