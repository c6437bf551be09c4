"""A worker's side of a connector in miniature, whose calls last what a test says."""

from __future__ import annotations

from types import SimpleNamespace as Some
from typing import TYPE_CHECKING, Any

from kvtrace.instrument.vllm import carrier, inside, layers, worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest
    from tests.unit.instrument.conftest import Told


class Connector:
    """A worker's connector; every call lasts what `lasts` says for its name, ns."""

    children: tuple[Any, ...] = ()
    told: Any = None
    errors: frozenset[int] = frozenset()
    error: Exception | None = None

    def __init__(self, *children: Any) -> None:
        self.children = children
        self.lasts: dict[str, int] = {}

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        pass

    def _run(self, name: str, *args: Any) -> None:
        if self.error is not None:
            raise self.error
        for child in self.children:
            getattr(child, name)(*args)
        self.told.clock += self.lasts.get(name, 0)

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        self._run("handle_preemptions", kv_connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        del kwargs
        self._run("start_load_kv", forward_context)

    def wait_for_layer_load(self, layer_name: str) -> None:
        self._run("wait_for_layer_load", layer_name)

    def save_kv_layer(self, layer_name: str, kv_layer: Any = None, attn_metadata: Any = None) -> None:
        del kv_layer, attn_metadata
        self._run("save_kv_layer", layer_name)

    def wait_for_save(self) -> None:
        """Nothing to wait for."""
        return

    def get_block_ids_with_load_errors(self) -> frozenset[int]:
        return self.errors

    def clear_connector_metadata(self) -> None:
        self._run("clear_connector_metadata")


def kind(name: str, told: Told) -> type:
    made = type(name, (Connector,), {**vars(Connector), "told": told})
    carrier.instrument(made)
    worker.instrument(made)
    return made


def bound(connector: Any, requests: Sequence[str] = ("a",), **loads: int | None) -> Any:
    """A connector that has bound metadata with these loads: request -> attempt, None for one in the step."""
    metadata = Some(
        _kvtrace={"step": 1, "requests": tuple(requests), "loads": tuple(loads),
                  "attempts": tuple(loads.values()), "tokens": (48,) * len(loads)}
    )  # fmt: skip
    connector.bind_connector_metadata(metadata)
    return connector


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call of another test is under way."""
    for module, name in ((worker, "_calls"), (layers, "_inside"), (inside, "_under_way"), (inside, "_lost")):
        monkeypatch.setattr(module, name, [])
    for each in layers._sums.values():
        each.clear()
