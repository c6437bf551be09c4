"""Ranges that other tools show: `kvtrace:<request>:<op>` around each recorded copy, on request.

KVTRACE_NVTX=1 pushes NVTX ranges (Nsight Systems), KVTRACE_PROFILER=1 annotates torch.profiler's trace.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    from kvtrace.instrument.scope import Scope


class Ranges:
    """What is asked for; `begin` and `end` never raise."""

    def __init__(self, torch: Any, *, nvtx: bool, profiler: bool) -> None:
        self._nvtx = torch.cuda.nvtx if nvtx else None
        self._profiler = torch.profiler.record_function if profiler else None

    def begin(self, scope: Scope | None, op: str) -> list[Any]:
        """Open them; what it returns goes to `end`."""
        who = None if scope is None else scope.request_id or ",".join(scope.members)
        name = f"kvtrace:{who or '-'}:{op}"
        opened: list[Any] = []
        with suppress(Exception):
            if self._profiler is not None:
                annotation = self._profiler(name)
                annotation.__enter__()
                opened.append(lambda: annotation.__exit__(None, None, None))
        with suppress(Exception):
            if self._nvtx is not None:
                self._nvtx.range_push(name)
                opened.append(self._nvtx.range_pop)
        return opened

    def end(self, opened: list[Any]) -> None:
        """Close them, the inner one first."""
        while opened:
            close = opened.pop()
            with suppress(Exception):
                close()


def asked(torch: Any) -> Ranges | None:
    """What the environment asks for; None when nothing."""
    nvtx, profiler = (os.environ.get(name) == "1" for name in ("KVTRACE_NVTX", "KVTRACE_PROFILER"))
    return Ranges(torch, nvtx=nvtx, profiler=profiler) if nvtx or profiler else None
