"""One response body, or one chunk of a stream of them: what it says about its request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvtrace.sources.records import at, attributes, number, text, time_ns, whole

if TYPE_CHECKING:
    from kvtrace.sources.records import Rows

S = 1_000_000_000
CREATED = "created, whole seconds of the server"
"""What a start that nobody but the server's `created` gives is worth."""
MAX_EXTRA, MAX_NAME = 32, 80
"""Extra fields of a response that are kept, and characters of their names."""
_FIELDS = ("id", "object", "created", "model", "usage", "choices", "nvext", "error", "system_fingerprint",
           "service_tier", "created_at", "output", "status")  # fmt: skip


def facts(body: Any, rows: Rows) -> dict[str, Any]:
    """Columns of `span`, and: response (its id), basis (of start_ns), error, attributes.

    What was answered is counted in `rows` and dropped. A cached_tokens that is absent is null.
    """
    if not isinstance(body, dict):
        return {}
    rows.ignore("responses", [name for name in body if name not in _FIELDS])
    choices, finish = body.get("choices"), None
    for choice in choices if isinstance(choices, list) else ():
        rows.drop("choices", any(_answers(at(choice, name)) for name in ("message", "delta", "text")))
        finish = text(at(choice, "finish_reason")) or finish
    output = body.get("output")
    rows.drop("output", len(output) if isinstance(output, list) else int(output is not None))
    created, error = time_ns(body.get("created", body.get("created_at")), S), body.get("error")
    return {
        **usage(body.get("usage")),
        "response": text(body.get("id")),
        "start_ns": created,
        "basis": None if created is None else CREATED,
        "error": bool(error),
        "status": _status(body.get("status"), finish, error=bool(error)),
        "attributes": attributes(model=body.get("model"), finish_reason=finish, **nvext(body)),
    }


def _status(said: Any, finish: str | None, *, error: bool) -> str | None:
    """How an answer ended: error, finish reason, or the Responses API's status; null where none says."""
    if error or said == "failed":
        return "error"
    if finish in ("abort", "cancelled") or said == "cancelled":
        return "aborted"
    return "ok" if finish is not None or said in ("completed", "incomplete") else None


def merge(known: dict[str, Any], more: dict[str, Any]) -> None:
    """Later chunks know more; what they do not say stays, a status worse than ok does too."""
    for name, value in more.items():
        if name == "attributes":
            known[name] = {**known.get(name, {}), **value}
        elif value is not None and (name != "status" or value != "ok" or "status" not in known):
            known[name] = value


def usage(said: Any) -> dict[str, int | None]:
    """Token counts of a `usage` object, by the names of completions, else by those of the Responses API."""
    return {
        "prompt_tokens": _first(whole(at(said, "prompt_tokens")), whole(at(said, "input_tokens"))),
        "output_tokens": _first(whole(at(said, "completion_tokens")), whole(at(said, "output_tokens"))),
        "reported_cached_tokens": _first(
            whole(at(said, "prompt_tokens_details", "cached_tokens")),
            whole(at(said, "input_tokens_details", "cached_tokens")),
        ),
    }


def _first(known: int | None, other: int | None) -> int | None:
    return other if known is None else known


def nvext(body: Any) -> dict[str, Any]:
    """Dynamo's `nvext`: worker ids and timings of a request that asked for them (others.md 1.5)."""
    found: dict[str, Any] = {}
    for group in ("worker_id", "timing"):
        named = at(body, "nvext", group)
        for name, value in list(named.items())[:MAX_EXTRA] if isinstance(named, dict) else ():
            if number(value) is not None or text(value) is not None:
                found[f"nvext.{name}"[:MAX_NAME]] = value
    return found


def _answers(part: Any) -> bool:
    """Whether a part of a choice holds anything that was answered."""
    if isinstance(part, dict):
        return any(isinstance(value, str | list) and value for name, value in part.items() if name != "role")
    return isinstance(part, str) and bool(part)
