"""Object keys as text: what of a key stands in which column of a row.

A cache salt separates tenants and is part of a key, and it is a secret: what stands in a row is a digest
under a key that this process made for itself and stores nowhere.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.schema.lmcache_keys import key_space, rank_of

if TYPE_CHECKING:
    from typing import Any

COLUMNS = ("key_space", "key", "rank", "object_group", "identity_id")
"""The columns of a row that name an object."""
Named = tuple["str | None", "str | None", "int | None", "str | None", "str | None"]
NOBODY: Named = (None, None, None, None, None)
MOST_SALTS = 10_000
_SOURCE = "lmcache.event_bus"
_salting = os.urandom(32)
_salts: dict[str, str] = {}
_spaces: dict[str, str] = {}
_groups: dict[int, str] = {}


def named(key: Any) -> Named:
    """Key space, chunk hash, rank, object group and tenant of an ObjectKey."""
    model, group = key.model_name, key.object_group_id
    space = _spaces.get(model) or _spaces.setdefault(model, key_space(model))
    text = _groups.get(group) or _groups.setdefault(group, str(group))
    return space, key.chunk_hash.hex(), rank_of(key.kv_rank), text, tenant(key.cache_salt)


def tenant(salt: str) -> str | None:
    """The identity of keys that one tenant alone can reach; None where there is no salt."""
    if not salt:
        return None
    found = _salts.get(salt)
    if found is None:
        digest = blake2b(salt.encode("utf-8", "replace"), digest_size=8, key=_salting).hexdigest()
        found = f"lmcache:salt:{digest}"
        if len(_salts) < MOST_SALTS:
            _salts[salt] = found
            recorder.identity(found, "writer", {"cache_salt": digest}, source=_SOURCE, enforced_by="key")
    return found
