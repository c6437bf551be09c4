"""Agents of NIXL in one process: UCX over loopback, POSIX files, prepared lists, transfers that cannot be."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import kvtrace
import numpy as np
from kvtrace import recorder
from kvtrace.instrument import nixl
from nixl_cu12._api import nixl_agent, nixl_agent_config
from tests.engines.caller import Caller

MIB = 1 << 20
SIZE = 4 * MIB


def request_of(message: bytes) -> str | None:
    """What this program writes into its notifications."""
    kind, _, name = message.decode().partition("=")
    return name if kind == "request" else None


def parts(at: int, count: int = 4, device: int = 0) -> list[tuple[int, int, int]]:
    return [(at + place * MIB, MIB, device) for place in range(count)]


def post(caller: Caller, name: str, agent: Any, handle: Any, moved: int) -> None:
    """Post and poll, as every user does, and measure it."""
    start_ns = caller.now()
    state = agent.transfer(handle)
    while state == "PROC":
        state = agent.check_xfer_state(handle)
    caller.noted(name, start_ns, moved=moved)
    assert state == "DONE", state


def main() -> None:
    nixl.install(request_of=request_of)
    caller, source, target = (
        Caller(),
        np.ones(SIZE, dtype=np.uint8),
        np.zeros(SIZE, dtype=np.uint8),
    )
    near = nixl_agent("near", nixl_agent_config(capture_telemetry=True, backends=["UCX", "POSIX"]))
    far = nixl_agent("far", nixl_agent_config(backends=["UCX"]))
    mine, theirs = source.ctypes.data, target.ctypes.data
    regions = [
        (near, near.register_memory([(mine, SIZE, 0, "")], "DRAM")),
        (far, far.register_memory([(theirs, SIZE, 0, "")], "DRAM")),
    ]
    near.add_remote_agent(far.get_agent_metadata())
    far.add_remote_agent(near.get_agent_metadata())
    here, there = near.get_xfer_descs(parts(mine), "DRAM"), near.get_xfer_descs(parts(theirs), "DRAM")
    told = ucx(caller, near, far, here, there)
    assert bool((source == target).all())
    prepared(caller, near, mine, theirs)
    posix(caller, near, here, source)
    silent(caller, far, theirs, mine)
    released = cancelled(near, here, there)
    caller.save(told=told, released=released, errors=errors(near, mine))
    for agent, region in regions:
        agent.deregister_memory(region)
    recorder.close()
    sys.stdout.flush()
    os._exit(0)  # taking two agents of one process down ends in NIXL's own crash, recorded or not


def ucx(caller: Caller, near: Any, far: Any, here: Any, there: Any) -> list[str]:
    """Writes to the other agent; what it is told of them."""
    for number in range(7):
        handle = near.initialize_xfer("WRITE", here, there, "far", f"request=cmpl-{number}".encode())
        post(caller, "ucx", near, handle, SIZE)
        near.release_xfer_handle(handle)
    told: list[str] = []
    while len(told) < 7:
        told += [message.decode() for messages in far.get_new_notifs().values() for message in messages]
    return told


def prepared(caller: Caller, near: Any, mine: int, theirs: int) -> None:
    """Lists that are prepared once, a handle that is posted again, and the request of a scope."""
    local = near.prep_xfer_dlist("NIXL_INIT_AGENT", parts(mine), "DRAM")
    remote = near.prep_xfer_dlist("far", parts(theirs), "DRAM")
    handle = near.make_prepped_xfer("READ", local, [0, 1], remote, [2, 3], b"not a request")
    with kvtrace.request("cmpl-scope"):
        for _ in range(5):
            post(caller, "prepared", near, handle, 2 * MIB)
    near.release_xfer_handle(handle)
    near.release_dlist_handle(local)


def posix(caller: Caller, near: Any, here: Any, source: Any) -> None:
    """To a file and back."""
    with Path("pages").open("wb+") as file:
        file.truncate(SIZE)
        region = near.register_memory([(0, SIZE, file.fileno(), "pages")], "FILE")
        pages = near.get_xfer_descs(parts(0, device=file.fileno()), "FILE")
        for operation in ("WRITE", "READ") * 5:
            handle = near.initialize_xfer(operation, here, pages, "near")
            post(caller, f"posix-{operation}", near, handle, SIZE)
            near.release_xfer_handle(handle)
            assert bool((source == 1).all())
        near.deregister_memory(region)


def cancelled(near: Any, here: Any, there: Any) -> list[str]:
    """Released without another look: what posting said, until five were under way (a quick one is done)."""
    states: list[str] = []
    while states.count("PROC") < 5 and len(states) < 500:
        handle = near.initialize_xfer("WRITE", here, there, "far", b"request=cmpl-cancelled")
        states.append(near.transfer(handle))
        near.release_xfer_handle(handle)
    return states


def silent(caller: Caller, far: Any, theirs: int, mine: int) -> None:
    """An agent without telemetry: start and end are the caller's, bytes those of the descriptors."""
    local, remote = far.get_xfer_descs(parts(theirs), "DRAM"), far.get_xfer_descs(parts(mine), "DRAM")
    for _ in range(5):
        handle = far.initialize_xfer("READ", local, remote, "near")
        post(caller, "silent", far, handle, SIZE)
        far.release_xfer_handle(handle)


def errors(near: Any, mine: int) -> dict[str, str]:
    """What NIXL raises; the caller sees it as if nobody looked on."""
    said: dict[str, str] = {}
    nowhere = near.get_xfer_descs([(SIZE * 4, MIB, 4_000)], "FILE")
    local = near.get_xfer_descs([(mine, MIB, 0)], "DRAM")
    try:
        near.initialize_xfer("READ", local, nowhere, "near")
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        said["unregistered"] = f"{type(error).__name__}: {error}"
        said["context"] = str(error.__cause__ or error.__context__)
    return said


main()
