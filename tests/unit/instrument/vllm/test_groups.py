"""Which tokens each group of layers needs before the first one that is computed.

first = 1000; blocks of 128

full, latent   0 ============================== 1000
window of 300                       701 ======= 1000      299 tokens before it
chunk of 512              512 ================= 1000      its chunk's
recurrent                                    999 = 1000   the state after one token
"""

from __future__ import annotations

from types import SimpleNamespace as Some
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.instrument.vllm import configuration
from kvtrace.instrument.vllm.groups import groups_of

if TYPE_CHECKING:
    from tests.unit.instrument.conftest import Told


class AttentionSpec(Some):
    block_size = 128
    page_size_bytes = 1024


class FullAttentionSpec(AttentionSpec):
    dcp_sharded = True


class MLAAttentionSpec(FullAttentionSpec):
    pass


class SlidingWindowSpec(AttentionSpec):
    sliding_window = 300
    unpadded_page_size_bytes = 1000


class SlidingWindowMLASpec(SlidingWindowSpec):
    pass


class ChunkedLocalAttentionSpec(AttentionSpec):
    attention_chunk_size = 512


class MambaSpec(Some):
    block_size = 64
    page_size_bytes = 8192
    real_page_size_bytes = 5000


class CrossAttentionSpec(AttentionSpec):
    pass


class RSWASpec(FullAttentionSpec):
    pass


def group(spec: Any, *layers: str) -> Any:
    return Some(kv_cache_spec=spec, layer_names=list(layers or ("layer.0", "layer.1")))


def config(*groups: Any) -> Any:
    return Some(kv_cache_groups=list(groups))


def one(spec: Any, *layers: str) -> Any:
    (found,) = groups_of(config(group(spec, *layers)))
    return found


@pytest.mark.parametrize(
    ("spec", "kind", "state", "since"),
    [
        (FullAttentionSpec(), "full", "kv", 0),
        (MLAAttentionSpec(), "latent", "kv", 0),
        (SlidingWindowSpec(), "window", "window", 701),
        (SlidingWindowMLASpec(), "window", "window", 701),
        (ChunkedLocalAttentionSpec(), "chunked", "window", 512),
        (MambaSpec(), "recurrent", "recurrent", 999),
    ],
)
@pytest.mark.usefixtures("told")
def test_a_group_needs_what_its_kind_looks_back_to(spec: Any, kind: str, state: str, since: int) -> None:
    found = one(spec)
    assert (found.kind, found.state_kind, found.needs_from(1000)) == (kind, state, since)


@pytest.mark.parametrize(
    ("spec", "first", "since"),
    [
        (SlidingWindowSpec(), 299, 0),
        (SlidingWindowSpec(), 300, 1),
        (ChunkedLocalAttentionSpec(), 511, 0),
        (ChunkedLocalAttentionSpec(), 512, 512),
        (MambaSpec(), 1, 0),
    ],
)
@pytest.mark.usefixtures("told")
def test_at_the_edge_of_a_window_or_a_chunk(spec: Any, first: int, since: int) -> None:
    assert one(spec).needs_from(first) == since


@pytest.mark.usefixtures("told")
def test_a_block_is_as_large_as_the_pages_of_all_its_layers_without_padding() -> None:
    assert one(FullAttentionSpec()).block_bytes == 2048
    assert one(SlidingWindowSpec(), "a", "b", "c").block_bytes == 3000
    assert one(MambaSpec(), "a").block_bytes == 5000
    several = Some(kv_cache_specs={"a": MLAAttentionSpec(), "b": MLAAttentionSpec(page_size_bytes=7)})
    assert (one(several, "a", "b").block_bytes, one(several, "a", "b").kind) == (1031, "latent")


@pytest.mark.usefixtures("told")
def test_latent_layers_that_are_all_indexers_say_so() -> None:
    indexer = MLAAttentionSpec(cache_role=Some(value="indexer"))
    assert one(indexer).state_kind == "indexer"
    several = Some(kv_cache_specs={"a": indexer, "b": MLAAttentionSpec()})
    assert one(several).state_kind == "kv"


@pytest.mark.usefixtures("told")
def test_blocks_spread_over_decode_ranks_hold_the_tokens_of_all() -> None:
    parallel = Some(decode_context_parallel_size=4)
    configuration.here().config = Some(parallel_config=parallel)
    assert one(FullAttentionSpec()).block_tokens == 512
    assert one(SlidingWindowSpec()).block_tokens == 128


@pytest.mark.usefixtures("told")
def test_a_group_of_no_known_kind_keeps_its_place_and_says_nothing() -> None:
    found = groups_of(config(group(CrossAttentionSpec()), group(FullAttentionSpec())))
    assert found[0] is None
    assert found[1] is not None
    assert found[1].number == 1
    assert one(RSWASpec()) is None
    every = config(group(CrossAttentionSpec()), group(FullAttentionSpec()), group(MambaSpec()))
    assert [each and each.number for each in groups_of(every, (2, 0))] == [2, None]


@pytest.mark.usefixtures("told")
def test_a_group_that_no_load_brings_keeps_its_place_and_says_nothing() -> None:
    """A window that is computed again (DeepSeek-V4.1's bounded replay), and a replica on the accelerator."""
    replayed = group(SlidingWindowMLASpec(prefix_cacheable=False))
    replica = group(FullAttentionSpec())
    replica.enable_kv_transfer = False
    found = groups_of(config(replayed, replica, group(SlidingWindowMLASpec(prefix_cacheable=True))))
    assert [each and each.number for each in found] == [None, None, 2]


@pytest.mark.usefixtures("told")
def test_a_group_without_layers_on_this_rank_is_no_indexer_and_its_bytes_are_not_known() -> None:
    (found,) = groups_of(config(Some(kv_cache_spec=SlidingWindowSpec(), layer_names=[])))
    assert found is not None
    assert (found.state_kind, found.layers, found.block_bytes) == ("window", 0, None)


def test_a_group_of_another_version_takes_none_of_the_others_along(told: Told) -> None:
    odd = group(SlidingWindowSpec(sliding_window="none"))
    found = groups_of(config(group(FullAttentionSpec()), odd, group(MambaSpec())))
    assert [each and each.number for each in found] == [0, None, 2]
    assert told.losses == [("hook_failure", "a group of layers: ValueError")]


def test_an_engine_with_another_configuration_is_counted_once_and_one_without_is_not(told: Told) -> None:
    assert groups_of(Some(), (0,)) == ()
    assert [cause for cause, _ in told.losses] == ["hook_failure"]
    assert groups_of(None) == ()
    assert len(told.losses) == 1
