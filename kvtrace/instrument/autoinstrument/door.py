"""Is this process's way to OpenTelemetry open? Once a process, whoever asks and however often.

closed ─ enter ─► open ─ an engine of vLLM is imported ─► refused, for good
            │       └─ the last one leaves ─► closed
            └─ KVTRACE_OUT: recorded instead, and nothing is opened
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument import scope
from kvtrace.instrument.autoinstrument import refusing

if TYPE_CHECKING:
    from typing import Any

    from kvtrace.instrument.autoinstrument.spans import Spans

_REACHED = "reached"
_users: set[str] = set()
_spans: Spans | None = None
_refused = False


def enter(user: str, provider: Any, *, scopes: bool) -> bool:
    """Open it for one of us; whether rows of this process go anywhere, to spans or into a recording.

    `provider` is the TracerProvider to use, None the process's own; the first one's counts. `scopes` makes
    spans of scopes and calls that last, too.
    """
    refusing.watch(refuse)
    if os.environ.get("KVTRACE_OUT"):
        _arrive()
        return not _refused and recorder.enabled()
    if _refused:
        return False
    spans = _opened(provider)
    _users.add(user)
    recorder.divert(spans.take)
    if scopes:
        from kvtrace.instrument.autoinstrument.following import Following

        scope.follow = Following(spans).begin
    return True


def _opened(provider: Any) -> Spans:
    global _spans
    if _spans is None or not _users:
        from kvtrace.instrument.autoinstrument.spans import Spans

        _spans = Spans(provider)
    return _spans


def leave(user: str) -> None:
    """One of us wants nothing any more; the last one closes it."""
    _users.discard(user)
    if user == "kvtrace":
        scope.follow = None
    if not _users:
        recorder.divert(None)


def refuse() -> None:
    """For good: nothing of this process becomes a span of ours."""
    global _refused
    _refused = True
    for user in tuple(_users):
        leave(user)


def _arrive() -> None:
    """Say to `kvtrace run` that this Python was here: its own sitecustomize is hidden by OpenTelemetry's."""
    for entry in sys.path:
        mark = os.path.join(entry, _REACHED)  # noqa: PTH118 - of every Python that starts
        if os.path.basename(entry).startswith("kvtrace-") and os.path.isfile(mark):  # noqa: PTH113, PTH119
            version = ".".join(map(str, sys.version_info[:3]))
            with open(mark, "a", encoding="utf-8", errors="replace") as reached:  # noqa: PTH123
                reached.write(f"{os.getpid()}\t{version}\t{sys.executable}\n")
            return
