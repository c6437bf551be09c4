"""The forms in which responses are kept, one row a request from each."""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from typing import Any

from kvtrace.sources.openai_responses.body import S, facts, merge, usage
from kvtrace.sources.records import Rows, at, attributes, number, parse, parsed, span_ns, text, time_ns, whole

DATA = b"data:"
OBJECTS = ("chat.completion", "chat.completion.chunk", "text_completion", "response")
MAX_OPEN_STREAMS = 10_000
"""Streams of bare chunks that may be unfinished at once; the oldest then counts as ended."""
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_NOTED = ("request_id", "response_id", "usage", "started_ns", "first_token_ns", "ended_ns", "status", "error",
          "prompt", "prompt_tokens", "max_tokens", "answer_digest", "model", "traceparent")  # fmt: skip
_TAPPED = ("path", "hdr", "status", "resp_headers", "resp", "t0", "wall_s")


def kind(value: Any) -> str | None:
    """Which of the forms a value has: notes, tap or bare."""
    if not isinstance(value, dict):
        return None
    if "request_id" in value and "started_ns" in value and ("usage" in value or "status" in value):
        return "notes"
    if "resp" in value and "status" in value and "path" in value:
        return "tap"
    return "bare" if value.get("object") in OBJECTS and ("choices" in value or "usage" in value) else None


def is_error(value: Any) -> bool:
    """Whether a value is the body of an error."""
    return isinstance(at(value, "error"), dict)


