"""The simulation finds planted bugs: a suite that has never failed has proven nothing."""

from __future__ import annotations

import pytest

from tests.sim.mutants import ALL, planted
from tests.sim.run import run_safely

SEEDS = range(1, 201)


def first_find(name: str) -> int | None:
    """The first seed that fails with the bug, None when none does."""
    with planted(name):
        return next((seed for seed in SEEDS if run_safely(seed).failure is not None), None)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ALL)
def test_a_planted_bug_is_found(name: str) -> None:
    assert first_find(name) is not None


@pytest.mark.parametrize("name", ALL)
def test_a_mutant_still_fits_the_code(name: str) -> None:
    """Planting and taking out again leaves the code as it was."""
    with planted(name):
        pass
    with planted(name):
        pass
