"""Digests of chains: bounded, and the same whatever the order of a batch."""

from __future__ import annotations

from kvtrace.sources.token_digests import Chains, Digests


def digest(chains: Chains, block: int, parent: int | None, tokens: list[int]) -> bytes | None:
    into: Digests = []
    chains.add(into, [block], parent, tokens, len(tokens))
    chains.settle(into)
    return into[0]


def test_a_parent_that_is_used_stays_known_and_others_are_forgotten() -> None:
    chains = Chains(b"key", remembered=10)
    digest(chains, 0, None, [7])
    digest(chains, 1, None, [8])
    for block in range(2, 60):
        assert digest(chains, block, 0, [block]) is not None
    assert digest(chains, 100, 1, [5]) is None
    assert len(chains._young) + len(chains._old) <= 2 * 11


def test_token_ids_beyond_32_bits_have_a_digest_too() -> None:
    chains = Chains(b"key")
    found = {
        digest(chains, block, None, tokens) for block, tokens in enumerate(([1], [2**40], [-1], [2**64 - 1]))
    }
    assert len(found) == 4
    assert None not in found


def test_a_block_whose_parent_comes_in_a_later_batch_has_none() -> None:
    chains = Chains(b"key")
    assert digest(chains, 2, 1, [5]) is None
    assert digest(chains, 1, None, [4]) is not None
    assert digest(chains, 2, 1, [5]) is not None
