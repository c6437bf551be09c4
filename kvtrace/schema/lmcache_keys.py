"""LMCache's object keys in our words: one object = one chunk of one rank and one object group.

Shared by what reads LMCache's files and by what sits in its server: both must name one key alike.
"""

from __future__ import annotations

L1_TIERS = {"dram": "host", "devdax": "host", "gds": "disk"}
"""What L1 may be made of (`L1BackendType`): memory, byte-addressable memory behind a device, files by GDS."""
L2_TIERS = {
    "fs": "disk", "fs_native": "disk", "raw_block": "disk", "dax": "disk",
    "p2p": "peer",
    "s3": "object", "hfbucket": "object", "bigtable": "object", "resp": "object", "valkey": "object",
    "aerospike": "object", "mooncake_store": "object", "sagemaker-hyperpod": "object",
}  # fmt: skip
"""L2 adapter types whose medium their name says; mock, plugins, wrappers and nixl can be anything."""
_BYTE = 0xFF


def key_space(model: str) -> str:
    """Keys compare only inside it. Nothing that LMCache writes names the hash algorithm of its keys."""
    return f"lmcache:unknown:{model}"


def rank_of(kv_rank: int) -> int:
    """The global rank in a key's `kv_rank`: world size, rank, local world size, local rank, a byte each."""
    return kv_rank >> 16 & _BYTE
