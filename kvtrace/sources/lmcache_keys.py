"""LMCache's object keys in our words, for what reads its files (schema/lmcache_keys.py)."""

from __future__ import annotations

from kvtrace.schema.lmcache_keys import L1_TIERS, L2_TIERS, key_space, rank_of

__all__ = ["L1_TIERS", "L2_TIERS", "key_space", "rank_of"]
