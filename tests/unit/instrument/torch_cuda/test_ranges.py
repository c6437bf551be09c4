"""Ranges for other tools, on request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.instrument.scope import request
from kvtrace.instrument.torch_cuda import ranges

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.instrument.torch_cuda.conftest import World


class Tools:
    """torch.cuda.nvtx and torch.profiler: what they were told, in order."""

    def __init__(self) -> None:
        self.said: list[str] = []
        tools = self

        class Annotation:
            def __init__(self, name: str) -> None:
                self.name = name

            def __enter__(self) -> None:
                tools.said.append(f"enter {self.name}")

            def __exit__(self, *_: object) -> None:
                tools.said.append(f"exit {self.name}")

        self.cuda = SimpleNamespace(
            nvtx=SimpleNamespace(
                range_push=lambda name: self.said.append(f"push {name}"),
                range_pop=lambda: self.said.append("pop"),
            )
        )
        self.profiler: Any = SimpleNamespace(record_function=Annotation)


def test_nobody_asked_for_ranges(world: Callable[..., World]) -> None:
    world()
    assert ranges.asked(Tools()) is None


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("KVTRACE_NVTX",), ["push kvtrace:r1:load", "pop"]),
        (("KVTRACE_PROFILER",), ["enter kvtrace:r1:load", "exit kvtrace:r1:load"]),
        (
            ("KVTRACE_NVTX", "KVTRACE_PROFILER"),
            ["enter kvtrace:r1:load", "push kvtrace:r1:load", "pop", "exit kvtrace:r1:load"],
        ),
    ],
)
def test_a_copy_is_a_range_with_its_request_and_operation(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, asked: tuple[str, ...], said: list[str]
) -> None:
    for name in asked:
        monkeypatch.setenv(name, "1")
    tools = Tools()
    here = world(ranges=ranges.asked(tools))
    with request("r1"):
        here.gpu().copy_(here.host())
        here.gpu().copy_(here.gpu())
    assert tools.said == said


def test_a_range_ends_with_a_copy_that_raises(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVTRACE_NVTX", "1")
    tools = Tools()
    here = world(ranges=ranges.asked(tools))
    with request("a", "b"), pytest.raises(RuntimeError):
        here.gpu(4).copy_(here.host(5))
    assert tools.said == ["push kvtrace:a,b:load", "pop"]


def test_a_tool_that_fails_costs_its_range_and_nothing_else(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVTRACE_PROFILER", "1")
    tools = Tools()
    tools.profiler = SimpleNamespace(record_function=lambda _name: 1 / 0)
    here = world(ranges=ranges.asked(tools))
    with request("r1"):
        here.gpu().copy_(here.host())
    assert len(here.read()) == 1
    assert here.told.losses == []
