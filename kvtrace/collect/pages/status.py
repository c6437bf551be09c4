"""Status pages of one address: LMCache's /status, Mooncake's /kv_events/status, told apart by their words."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kvtrace.collect.pages.fetching import Missed, Page
from kvtrace.collect.pages.gathering import Gathered
from kvtrace.collect.pages.missing import Missing
from kvtrace.sources import lmcache_status, mooncake_kv_events_status

if TYPE_CHECKING:
    from kvtrace.collect.intake import Item
    from kvtrace.importer.staging import Staging
    from kvtrace.sources.decoded import Decoded
    from kvtrace.sources.losses import Loss

_KNOWN = (lmcache_status, mooncake_kv_events_status)
_HEAD_BYTES = 1 << 14


@dataclass(eq=False)
class Status:
    """One address whose pages say how a server is."""

    name: str
    format: str = "status"
    spans: int = 0
    other_rows: int = 0
    notes: dict[str, None] = field(default_factory=dict)
    came: bool = False
    promised: str = "no status page that this version knows could be read"
    _dropped: int = 0
    _gathered: Gathered = field(init=False)
    _missing: Missing = field(init=False)

    def __post_init__(self) -> None:
        """Pages are small."""
        self._gathered = Gathered(self.name, self.format)
        self._missing = Missing(self.name)

    def take(self, items: list[Item], staging: Staging) -> None:
        """Decode pages."""
        for item in items:
            found: Page | Missed = item.content
            if isinstance(found, Missed):
                staging.losses.extend(self._missing.add(found))
                continue
            known = [kind for kind in _KNOWN if kind.looks_like(found.content[:_HEAD_BYTES])]
            if not known:
                detail = "page that is no status of LMCache or Mooncake"
                lie = Missed("undecodable", detail, found.time_ns)
                staging.losses.extend(self._missing.add(lie))
                continue
            self.came = True
            staging.losses.extend(self._missing.came())
            self._keep(known[0].decode(found.content, self.name), found.time_ns, staging)

        self._gathered.stage(staging)
        self.other_rows = self._gathered.rows

    def finish(self, staging: Staging) -> None:
        """Stage what waits, and what was missed."""
        staging.losses.extend(self._missing.losses())
        self.notes |= self._missing.note()
        self._gathered.stage(staging, over=True)

    def _keep(self, part: Decoded, time_ns: int, staging: Staging) -> None:
        self._gathered.add(part.tables.get("metric"), time_ns)
        losses = tuple(fresh for loss in part.losses if (fresh := self._fresh(loss, time_ns)).count)
        staging.take(replace(part, tables={}, losses=losses), self.name, self.format)
        self.notes |= dict.fromkeys(part.notes)

    def _fresh(self, loss: Loss, time_ns: int) -> Loss:
        """What was lost since the last page: a server counts from its start, and from 0 after another."""
        if loss.detail != mooncake_kv_events_status.DROPPED:
            return replace(loss, from_ns=time_ns, to_ns=time_ns)
        before, self._dropped = self._dropped, loss.count
        more = loss.count - before if loss.count >= before else loss.count
        return replace(loss, count=more, to_ns=time_ns)