class Responses:
    """Takes lines, adds a row a request."""

    def __init__(self, source: str) -> None:
        self.rows = Rows(source)
        self._open: dict[str, dict[str, Any]] = {}

    def line(self, line: bytes) -> None:
        """One line: JSON, or a line of a server-sent event."""
        body = line.strip()
        chunk = body.startswith(DATA)
        if chunk:
            body = body.removeprefix(DATA).strip()
        elif body.startswith((b"event:", b":", b"id:", b"retry:")):
            return
        if chunk and body == b"[DONE]":
            return
        value = parse(body)
        if not parsed(value):
            self.rows.refuse("lines that are no response", op="request")
        elif chunk or at(value, "object") == "chat.completion.chunk":
            self._chunk(value)
        else:
            self.take(value)

    def take(self, value: Any) -> None:
        """One response in any form, or something else, which is counted."""
        form = kind(value)
        if form == "notes":
            self._notes(value)
        elif form == "tap":
            self._tap(value)
        elif form == "bare":
            self._row(facts(value, self.rows), {})
        else:
            self.rows.refuse("lines that are no response", op="request")

    def finish(self) -> None:
        """Streams that are still open end where the file does."""
        for found in self._open.values():
            self._row(found, {})
        self._open = {}

    def _chunk(self, value: Any) -> None:
        """A chunk adds what it knows to its stream: the usage comes with the last."""
        name = text(at(value, "id"))
        if name is None:
            self.rows.refuse("chunks without an id", op="request")
            return
        if name not in self._open and len(self._open) >= MAX_OPEN_STREAMS:
            self._row(self._open.pop(next(iter(self._open))), {})
        merge(self._open.setdefault(name, {}), facts(value, self.rows))

    def _notes(self, value: dict[str, Any]) -> None:
        """A client's own notes; its times are those of its clock."""
        self.rows.ignore("clients' notes", [name for name in value if name not in _NOTED])
        self.rows.drop("prompt", isinstance(value.get("prompt"), str))
        said = usage(value.get("usage"))
        if said["prompt_tokens"] is None:
            said["prompt_tokens"] = whole(value.get("prompt_tokens"))
        found = {
            **said,
            "start_ns": time_ns(value.get("started_ns"), 1),
            "first_token_ns": time_ns(value.get("first_token_ns"), 1),
            "end_ns": time_ns(value.get("ended_ns"), 1),
            "response": text(value.get("response_id")),
            "client": text(value.get("request_id")),
            "status": _status(value.get("status"), value.get("error")),
            "trace_id": _trace(value.get("traceparent")),
        }
        self._row(found, attributes(model=value.get("model"), max_tokens=value.get("max_tokens"),
                                    http_status=whole(value.get("status"))))  # fmt: skip

    def _tap(self, value: dict[str, Any]) -> None:
        """A tap's line: headers, and the body as an object or as the text that came."""
        self.rows.ignore("taps", [name for name in value if name not in _TAPPED])
        sent, got = (_headers(value.get(name)) for name in ("hdr", "resp_headers"))
        found = self._body(value.get("resp"))
        start, length = time_ns(value.get("t0"), S), span_ns(value.get("wall_s"), S)
        if start is not None:
            found |= {"start_ns": start, "end_ns": None if length is None else start + length, "basis": None}
        elif found.get("start_ns") is None and (date := _date(got.get("date"))) is not None:
            found |= {"start_ns": date, "basis": "date header, whole seconds of the server"}
        client = text(sent.get("x-request-id")) or text(got.get("x-request-id"))
        status = _status(value.get("status"), found.get("error"))
        worse = found.get("status") if found.get("status") != "ok" and status == "ok" else None
        found |= {"client": client, "status": worse or status or found.get("status")}
        found["trace_id"] = _trace(sent.get("traceparent"))
        self._row(found, attributes(path=value.get("path"), http_status=whole(value.get("status")),
                                    wall_s=number(value.get("wall_s"))))  # fmt: skip

    def _body(self, body: Any) -> dict[str, Any]:
        """What a body says: an object, its text, or the text of a stream of chunks."""
        if isinstance(body, str):
            raw = body.strip().encode(errors="replace")
            value = parse(raw)
            if parsed(value):
                return facts(value, self.rows)
            return self._stream(raw)
        return facts(body, self.rows)

    def _stream(self, raw: bytes) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for line in raw.split(b"\n"):
            said = line.strip()
            if said.startswith(DATA) and parsed(value := parse(said.removeprefix(DATA).strip())):
                merge(found, facts(value, self.rows))
        if raw and not found:
            self.rows.drop("body that is no response")
        return found

    def _row(self, found: dict[str, Any], more: dict[str, str]) -> None:
        """The row of a request and the aliases of its name."""
        client, response = found.get("client"), found.get("response")
        if response is None and client is None:
            self.rows.refuse("responses without an id", op="request")
            return
        start = found.get("start_ns")
        if start is None:
            self.rows.refuse("responses without any time", op="request", cause="impossible_time")
            return
        end, first = found.get("end_ns"), found.get("first_token_ns")
        if end is not None and end < start:
            self.rows.refuse("ends before its start", op="request", cause="negative_duration")
            return
        if first is not None and (first < start or (end is not None and first > end)):
            self.rows.refuse("first tokens outside of their request", op="request", cause="negative_duration")
            first = None
        said = {**more, **found.get("attributes", {})}
        if found.get("basis"):
            said["start"] = found["basis"]
        columns = ("prompt_tokens", "output_tokens", "reported_cached_tokens", "status", "trace_id")
        self.rows.add("span", {
            "op": "request", "name": "response", "request_id": response or client, "start_ns": start,
            "end_ns": end, "first_token_ns": first, "observer": "client", "attribution": "request",
            "evidence": "native", "attributes": said, "id_kind": None,
            **{name: found.get(name) for name in columns},
        })  # fmt: skip
        if client and response and client != response:
            self.rows.add("alias", {"alias": client, "kind": "client", "request_id": response,
                                    "source": self.rows.source, "evidence": "native"})  # fmt: skip


def _status(status: Any, error: Any) -> str | None:
    """How it went, by HTTP status (499: the caller went away) or error body; null when neither says."""
    code = whole(status)
    if code == 499:
        return "aborted"
    if error or (code is not None and code >= 400):
        return "error"
    return "ok" if code is not None and 200 <= code < 300 else None


def _headers(found: Any) -> dict[str, Any]:
    return {str(name).lower(): value for name, value in found.items()} if isinstance(found, dict) else {}


def _trace(header: Any) -> str | None:
    """The trace id of a traceparent header."""
    found = _TRACEPARENT.fullmatch(header.strip()) if isinstance(header, str) and len(header) < 80 else None
    return found[1] if found and int(found[1], 16) else None


def _date(header: Any) -> int | None:
    try:
        return time_ns(int(parsedate_to_datetime(header).timestamp()), S) if isinstance(header, str) else None
    except (ValueError, TypeError, OverflowError):
        return None
