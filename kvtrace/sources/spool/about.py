"""Who wrote a spool, and what is known of it as a whole: its header, what it described, its clock."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from kvtrace.schema.frames import FORMAT

if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIGURATION = "config"
"""Attribute of a process row: the configuration that the process described, as JSON."""
_COLUMNS = ("engine", "role", "product", "version")
"""Facts that have a column of their own in the table `process`; what is none of them becomes an attribute."""


@dataclass
class About:
    """What the frames of one spool said so far, but for its rows; times are monotonic ns."""

    header: dict[str, Any] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    anchors: list[tuple[int, int]] = field(default_factory=list)
    first_ns: int | None = None
    last_ns: int | None = None
    heard_ns: int | None = None
    """Last sign of life: a record, an anchor or the closing mark."""
    flushed_ns: int | None = None
    """When the last frame of rows was written: what came before is in it or in earlier ones."""
    idle_ns: int | None = None
    """Until when everything recorded is in the spool, if nothing was written after that mark."""
    ended: bool = False
    """The closing mark was read."""
    unplaced: int = 0
    """Rows in front of which no header stood that says when and whose they are."""

    def hears(self, header: Mapping[str, Any]) -> None:
        """Take a header, if it can be believed: without a clock, rows have no time."""
        anchor, prefix = header.get("anchor"), header.get("prefix")
        believable = (
            isinstance(anchor, list)
            and len(anchor) == 2
            and all(type(time) is int and abs(time) < 2**63 for time in anchor)
            and type(header.get("pid")) is int
            and isinstance(header.get("host"), str)
            and type(prefix) is int
            and 0 <= prefix < 2**23
            and type(header.get("format")) is int
            and header["format"] <= FORMAT
        )
        if self.header is None and believable:
            self.header = dict(header)

    def saw(self, first_ns: int | None, last_ns: int | None) -> None:
        """Take the times of some records."""
        if first_ns is not None and last_ns is not None:
            self.first_ns = first_ns if self.first_ns is None else min(self.first_ns, first_ns)
            self.last_ns = last_ns if self.last_ns is None else max(self.last_ns, last_ns)
            self.alive(last_ns)

    def alive(self, time_ns: int) -> None:
        """Take a sign of life."""
        self.heard_ns = time_ns if self.heard_ns is None else max(self.heard_ns, time_ns)

    @property
    def offset_ns(self) -> int:
        """What makes a monotonic time a unix time."""
        assert self.header is not None
        monotonic, unix = self.header["anchor"]
        return int(unix - monotonic)

    @property
    def process(self) -> str | None:
        """The process, as the tables name it."""
        return None if self.header is None else f"{self.header['host']}/{self.header['pid']}"

    @property
    def engine(self) -> str | None:
        """The engine that the process said it belongs to."""
        said = self.facts.get("engine")
        return said if isinstance(said, str) else None

    def row(self) -> dict[str, Any]:
        """The row of the table `process`; its times are monotonic."""
        assert self.header is not None
        instruments = self.facts.get("instruments")
        row = {name: _text(self.facts.get(name)) for name in _COLUMNS}
        return {
            **row,
            "engine": row["engine"] or self.process,
            "process": self.process,
            "host": self.header["host"],
            "boot_id": _text(self.header.get("boot_id")),
            "instruments": _texts(instruments) if isinstance(instruments, dict) else None,
            "first_ns": self.first_ns,
            "last_ns": self.heard_ns,
            "anchors": [(str(monotonic), str(unix)) for monotonic, unix in self.anchors] or None,
            "attributes": _texts(self._attributes()),
        }

    def _attributes(self) -> dict[str, Any]:
        """What else the process said of itself."""
        assert self.header is not None
        said = {
            name: self.header.get(name) for name in ("kvtrace", "program", "python", "anchor_source", "ppid")
        }
        others = {name: value for name, value in self.facts.items() if name not in (*_COLUMNS, "instruments")}
        given = others.pop("attributes", None)
        said["closing_mark"] = "yes" if self.ended else "no"
        return said | others | (given if isinstance(given, dict) else {})

    def as_json(self) -> str:
        """All of it, for a checkpoint."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> About:
        """What as_json() gave."""
        found = cls(**json.loads(text))
        found.anchors = [(monotonic, unix) for monotonic, unix in found.anchors]
        return found


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _texts(said: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, text) for name, value in said.items() if (text := _text(value)) is not None]
