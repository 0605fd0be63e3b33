"""How fast the Notifier goes: bounds, pauses, the rule of a channel's circuit breaker. Values and arithmetic only.

The rule is one of our own breakers. A third failure in a row opens it; open it waits 2 s, after every failed probe
twice as long, at most a minute. A probe that gets through opens the way for one delivery at a time, until two ticks,
0.1 s apart, have confirmed it. So ten minutes of a dead receiver cost fewer than 20 attempts, where one every 3 seconds
makes 200, and what waits is on its way at most a minute after the receiver is back.
"""

from __future__ import annotations

import random

import msgspec

from breaker_actors.core.model import Rule

FAILURES_MAX = 3
"""Failures in a row that open the circuit of a channel; of a half-open one the first failure does."""
ATTEMPTS_MIN = 3
"""A delivery is never given up for its age after fewer attempts, unless its channel answers nobody."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Deliveries at once (of one channel, in all; beyond `second_slot_max` a channel gets no second; how many an
    organisation may have: `places`), how many of an organisation are begun in one turn at most (what others wait for in
    between goes by it; `begun_beside_max` where another one has some to begin, whose channels get no more than their
    places in a turn, however few they are), and times in ms.

    `poll`: how often the outbox is looked at unasked; `sweep`: how often channels that don't answer are looked through
    for deliveries to give up; `lease_margin`: how long after the time an attempt may take its row stays leased."""

    channel_max: int = 4
    total_max: int = 512
    second_slot_max: int = 256
    begun_max: int = 64
    begun_beside_max: int = 8
    poll_ms: int = 1_000
    sweep_ms: int = 5_000
    lease_margin_ms: int = 2_000
    retry_base_ms: int = 2_000
    retry_cap_ms: int = 60_000
    cooldown_ms: int = 2_000
    cooldown_cap_ms: int = 60_000
    confirm_ms: int = 100

    def rule(self) -> Rule:
        """The circuit breaker of a channel: its samples are its attempts."""
        return Rule(
            metric="delivery",
            kind="consecutive_failures",
            op="gte",
            threshold=FAILURES_MAX,
            window_ms=0,
            eval_interval_ms=self.confirm_ms,
            min_state_duration_ms=0,
            cooldown_ms=self.cooldown_ms,
            half_open_backoff_cap_ms=self.cooldown_cap_ms,
            recovery_allow_rate_ramp_steps=1,
        )

    def retry_ms(self, attempts: int, chance: random.Random) -> int:
        """The pause after so many attempts at one delivery: doubled each time up to a cap, half of it by chance."""
        full = min(self.retry_cap_ms, self.retry_base_ms << min(attempts - 1, 30))
        return round(full * chance.uniform(0.5, 1.0))
