"""What of each connector that ships with vLLM 0.32 was seen on a running engine, and what is by its source?

Said by `kvtrace doctor`. *Runs* means: a real engine without a GPU, in our own tests (tests/engines). What
has no such test was written after reading vLLM's source; it is wrapped all the same.
"""

from __future__ import annotations

RUNS = "runs on CPU here"
SOURCE = "by source only"

_ANY = "requests, lookups and reports as of any connector; copies as reports alone"
_GPU = f"needs a GPU; {_ANY}"
_EVENTS = "CUDA events by source, and on a stand-in device"
_EXTERNAL = f"needs a library that is not here; {_ANY}"
_CLIENT = (
    "lookups and their timeouts, stores and retrieves, engine-driven copies (by messages; in shared memory "
    "and CUDA's asynchronous ones by source), locks, sessions, lazy offload, health; other copies are its "
    "server's; its classes for older vLLM (_0180, _0201) by source"
)
_INPROCESS = (
    "LMCache has no connector for a CPU's KV cache; its engine's lookups, also asynchronous, pins, stores "
    "and retrieves, also layerwise, tiers and lookup clients run here without vLLM"
)

CONNECTORS: dict[str, tuple[str, str]] = {
    "ExampleConnector": (RUNS, "loads inside steps and saved layers are waits of the batch, loads named"),
    "ExampleHiddenStatesConnector": (SOURCE, _ANY),
    "OffloadingConnector": (
        RUNS, f"every copy of any OffloadingSpec: submitted, copied, reported, usable; flushes; {_EVENTS}",
    ),
    "MultiConnector": (RUNS, "waits of the outermost call, its children named; copies of its children"),
    "LMCacheMPConnector": (RUNS, _CLIENT),
    "LMCacheConnectorV1": (SOURCE, f"{_INPROCESS}; waits inside steps; {_ANY}"),
    "DecodeBenchConnector": (SOURCE, "loads inside steps are waits, as ExampleConnector's"),
    "SimpleCPUOffloadConnector": (SOURCE, f"{_GPU}; holds of blocks by reference"),
    "NixlConnector": (SOURCE, _EXTERNAL),
    "NixlPullConnector": (SOURCE, _EXTERNAL),
    "NixlPushConnector": (SOURCE, _EXTERNAL),
    "MooncakeConnector": (SOURCE, _EXTERNAL),
    "MooncakeStoreConnector": (SOURCE, _EXTERNAL),
    "HF3FSKVConnector": (SOURCE, _EXTERNAL),
    "FlexKVConnectorV1": (SOURCE, _EXTERNAL),
    "MoRIIOConnector": (SOURCE, _EXTERNAL),
    "HiSparseConnector": (SOURCE, _GPU),
}  # fmt: skip
"""Class name -> how far its instruments were seen to work, and what they show."""
