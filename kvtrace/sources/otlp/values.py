"""Attribute values as text, and the attributes that are made from status, events and links.

The rule for text, the same for every decoder: strings as they are, integers in decimal, doubles as the
shortest text that reads back equal, booleans as true/false, bytes as base64, arrays and maps as compact
JSON, where what JSON cannot say (NaN, infinities, bytes) is a string. A missing value has no text.
"""

from __future__ import annotations

import base64
import json
import math
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvtrace.sources.otlp.batch import Gate

Plain: TypeAlias = "str | bool | int | float | bytes | list[Plain] | dict[str, Plain] | None"
"""An OTLP AnyValue as Python has it."""


class Event(NamedTuple):
    """A span event."""

    name: str
    time_ns: int
    attributes: list[tuple[str, Plain]]


def text(value: Plain) -> str | None:
    """The text of a value; None for a missing one."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return json.dumps(_json(value), separators=(",", ":"), ensure_ascii=False)


def _json(value: Plain) -> Plain:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list):
        return [_json(item) for item in value]
    if isinstance(value, dict):
        return {key: _json(item) for key, item in value.items()}
    return value


def members(pairs: Iterable[tuple[str, Plain]], gate: Gate) -> dict[str, Plain]:
    """A kvlist as a dict, without the members that are content: they hide inside values as well."""
    return {key: value for key, value in pairs if not gate.drops(key)}


def resource(pairs: Iterable[tuple[str, Plain]], gate: Gate) -> dict[str, str]:
    """Resource attributes as text; the last of a name wins."""
    return {key: found for key, value in pairs if (found := text(value)) is not None and not gate.drops(key)}


def extras(
    message: str, events: Iterable[Event], links: Iterable[tuple[str, str]], gate: Gate
) -> list[tuple[str, str]]:
    """Attributes made from what a span has besides attributes: names as in the package's docstring."""
    pairs = [("otel.status_message", message)] if message else []
    seen: dict[str, int] = {}
    for event in events:
        if gate.hides(event.name):
            gate.dropped[event.name] += 1
            continue
        seen[event.name] = number = seen.get(event.name, 0) + 1
        prefix = f"event.{event.name}." if number == 1 else f"event.{event.name}#{number}."
        pairs.append((f"{prefix}time_unix_nano", str(event.time_ns)))
        pairs += [
            (prefix + key, found)
            for key, value in event.attributes
            if (found := text(value)) is not None and not gate.drops(key)
        ]
    linked = [f"{trace}:{span}" for trace, span in links]
    if linked:
        pairs.append(("otel.links", json.dumps(linked, separators=(",", ":"))))
    return pairs
