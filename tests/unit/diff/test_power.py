from __future__ import annotations

import pytest
from tests.bench.diff_power import SCENARIOS, simulate

TINY = {"files": 6, "seed": 1, "gates": 4, "requests": 1000}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_simulation_plays_every_scenario_at_a_tiny_size(scenario: object) -> None:
    shares = simulate(scenario, **TINY)  # type: ignore[arg-type]
    assert all(0 <= share <= 1 for share in shares.values())


def test_even_six_files_tell_a_plain_regression_from_none() -> None:
    assert simulate(SCENARIOS[0], **TINY)["fails"] == 0
    assert simulate(SCENARIOS[3], **TINY)["planted gate worse"] >= 5 / 6
    assert simulate(SCENARIOS[4], **TINY)["tail worse"] >= 5 / 6
