"""The plan's commands with their placeholders filled in.

A command is split as a shell would split it, without a shell, and then each {word} of this list is replaced.
Braces around anything else stay, as in JSON: '{"kv_connector": "LMCacheMPConnector"}'.
"""

from __future__ import annotations

import difflib
import re
import shlex
from typing import TYPE_CHECKING

from kvtrace.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

WORDS = {
    "base_url": "http://127.0.0.1:PORT of the engine",
    "port": "a free port for the engine",
    "backend_port": "a free port for the backend",
    "backend_http_port": "another one",
    "group": "the group's name",
    "round": "the round's number, from 1; in a warm-up that of the round that it is for",
    "request_id_prefix": "the same in every round of every group, so that requests pair",
    "out": "a file for the load generator's own results, which become part of the run",
    "folder": "the experiment's folder",
    "clock_offset_ns": "unix time less the monotonic clock of this machine, ns",
    "python": "the Python that kvtrace runs in",
}
"""Placeholder -> what it stands for."""
_PLACE = re.compile(r"\{([a-z_]+)\}")


def filled(where: str, command: str, values: Mapping[str, str]) -> list[str]:
    """A command as a list of words.

    Raises:
        UsageError: its quotes do not close, it is empty, or a placeholder is not known.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"{where}: cannot be split into words ({error}).") from error
    if not words:
        raise UsageError(f"{where}: is empty.")
    return [_PLACE.sub(lambda found: _value(where, found[1], values), word) for word in words]


def _value(where: str, name: str, values: Mapping[str, str]) -> str:
    if name not in values:
        near = difflib.get_close_matches(name, values, n=1)
        hint = f"did you mean {{{near[0]}}}?" if near else f"there are {', '.join(values)}."
        raise UsageError(f"{where}: {{{name}}} is not known; {hint}")
    return values[name]
