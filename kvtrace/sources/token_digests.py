"""A keyed digest of a block's tokens and all before them: equal content is recognised, nothing read back.

    block:   a          b               c
    digest:  H(a)  ->   H(H(a) b)  ->   H(H(H(a) b) c)      null where the parent was not seen

A publisher may tell children before their parents: what waits is looked at again when the batch ends. Equal
content gives equal digests inside one import and between engines of one block size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from struct import Struct, error
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

DIGEST_BYTES = 16
REMEMBERED = 500_000
"""Blocks of one generation: at most two generations are known at once, the older without the used ones."""
Digests = list[bytes | None]
_PACKS: dict[int, Struct] = {}
_MAX_PACKS = 1_000


@dataclass(slots=True)
class Chains:
    """The digests of blocks by key, bounded, and the blocks of this batch that wait for their parent."""

    key: bytes
    remembered: int = REMEMBERED
    _keyed: blake2b = field(init=False)
    _young: dict[Any, bytes] = field(default_factory=dict)
    _old: dict[Any, bytes] = field(default_factory=dict)
    _waiting: dict[Any, list[tuple[int, list[Any], Sequence[int], int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """A key of fixed length before the content: BLAKE2 cannot be extended.

        That is as good as its own key parameter, which takes a compression more for every block.
        """
        self._keyed = blake2b(blake2b(self.key, digest_size=32).digest(), digest_size=DIGEST_BYTES)

    def add(self, into: Digests, hashes: list[Any], parent: Any, tokens: list[int], size: int) -> None:
        """Append the digest of every block; those that wait are null until `settle`."""
        if len(tokens) != size * len(hashes):
            into.extend([None] * len(hashes))
            return
        before = b"" if parent is None else self._of(parent)
        if before is None:
            self._waiting.setdefault(parent, []).append((len(into), hashes, tokens, size))
            into.extend([None] * len(hashes))
            return
        young, keyed = self._young, self._keyed.copy
        content = _packed(tokens)
        width = len(content) // len(hashes)
        for at in range(len(hashes)):
            state = keyed()
            state.update(before + content[at * width : at * width + width])
            young[hashes[at]] = before = state.digest()
            into.append(before)

    def settle(self, into: Digests) -> None:
        """The batch is over: give a digest to what waited for a parent that came later in it."""
        ready = [parent for parent in self._waiting if self._of(parent) is not None] if self._waiting else []
        while ready:
            parent = ready.pop()
            for row, hashes, tokens, size in self._waiting.pop(parent, ()):
                found: Digests = []
                self.add(found, hashes, parent, list(tokens), size)
                into[row : row + len(hashes)] = found
                ready.extend(block for block in hashes if block in self._waiting)
        self._waiting.clear()
        if len(self._young) > self.remembered:
            self._young, self._old = {}, self._young

    def _of(self, block: Any) -> bytes | None:
        """A known block's digest; one that is used stays known."""
        found = self._young.get(block)
        if found is None:
            found = self._old.get(block)
            if found is not None:
                self._young[block] = found
        return found


def _packed(tokens: Sequence[int]) -> bytes:
    """Token ids as bytes of one width an id, whatever the encoding in which they came."""
    try:
        pack = _PACKS.get(len(tokens))
        if pack is None:
            pack = Struct(f"<{len(tokens)}I")
            if len(_PACKS) < _MAX_PACKS:
                _PACKS[len(tokens)] = pack
        return pack.pack(*tokens)
    except error:  # an id beyond 32 bits: no vocabulary is so large, but nothing forbids it
        return b"".join((token & (1 << 128) - 1).to_bytes(16, "little") for token in tokens)
