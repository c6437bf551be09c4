"""What hooks told the recorder, without a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from kvtrace import recorder
from kvtrace.instrument import importing, ranks, wrapping
from kvtrace.instrument.vllm import configuration
from kvtrace.recorder.shapes import DEFINITIONS


@dataclass
class Told:
    """Stands in for the recorder; `clock` is what it says the time is, in ns."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    losses: list[tuple[str, str]] = field(default_factory=list)
    described: list[dict[str, Any]] = field(default_factory=list)
    identities: list[tuple[Any, ...]] = field(default_factory=list)
    clock: int = 1_000_000_000_000
    ids: Any = field(default_factory=lambda: count(1))

    def record(self, row: tuple[Any, ...]) -> None:
        kind = DEFINITIONS[row[0]]
        assert len(kind.columns) == len(row) - 1
        values = dict(zip(kind.columns, row[1:], strict=True))
        self.rows.append({"table": kind.table, "part": kind.part, **kind.constants, **values})

    def lost(self, cause: str, count: int = 1, *, op: str | None = None, detail: str | None = None) -> None:
        assert op is None
        self.losses.extend([(cause, detail or "")] * count)

    def describe(self, **facts: Any) -> None:
        self.described.append(facts)

    def identity(self, *args: Any, **kwargs: Any) -> None:
        self.identities.append((*args, kwargs))

    def parts(self, part: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["part"] == part]

    def table(self, table: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["table"] == table]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """The recorder of this test; the statuses of other tests are gone."""
    spy = Told()
    for name in ("record", "lost", "describe", "identity"):
        monkeypatch.setattr(recorder, name, getattr(spy, name))
    monkeypatch.setattr(recorder, "now", lambda: spy.clock)
    monkeypatch.setattr(recorder, "next_id", lambda: next(spy.ids))
    monkeypatch.setattr(wrapping, "_statuses", {})
    monkeypatch.setattr(importing, "_statuses", {})
    monkeypatch.setattr(importing, "_waiting", {})
    monkeypatch.setattr(configuration, "_here", configuration.Here())
    monkeypatch.setattr(ranks, "_told", None)
    monkeypatch.delenv("KVTRACE_FAULT", raising=False)
    return spy
