"""Doctor, asked about an environment with these libraries."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.engines.environment import TRANSFER_LIBRARIES, engine_python, skip_when_missing

pytestmark = pytest.mark.engine


def test_doctor_says_of_each_library_how_far_it_was_seen_to_work() -> None:
    skip_when_missing(TRANSFER_LIBRARIES)
    asked = ["doctor", "--python", str(engine_python(TRANSFER_LIBRARIES)), "--format", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "kvtrace", *asked], capture_output=True, text=True, timeout=120, check=True
    )
    states = {row["what"]: row["state"] for row in json.loads(done.stdout)}
    assert states["nixl-cu12"] == states["mooncake-transfer-engine-non-cuda"] == "runs on CPU here"
    assert states["kvtrace run reaches it"] == "ok"
    assert "sglang" not in states
