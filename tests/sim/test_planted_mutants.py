"""The simulation finds planted bugs: a suite that has never failed has proven nothing."""

from __future__ import annotations

import re

import pytest

from tests.sim.mutants import ALL, SYMPTOMS, planted
from tests.sim.run import Result, run_safely

SEEDS = range(1, 201)
LATE = {
    "peak not reset": 26,
    "restore loses passes": 2,
    "ramp not announced": 126,
    "checksums are not looked at": 21,
    "a log that is too short is taken over": 20,
    "what stands for lost records is believed": 200,
    "a recover of a sent trip is held back": 4,
    "a recover behind a second trip that is held is not told": 255,
    "what is held is released whoever else mutes it": 19,
    "no epoch is looked at": 332,
}
"""Bugs that show in few seeds, and the first of these, which is tried before all others."""


def first_find(name: str) -> Result | None:
    """The first seed that fails with the bug, None when none does."""
    with planted(name):
        seeds = (*((LATE[name],) if name in LATE else ()), *SEEDS)
        return next((result for result in map(run_safely, seeds) if result.failure is not None), None)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ALL)
def test_a_planted_bug_is_found(name: str) -> None:
    """And it is what was found: without it the same seed is fine."""
    found = first_find(name)
    assert found is not None
    assert found.failure is not None
    assert re.search(SYMPTOMS.get(name, ""), found.failure), found.message()
    clean = run_safely(found.seed)
    assert clean.failure is None, clean.message()


@pytest.mark.parametrize("name", ALL)
def test_a_mutant_still_fits_the_code(name: str) -> None:
    """Planting and taking out again leaves the code as it was."""
    with planted(name):
        pass
    with planted(name):
        pass
