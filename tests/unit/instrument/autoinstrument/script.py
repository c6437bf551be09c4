"""A script as its author wrote it: a scope, calls that work, one that fails; nothing of OpenTelemetry."""

from __future__ import annotations

import contextlib

import kvtrace


@kvtrace.transfer(op="load", tier_from="disk", tier_to="host", component="mystore.disk")
def fetch(keys: list[str], *, request_id: str, tokens: int) -> dict[str, int]:  # noqa: ARG001
    return {"bytes": 4096, "blocks": 2}


@kvtrace.transfer(op="store", tier_from="host", tier_to="object")
def put(tokens: int) -> None:  # noqa: ARG001
    raise OSError("a prompt that must not be kept")


@kvtrace.transfer(op="load", tier_from="peer", tier_to="host")
def outside() -> int:
    return 77


fetch(["k"], request_id="r1", tokens=64)
with contextlib.suppress(OSError), kvtrace.request("r2"):
    fetch(["k"], request_id="r2", tokens=128)
    put(tokens=7)
outside()
