"""What hooks told the recorder, without a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import kvtrace
import pytest
from kvtrace.instrument import wrapping


@dataclass
class Told:
    """Stands in for kvtrace.recorder."""

    losses: list[tuple[str, str]] = field(default_factory=list)
    described: list[dict[str, Any]] = field(default_factory=list)

    def lost(self, cause: str, count: int = 1, *, op: str | None = None, detail: str | None = None) -> None:
        assert op is None
        self.losses.extend([(cause, detail or "")] * count)

    def describe(self, **facts: Any) -> None:
        self.described.append(facts)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """The recorder of this test; the statuses of other tests are gone."""
    spy = Told()
    monkeypatch.setattr(kvtrace, "recorder", spy, raising=False)
    monkeypatch.setattr(wrapping, "_statuses", {})
    monkeypatch.delenv("KVTRACE_FAULT", raising=False)
    return spy
