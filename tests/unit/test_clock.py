"""Which steps of a wall clock are believed, and when."""

from __future__ import annotations

from breaker_actors.clock import STEP_LASTS_S, SteadyClock, doubted_ms
from tests.support.fake_gateway import NOW_MS, FakeClock

HOURS_MS = 7_200_000
STEP_MAX_MS = 5_000


class Machine(FakeClock):
    """Both clocks of a machine; `told`: what was said of steps."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, int]] = []
        self.steady = SteadyClock(self, STEP_MAX_MS, tell=lambda *told: self.told.append(told))

    def passes(self, seconds: float) -> int:
        """Real time goes on; returns what is believed then, after NOW_MS."""
        self.seconds += seconds
        self.ms += round(seconds * 1000)
        return self.steady.now_ms() - NOW_MS


def test_a_step_ahead_that_is_over_soon_was_none() -> None:
    machine = Machine()
    assert machine.passes(1) == 1_000
    machine.ms += HOURS_MS
    assert [machine.passes(1), machine.passes(1)] == [2_000, 3_000]
    assert doubted_ms(machine.steady) == HOURS_MS
    machine.ms -= HOURS_MS
    assert machine.passes(1) == 4_000
    assert doubted_ms(machine.steady) == 0
    assert machine.told == [("clock_step_doubted", HOURS_MS), ("clock_step_over", HOURS_MS)]
    machine.ms += HOURS_MS
    machine.passes(STEP_LASTS_S - 1)
    assert machine.passes(0) == 4_000 + (STEP_LASTS_S - 1) * 1_000, "the next one begins anew"


def test_a_step_ahead_that_lasts_is_believed() -> None:
    machine = Machine()
    machine.ms += HOURS_MS
    assert machine.passes(1) == 1_000
    assert machine.passes(STEP_LASTS_S) == HOURS_MS + 61_000
    assert machine.told == [("clock_step_doubted", HOURS_MS), ("clock_step_believed", HOURS_MS)]
    assert doubted_ms(machine.steady) == 0


def test_a_clock_that_goes_on_stepping_is_not_believed() -> None:
    machine = Machine()
    for n in range(10):
        machine.ms += HOURS_MS
        assert machine.passes(STEP_LASTS_S - 1) == (n + 1) * (STEP_LASTS_S - 1) * 1_000
    assert len(machine.told) == 1


def test_small_steps_and_steps_back_are_believed_at_once() -> None:
    machine = Machine()
    machine.ms += STEP_MAX_MS
    assert machine.passes(0) == STEP_MAX_MS
    machine.ms -= HOURS_MS
    assert machine.passes(1) == STEP_MAX_MS + 1_000 - HOURS_MS
    machine.ms += HOURS_MS
    assert machine.passes(1) == STEP_MAX_MS + 2_000, "the end of a step back, too"
    assert machine.told == []


def test_after_a_step_back_that_lasted_one_ahead_is_a_step() -> None:
    machine = Machine()
    machine.ms -= HOURS_MS
    machine.passes(1)
    machine.passes(STEP_LASTS_S)
    machine.ms += HOURS_MS
    assert machine.passes(1) == 62_000 - HOURS_MS
    assert machine.told == [("clock_step_doubted", HOURS_MS)]


def test_a_machine_that_slept_made_no_step() -> None:
    """What is counted beside the wall clock goes on in its sleep; a clock that counts waking time alone does not."""
    machine = Machine()
    slept: list[float] = [0.0]
    steady = SteadyClock(machine, STEP_MAX_MS, lambda: machine.seconds + slept[0])
    slept[0] += HOURS_MS / 1000
    machine.ms += HOURS_MS
    assert steady.now_ms() == NOW_MS + HOURS_MS
