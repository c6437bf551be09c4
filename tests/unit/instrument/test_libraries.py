"""What doctor says of installed libraries."""

from __future__ import annotations

import pytest
from kvtrace.instrument import libraries, nixl, sglang


@pytest.mark.parametrize(
    ("distribution", "said"),
    [
        ("nixl", nixl.STATE),
        ("nixl-cu12", nixl.STATE),
        ("sglang", sglang.STATE),
        ("sglang-router", None),
        ("vllm", None),
    ],
)
def test_a_distribution_is_known_by_its_library(distribution: str, said: tuple[str, str] | None) -> None:
    assert libraries.of(distribution) == said


def test_every_library_says_how_far_it_was_seen_to_work() -> None:
    states = {name: state for name, (state, _) in libraries.LIBRARIES.items()}
    assert states == {
        "mooncake": "runs on CPU here",
        "nixl": "runs on CPU here",
        "sglang": "by source only",
        "kvbm": "by source only",
    }
