"""The scenarios that `make test` runs: the most telling few of `make faults`."""

import pytest

from .runner import run
from .scenarios import SHORT, Scenario

SEED = 5


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("scenario", SHORT, ids=lambda scenario: scenario.title.replace(" ", "-"))
def test_history_shows_no_violation(scenario: Scenario) -> None:
    outcome = run(scenario, SEED)

    assert outcome.passed, outcome.report()
