"""What to collect, where it goes, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtrace.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

MAX_MESSAGE_BYTES = 16 << 20
_LONGEST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Settings:
    """Where to listen and what to poll.

    otlp_grpc, otlp_http: HOST:PORT
    kv_events, metrics, status: what streams/ and pages/ take
    every_seconds: from one poll of a page to the next
    max_message_bytes: the longest export, message or page, compressed or not
    """

    out: Path
    otlp_grpc: str | None = None
    otlp_http: str | None = None
    kv_events: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    status: tuple[str, ...] = ()
    for_seconds: float | None = None
    every_seconds: float = 5.0
    token_file: Path | None = None
    group: str | None = None
    keep_content: bool = False
    max_message_bytes: int = MAX_MESSAGE_BYTES


def check(settings: Settings) -> None:
    """Refuse what makes no sense before anything starts.

    Raises:
        UsageError: no source is named, or a number cannot be.
    """
    named = (settings.otlp_grpc, settings.otlp_http, settings.kv_events, settings.metrics, settings.status)
    if not any(named):
        raise UsageError(
            "collect: no source is named; name one, as in kvtrace collect --out run --otlp-grpc 127.0.0.1:0."
        )
    for option, seconds in (("--for", settings.for_seconds), ("--every", settings.every_seconds)):
        if seconds is not None and not 0 < seconds < 1e9:
            raise UsageError(f"{option} {seconds}: is no number of seconds; give one above 0.")
    if not 0 < settings.max_message_bytes <= _LONGEST_BYTES:
        raise UsageError("--max-message: give a number of MiB from 1 to 1024.")
