"""Copies on the stand-in device, read when a test says so: no thread runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace import recorder
from kvtrace.instrument import importing, ranks, wrapping
from kvtrace.instrument.torch_cuda import blocks, tensors
from kvtrace.instrument.torch_cuda.copies import Copies
from kvtrace.recorder.shapes import DEFINITIONS
from tests.unit.instrument.torch_cuda.device import Clocked, fake_torch

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Told:
    """Stands in for the recorder; `clock` is the host's, ns, and goes on by `tick` with each look at it."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    losses: list[tuple[str, str | None, str | None]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    clock: int = 1_000_000_000_000
    tick: int = 0
    ids: Any = field(default_factory=lambda: count(1))

    def now(self) -> int:
        self.clock += self.tick
        return self.clock

    def record(self, row: tuple[Any, ...]) -> None:
        kind = DEFINITIONS[row[0]]
        values = dict(zip(kind.columns, row[1:], strict=True))
        self.rows.append({"table": kind.table, **kind.constants, **values})

    def lost(self, cause: str, count: int = 1, *, op: str | None = None, detail: str | None = None) -> None:
        self.losses.extend([(cause, op, detail)] * count)

    def describe(self, **facts: Any) -> None:
        for key, value in facts.items():
            self.facts.setdefault(key, {}).update(value)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    spy = Told()
    for name in ("record", "lost", "describe", "now"):
        monkeypatch.setattr(recorder, name, getattr(spy, name))
    monkeypatch.setattr(recorder, "next_id", lambda: next(spy.ids))
    monkeypatch.setattr(recorder, "enabled", lambda: True)
    for module in (wrapping, importing):
        monkeypatch.setattr(module, "_statuses", {})
    monkeypatch.setattr(importing, "_waiting", {})
    monkeypatch.setattr(ranks, "_told", None)
    for name in ("KVTRACE_FAULT", "KVTRACE_COPIES", "KVTRACE_NVTX", "KVTRACE_PROFILER", "KVTRACE_DEVICE"):
        monkeypatch.delenv(name, raising=False)
    return spy


@pytest.fixture
def device(told: Told) -> Clocked:
    return Clocked(told)


@dataclass
class World:
    """A torch that is wrapped, and what reads its copies."""

    torch: Any
    copies: Copies
    device: Clocked
    told: Told

    def host(self, elements: int = 4, width: int = 4) -> Any:
        return self.torch.Tensor(elements, width)

    def gpu(self, elements: int = 4, width: int = 4, index: int = 0) -> Any:
        return self.torch.Tensor(elements, width, index)

    def read(self, after_ns: int = 1_000_000) -> list[dict[str, Any]]:
        """Let time pass, have the reaper look once, and give the rows."""
        self.told.clock += after_ns
        self.copies.reaper.turn()
        return self.told.rows


@pytest.fixture
def world(told: Told, device: Clocked, monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    def build(**kwargs: Any) -> World:
        torch = fake_torch()
        copies = Copies(device, **kwargs)
        monkeypatch.setattr(copies.reaper, "start", lambda: None)
        copies.reaper._relaxed = True
        tensors.install(torch, copies)
        blocks.install(torch, copies)
        return World(torch, copies, device, told)

    return build
