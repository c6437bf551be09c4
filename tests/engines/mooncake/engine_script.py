"""Two of Mooncake's transfer engines in one process, over loopback TCP: one reads and writes the other's."""

from __future__ import annotations

import ctypes
import time

import kvtrace
from mooncake.engine import TransferEngine, TransferOpcode
from tests.engines.caller import Caller

MIB = 1 << 20


def _engine(size: int) -> tuple[TransferEngine, int]:
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    buffer = (ctypes.c_char * size)()
    KEPT.append(buffer)
    assert engine.register_memory(ctypes.addressof(buffer), size) == 0
    return engine, ctypes.addressof(buffer)


KEPT: list[object] = []


def main() -> None:
    caller = Caller()
    (near, mine), (far, theirs) = _engine(8 * MIB), _engine(8 * MIB)
    peer = f"127.0.0.1:{far.get_rpc_port()}"
    for name in ("transfer_sync_write", "transfer_sync_read"):
        for _ in range(9):
            assert caller.call(name, getattr(near, name), peer, mine, theirs, 4 * MIB, moved=4 * MIB) == 0
    with kvtrace.request("cmpl-8"):
        arguments = (peer, [mine, mine + MIB], [theirs, theirs + MIB], [MIB, MIB], TransferOpcode.Read)
        for _ in range(5):
            caller.call("batch_transfer_sync", near.batch_transfer_sync, *arguments, moved=2 * MIB)
    for _ in range(5):
        start_ns = caller.now()
        batch = near.batch_transfer_async_write(peer, [mine], [theirs], [8 * MIB])
        assert near.get_batch_transfer_status([batch]) == 0
        caller.noted("batch_transfer_async_write", start_ns, moved=8 * MIB)
    for _ in range(5):
        start_ns = caller.now()
        number = near.transfer_submit_write(peer, mine, theirs, 8 * MIB)
        while near.transfer_check_status(number) == 0:
            time.sleep(0.0001)
        caller.noted("transfer_submit_write", start_ns, moved=8 * MIB)
    returned = {
        "bad_address": near.transfer_sync_write(peer, mine, 12345, 100),
        "bad_peer": near.batch_transfer_async_read("127.0.0.1:9", [mine], [theirs], [MIB]),
        "bad_batch": near.get_batch_transfer_status(
            [near.batch_transfer_async_read(peer, [mine], [12345], [MIB])]
        ),
    }
    caller.save(returned=returned)


main()
