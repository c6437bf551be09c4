"""LMCache 0.5.5: its multiprocess server, from inside; what its clients know is in client/.

    plugin.py         what is wrapped where, armed the moment a Python imports lmcache
    bus.py            the server's event bus: our subscriber is there before its first event
    subscriber.py     an event -> rows, in the order of delivery; what the bus drops is counted
    keys.py           object keys as text
    binding.py        LMCache's tracing of calls, made cheaper
    blocks.py         what happens to keys: locks, writes, evictions, failures
    calls.py          what was asked of the storage manager: the only source of lock counts
    lookups.py        lookups, and which keys a request asked for
    transfers.py      stores and retrieves between the GPU and L1
    tasks.py          stores to and loads from L2
    prefetches.py     L2's part of a lookup, tied to its request
    blend.py          CacheBlend's requests
    points.py         everything else, names that nobody knows included
    pairs.py          starts that wait for their end
    storage.py        what no event says: prefetch ids, forced deletions
    facts.py          what the server is: configuration, identity, version
    closing.py        what it still holds at its end, and the end of the recording
    device_plugin.py  another way in, for servers that kvtrace run does not start

Nothing of LMCache is imported by importing this package, nor by arming it.
"""

from __future__ import annotations

import os


def install() -> None:
    """Arm this process: idle without KVTRACE_OUT, never raises, once a process."""
    if not os.environ.get("KVTRACE_OUT"):
        return
    try:
        from kvtrace.instrument.lmcache import plugin

        plugin.install()
    except Exception as error:  # noqa: BLE001 - whatever is wrong with us, the server starts
        _say(error)


def _say(error: Exception) -> None:
    import logging

    logging.getLogger("lmcache.kvtrace").warning("kvtrace records nothing here: %r", error)
