"""Object keys as text: what of a key stands in which column of a row.

One key is met in about ten events, from the lookup that asks for it to the release of its last lock: what
was worked out for it once is looked up, and the texts of its rows are one object.

A cache salt separates tenants and is part of a key, and it is a secret: what stands in a row is a digest
under a key that this process made for itself and stores nowhere.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from operator import attrgetter
from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.schema.lmcache_keys import key_space, rank_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

COLUMNS = ("key_space", "key", "rank", "object_group", "identity_id")
"""The columns of a row that name an object."""
Named = tuple["str | None", "str | None", "int | None", "str | None", "str | None"]
NOBODY: Named = (None, None, None, None, None)
MOST_SALTS = 10_000
MOST_KEPT = 8_192
"""Keys, and hashes, that are remembered at once (about 4 MB); of more all are forgotten."""
_SOURCE = "lmcache.event_bus"
_salting = os.urandom(32)
_salts: dict[str, str] = {}
_spaces: dict[str, str] = {}
_fields = attrgetter("model_name", "object_group_id", "chunk_hash", "kv_rank", "cache_salt")


class _Hashes(dict):  # type: ignore[type-arg]
    """Hash of a chunk -> its text."""

    __slots__ = ()

    def __missing__(self, chunk: bytes) -> str:
        if len(self) >= MOST_KEPT:
            self.clear()
        found = self[chunk] = chunk.hex()
        return found


class _Names(dict):  # type: ignore[type-arg]
    """The fields of a key -> what stands in the columns of its rows."""

    __slots__ = ()

    def __missing__(self, fields: tuple[str, int, bytes, int, str]) -> Named:
        if len(self) >= MOST_KEPT:
            self.clear()
        model, group, chunk, rank, salt = fields
        found = self[fields] = (space_of(model), _hashes[chunk], rank_of(rank), str(group), tenant(salt))
        return found


_hashes = _Hashes()
_names = _Names()


def named(key: Any) -> Named:
    """Key space, chunk hash, rank, object group and tenant of an ObjectKey."""
    found: Named = _names[_fields(key)]
    return found


def all_named(keys: Iterable[Any] | None) -> Iterator[Named]:
    """The same of each key, without a call of ours a key; nothing where there are no keys."""
    return map(_names.__getitem__, map(_fields, keys or ()))


def hashes(chunks: Iterable[bytes] | None) -> Iterator[str]:
    """Hashes of chunks as text."""
    return map(_hashes.__getitem__, chunks or ())


def space_of(model: str) -> str:
    """The key space of a model's keys."""
    return _spaces.get(model) or _spaces.setdefault(model, key_space(model))


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
