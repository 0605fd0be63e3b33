"""Who lays hand on breakers in a run: sets overrides, replaces and lifts them, lets breakers observe and enforce; and
who mutes what people hear of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from breaker_actors.core.model import OverrideKind
from breaker_actors.store.rows import BreakerRow
from tests.sim.clients import configure, pause
from tests.sim.process import Process

if TYPE_CHECKING:
    from tests.sim.world import World

WHO = ("ann", "bob")
WHY = ("the provider is down", "migration", 'half of it is \u00fc\u4e0d "broken"', "r" * 500)
LENGTHS_MS = ((1, 30), (30, 400), (400, 3_000), (400, 3_000), (2_000, 12_000), (2_000, 12_000), (12_000, 80_000))
"""From those that are over before they come to the log, or shorter than an outage, to those past the end."""


class OperatorClient:
    """In some runs busy, in some hardly there, and in some not at all."""

    def __init__(self, world: World, client: Process) -> None:
        self._world = world
        self._client = client
        self._draws = world.faults.stream("operator")
        self._set = 0

    async def run(self, until_s: float) -> None:
        pause_s = self._draws.choice([0.7, 2.0, 5.0, 1_000.0])
        while self._world.loop.time() < until_s:
            await pause(self._draws.expovariate(1 / pause_s), until_s)
            rows = self._world.breaker_rows()
            if rows and self._world.loop.time() < until_s:
                await self._act(rows)

    async def _act(self, rows: list[BreakerRow]) -> None:
        now = self._world.now_ms()
        under = [row for row in rows if (o := row.controls.override) is not None and now < o.until_ms]
        watched = [row for row in rows if row.controls.mode == "observe"]
        chances = {"override": 4, "replace": 2 if under else 0, "lift": 3 if under else 0, "lift_any": 1}
        chances |= {"observe": 1, "enforce": 3 if watched else 0}
        what = self._draws.choices(list(chances), list(chances.values()))[0]
        if what in ("override", "replace"):
            await self._override(self._draws.choice(under if what == "replace" else rows))
        elif what in ("lift", "lift_any"):
            why = self._draws.choice([None, *WHY])
            await self._send("lift", self._draws.choice(under if what == "lift" else rows), reason=why)
        else:
            await self._send("watch", self._draws.choice(watched if what == "enforce" else rows), mode=what)

    async def _override(self, row: BreakerRow) -> None:
        draws, kind = self._draws, self._draws.choice(get_args(OverrideKind))
        self._set += 1
        fields = {
            "kind": kind,
            "reason": f"{draws.choice(WHY)} {self._set}",
            "allow_rate": draws.choice([0.0, 0.25, 0.5, 1.0]) if kind == "throttle" else None,
            "then": draws.choice([None, "half_open"]),
        }
        await self._send("override", row, for_ms=draws.randint(*draws.choice(LENGTHS_MS)), fields=fields)

    async def _send(self, change: str, row: BreakerRow, **more: Any) -> None:
        fields = {"breaker_id": row.id, "by": self._draws.choice(WHO), **more}
        await configure(self._world, self._client, self._draws, change, fields)


MUTED_MS = ((1, 100), (300, 2_000), (1_000, 5_000), (3_000, 9_000))


class MutingClient:
    """Makes mutes, puts their end off or forward, ends some; of most of them it hears nothing any more."""

    def __init__(self, world: World, client: Process) -> None:
        self._world = world
        self._client = client
        self._draws = world.faults.stream("mutes")

    async def run(self, until_s: float) -> None:
        pause_s = self._draws.choice([0.8, 2.0, 2.0, 5.0, 1_000.0])
        while self._world.loop.time() < until_s:
            await pause(self._draws.expovariate(1 / pause_s), until_s)
            rows = self._world.breaker_rows()
            if rows and self._world.loop.time() < until_s:
                await self._act(rows)

    async def _act(self, rows: list[BreakerRow]) -> None:
        draws, now = self._draws, self._world.now_ms()
        live = [row for row in self._world.mute_rows() if row.state(now) != "expired"]
        ends_ms = now + draws.randint(*draws.choice(MUTED_MS))
        what = draws.choices(["mute", "remute", "unmute"], [4, 2 if live else 0, 2 if live else 0])[0]
        if what == "mute":
            fields = {"matchers": self._matchers(draws.choice(rows)), "ends_ms": ends_ms, "by": draws.choice(WHO)}
        elif what == "remute":
            fields = {"mute_id": draws.choice(live).id, "ends_ms": ends_ms}
        else:
            fields = {"mute_id": draws.choice(live).id}
        await configure(self._world, self._client, draws, what, fields)

    def _matchers(self, row: BreakerRow) -> list[tuple[str, str, str]]:
        draws = self._draws
        found = draws.choice(
            [[], [("id", "=", row.id)], [("name", "=", row.name or "")], [("id", "glob", f"{row.id[:1]}*")]]
        )
        if draws.random() < 0.25:
            found.append(("channel", "=", draws.choice(self._world.channel_ids())))
        return found
