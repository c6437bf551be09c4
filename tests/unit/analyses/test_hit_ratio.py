"""Which share of the tokens came from which tier: two requests of 1,536 tokens unless a test says more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses.hit_ratio import COLUMNS, hit_ratio
from kvtrace.errors import UsageError
from tests.rows import write_run
from tests.unit.analyses.serving import PROMPT, Row, asked, loaded, lookup, prefill, written

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

Found = dict[tuple[str, str | None], dict[str, Any]]


def ratios(run: Run) -> Found:
    """The rows by tier and component."""
    return {(row["tier"], row["component"]): row for row in hit_ratio(run).to_dicts()}


def served(
    name: str,
    gpu_hit: int,
    used: int,
    *,
    found: int | None = None,
    tiers: dict[str, int] | None = None,
    **more: Any,
) -> list[Row]:
    """A request that found so many tokens (by tier) and used so many of them beyond its GPU hit."""
    answer = lookup(
        found, request_id=name, requested_tokens=PROMPT,
        found_by_tier=None if tiers is None else list(tiers.items()), **{"component": "lmcache", **more},
    )  # fmt: skip
    before = gpu_hit + used
    return [asked(gpu_hit, used, name), answer, prefill(before, PROMPT - before, name=name)]


def hop(
    name: str, tokens: int | None, path: str = "host->gpu", component: str = "lmcache.l1", **more: Any
) -> Row:
    return loaded(tokens, path=path, component=component, request_id=name, **more)


def test_a_run_without_rows_has_the_columns(tmp_path: Path) -> None:
    frame = hit_ratio(write_run(tmp_path / "run"))
    assert (frame.schema, frame.height) == (COLUMNS, 0)


def test_the_gpu_and_the_tier_below(tmp_path: Path) -> None:
    rows = [*served("r0", 0, 1280, found=1280), hop("r0", 1280), *served("r1", 1408, 0, found=1280)]
    found = ratios(written(tmp_path, *rows))
    assert list(found) == [("gpu", None), ("host", "lmcache.l1")]
    gpu, host = found.values()
    assert (gpu["prompt_tokens"], gpu["found_tokens"], gpu["loaded_tokens"]) == (3072, 1408, 1408)
    assert gpu["of_prompt"] == gpu["of_queried"] == 1408 / 3072
    assert (host["prompt_tokens"], host["queried_tokens"]) == (3072, 3072)
    assert (host["found_tokens"], host["loaded_tokens"]) == (2560, 1280)
    assert (host["of_prompt"], host["of_queried"], host["of_found"]) == (1280 / 3072, 2560 / 3072, 0.5)


def test_the_lookups_say_what_lay_in_which_tier(tmp_path: Path) -> None:
    """All that was found was loaded, so its split is that of the find; where nothing was found it is 0."""
    tiers = {"host": 512, "disk": 768, "object": 0}
    rows = [*served("r0", 0, 1280, found=1280, tiers=tiers), hop("r0", 1280)]
    found = ratios(written(tmp_path, *rows))
    assert [(tier, row["loaded_tokens"]) for (tier, _), row in found.items()] == [
        ("gpu", 0), ("host", 512), ("disk", 768), ("object", 0),
    ]  # fmt: skip
    assert found["object", "lmcache"]["of_found"] is None


def test_one_tier_that_had_it_all_has_all_that_was_used(tmp_path: Path) -> None:
    rows = [*served("r0", 640, 640, found=1280, tiers={"host": 0, "disk": 1280}), hop("r0", 768)]
    found = ratios(written(tmp_path, *rows))
    assert (found["host", "lmcache.l1"]["loaded_tokens"], found["disk", "lmcache"]["loaded_tokens"]) == (
        0,
        640,
    )


def test_a_split_that_nobody_tells_is_null(tmp_path: Path) -> None:
    """The GPU had 640 of what two tiers had: from which the rest came is not known."""
    tiers = {"host": 512, "disk": 768}
    rows = [*served("r0", 640, 640, found=1280, tiers=tiers, component="other"), hop("r0", 768)]
    rows += served("r1", 0, 256, found=256, tiers={"host": 256, "disk": 0}, component="other")
    found = ratios(written(tmp_path, *rows))
    assert [row["loaded_tokens"] for row in found.values()] == [640, None, None]
    assert [row["found_tokens"] for row in found.values()] == [640, 768, 768]


#  L1 |==== 512 ====|  L2 |====== 768 ======|     used from the end of the GPU's hit on
@pytest.mark.parametrize(
    ("gpu_hit", "used", "split"),
    [
        (640, 640, [0, 640]),
        (256, 1024, [256, 768]),
        (0, 1024, [512, 512]),
        (0, 384, [384, 0]),
        (512, 0, [0, 0]),
    ],
)
def test_lmcache_finds_from_the_first_token_on_in_l1_and_further_in_l2(
    tmp_path: Path, gpu_hit: int, used: int, split: list[int]
) -> None:
    rows = served("r0", gpu_hit, used, found=1280, tiers={"host": 512, "disk": 768})
    found = ratios(written(tmp_path, *rows, hop("r0", used)))
    assert [row["loaded_tokens"] for row in found.values()] == [gpu_hit, *split]


@pytest.mark.parametrize(
    ("used", "tiers"),
    [(1024, {"host": 512, "disk": 768}), (640, {"disk": 512, "peer": 768}),
     (640, {"host": 256, "disk": 512, "peer": 512})],
)  # fmt: skip
def test_more_than_was_found_or_an_order_that_nobody_knows_tells_no_split(
    tmp_path: Path, used: int, tiers: dict[str, int]
) -> None:
    found = ratios(written(tmp_path, *served("r0", 384, used, found=1280, tiers=tiers), hop("r0", used)))
    assert {row["loaded_tokens"] for (tier, _), row in found.items() if tier != "gpu"} == {None}


def test_hops_tell_the_deepest_tier(tmp_path: Path) -> None:
    """768 came from the disk, through host memory, where 512 more lay already."""
    rows = [
        *served("r0", 0, 1280, found=1280),
        hop("r0", 768, "disk->host", "lmcache.l2", start=12),
        hop("r0", 1280),
    ]
    found = ratios(written(tmp_path, *rows))
    assert found["disk", "lmcache.l2"]["loaded_tokens"] == 768
    assert found["host", "lmcache.l1"]["loaded_tokens"] == 512


def test_one_source_is_credited_with_what_was_used(tmp_path: Path) -> None:
    rows = [*served("r0", 640, 640, found=1280), hop("r0", 768, "disk->host", "lmcache.l2"), hop("r0", 768)]
    found = ratios(written(tmp_path, *rows))
    assert found["disk", "lmcache.l2"]["loaded_tokens"] == 640
    assert all(row["loaded_tokens"] in (640, 0) for row in found.values())


def test_two_sources_of_more_than_was_used_tell_no_split(tmp_path: Path) -> None:
    rows = [*served("r0", 640, 640, found=1280), hop("r0", 256, "disk->host", "lmcache.l2"), hop("r0", 768)]
    found = ratios(written(tmp_path, *rows))
    assert found["disk", "lmcache.l2"]["loaded_tokens"] is None
    assert found["host", "lmcache.l1"]["loaded_tokens"] is None


def test_used_tokens_without_any_source_leave_every_tier_null(tmp_path: Path) -> None:
    rows = [*served("r0", 0, 1280, found=1280), *served("r1", 0, 256, found=256, tiers={"host": 256})]
    found = ratios(written(tmp_path, *rows))
    assert {row["loaded_tokens"] for (tier, _), row in found.items() if tier != "gpu"} == {None}


def test_a_handoff_is_no_hit(tmp_path: Path) -> None:
    rows = [*served("r0", 0, 1280, found=1280), hop("r0", 1280, "peer->gpu", "nixl", purpose="handoff")]
    rows += [*served("r1", 0, 256, found=256), hop("r1", 256)]
    found = ratios(written(tmp_path, *rows))
    assert ("peer", "nixl") not in found
    assert (found["host", "lmcache.l1"]["loaded_tokens"], found["gpu", None]["prompt_tokens"]) == (
        256,
        PROMPT,
    )


def test_a_request_whose_loaded_tokens_are_not_known_is_in_no_sum(tmp_path: Path) -> None:
    rows = [
        *served("r0", 0, 256, found=256),
        hop("r0", 256),
        asked(0, 512, "r1"),
        lookup(512, request_id="r1"),
    ]
    found = ratios(written(tmp_path, *rows))
    assert found["host", "lmcache.l1"]["prompt_tokens"] == PROMPT
    assert found["host", "lmcache.l1"]["found_tokens"] == 256


def test_a_cache_that_was_recorded_alone_says_what_it_found(tmp_path: Path) -> None:
    """Nobody saw the engine: what was used is null, in every row, and there is no row of the GPU."""
    answer = lookup(
        512, observer="server", component="lmcache", requested_tokens=1280, found_by_tier=[("host", 512)]
    )
    found = ratios(written(tmp_path, asked(None, None), answer, hop("r0", 512, observer="server")))
    assert list(found) == [("host", "lmcache.l1")]
    row = found["host", "lmcache.l1"]
    assert (row["queried_tokens"], row["found_tokens"], row["loaded_tokens"]) == (1280, 512, None)
    assert (row["of_queried"], row["of_prompt"], row["of_found"]) == (0.4, None, None)


def test_a_failed_load_is_credited_with_nothing(tmp_path: Path) -> None:
    rows = [
        *served("r0", 0, 256, found=256),
        hop("r0", 512, "disk->gpu", "other", outcome="failed"),
        hop("r0", 256),
    ]
    found = ratios(written(tmp_path, *rows))
    assert ("disk", "other") not in found
    assert found["host", "lmcache.l1"]["loaded_tokens"] == 256


@pytest.mark.parametrize("of", ["objects", "bytes"])
def test_a_ratio_of_objects_is_refused(tmp_path: Path, of: str) -> None:
    with pytest.raises(UsageError, match="must be tokens"):
        hit_ratio(write_run(tmp_path / "run"), of=of)
