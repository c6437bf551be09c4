from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.rows import write_run

if TYPE_CHECKING:
    from pathlib import Path

T0_NS = 1_700_000_000_000_000_000
HOSTILE = "::set-env name=X::[red]y\x1b[31m\n::stop"
FORMULA = "=HYPERLINK(1)"


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    """Two requests with ids from hell: one finished, one open; a lookup, a loss, a dropped prompt."""
    return write_run(
        tmp_path / "run",
        {
            "group": "tiered",
            "engines": [{"product": "vllm", "version": "0.32.0"}],
            "content_dropped": {"gen_ai.prompt": 3},
        },
        span=[
            {
                "op": "request", "request_id": FORMULA, "start_ns": T0_NS, "first_token_ns": T0_NS + 50,
                "end_ns": T0_NS + 100, "span_id": 2**64 - 1,
            },
            {"op": "request", "request_id": HOSTILE, "start_ns": T0_NS + 5, "attributes": [("note", "")]},
            {
                "op": "lookup", "request_id": FORMULA, "start_ns": T0_NS, "end_ns": T0_NS + 9,
                "requested_tokens": 100, "found_tokens": 50, "found_by_tier": [("host", 50)],
            },
        ],
        loss=[{"source": "otlp.binpb", "cause": "undecodable", "count": 1}],
    ).path  # fmt: skip
