"""What people hear in a run: a receiver of notifications, and what must hold of every mute and of what it holds back.

Looks into the store itself after each operation that matters: nothing happens between that and the look.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from breaker_actors.notify.model import Attempt, Destination, Message
from breaker_actors.store.outbox.claims import GONE, NOT_TOLD
from breaker_actors.store.rows import Leased
from tests.sim.checks import Violation
from tests.sim.process import Process

if TYPE_CHECKING:
    from tests.sim.world import World

TOLD = ("pending", "sent")
_ROW = "o.number, o.id, o.channel_id, o.breaker_id, o.kind, o.state, o.incident, o.created_ms, o.mute_id, b.name"
_ROWS = f"SELECT {_ROW} FROM outbox o LEFT JOIN breakers b ON b.id = o.breaker_id"
TOLERANCE_MS = 50


class Row(msgspec.Struct, frozen=True):
    """A delivery of the store. `name`: that of its breaker; None: it is gone."""

    number: int
    id: str
    channel_id: str
    breaker_id: str
    kind: str
    state: str
    incident: int | None
    created_ms: int
    mute_id: str | None
    name: str | None

    def __str__(self) -> str:
        return f"{self.kind} {self.number} of breaker {self.breaker_id} at {self.created_ms} ({self.state})"


class Mute(msgspec.Struct, frozen=True):
    """A mute of the store, without windows."""

    id: str
    matchers: list[dict[str, str]]
    starts_ms: int
    ends_ms: int

    def matches(self, row: Row) -> bool:
        values = {"id": row.breaker_id, "name": row.name, "channel": row.channel_id}
        return all(self._holds(values[one["field"]] or "", one) for one in self.matchers)

    @staticmethod
    def _holds(value: str, matcher: dict[str, str]) -> bool:
        return fnmatchcase(value, matcher["value"]) if matcher["op"] == "glob" else value == matcher["value"]


class Receiver:
    """Takes what a Notifier sends; while there is trouble it is slow, fails, or takes something without an answer."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self._draws = world.faults.stream(f"receiver of {process.label}")

    async def send(self, to: Destination, message: Message) -> Attempt:
        draws, active = self._draws, self._world.faults.active
        luck = draws.random() if active else 1.0
        await asyncio.sleep(draws.uniform(0.005, 2.0 if luck < 0.1 else 0.05))
        if luck > 0.05:
            self._world.check(self._world.mutes.arrived, message.delivery_id)
            self._hear(to, [message], self._process.believed.now_ms())
        return Attempt(result="sent", status=200) if luck > 0.08 else Attempt(result="retry", error="no answer")

    async def renew(self, to: Destination, trips: Sequence[Message], now_ms: int) -> Attempt:
        luck = self._draws.random() if self._world.faults.active else 1.0
        await asyncio.sleep(self._draws.uniform(0.005, 2.0 if luck < 0.1 else 0.05))
        if luck > 0.05:
            self._world.reach("an alert is renewed")
            self._hear(to, trips, now_ms)
        return Attempt(result="sent", status=200) if luck > 0.08 else Attempt(result="retry", error="no answer")

    def _hear(self, to: Destination, messages: Sequence[Message], now_ms: int) -> None:
        if to.kind == "alertmanager":
            self._world.judge(self._world.far.hear(to, messages, now_ms, self._process.label))

    async def close(self) -> None:
        pass


class MuteChecks:
    """Hears of every operation that has to do with deliveries. Checks answer what is wrong, in words; "": nothing.
    `skew_ms`: by how much a believed clock may be apart from the true time."""

    def __init__(self, store: Path, reach: Callable[[str], None], skew_ms: int) -> None:
        self._store = sqlite3.connect(store, isolation_level=None)
        self._reach = reach
        self._apart_ms = skew_ms + TOLERANCE_MS
        self._seen = 0
        self._held: dict[str, Row] = {}
        self._arrived: set[str] = set()

    def close(self) -> None:
        self._store.close()

    def _rows(self, where: str, *values: Any) -> list[Row]:
        return [Row(*row) for row in self._store.execute(f"{_ROWS} WHERE {where} ORDER BY o.number", values)]

    def _mutes(self, row: Row, where: str = "ended_ms IS NULL") -> list[Mute]:
        found = self._store.execute(f"SELECT id, matchers, starts_ms, ends_ms FROM mutes WHERE {where}")
        mutes = [Mute(id_, msgspec.json.decode(matchers), *times) for id_, matchers, *times in found]
        return [mute for mute in mutes if mute.matches(row)]

    def _active(self, row: Row, at_ms: int) -> list[Mute]:
        return [mute for mute in self._mutes(row) if mute.starts_ms <= at_ms < mute.ends_ms]

    def waiting(self) -> tuple[int, int]:
        """How many deliveries wait, and how many are held."""
        query = "SELECT count(*) FILTER (WHERE state = 'pending'), count(*) FILTER (WHERE state = 'held') FROM outbox"
        waiting, held = self._store.execute(query).fetchone()
        return waiting, held

    # operations

    def written(self) -> str:
        """After new deliveries may have been written: each was judged by the mutes that there are."""
        new = self._rows("o.number > ?", self._seen)
        if not new:
            return ""
        self._seen = new[-1].number
        wrong = next((words for row in new if (words := self._born(row))), "")
        self._held = {row.id: row for row in self._rows("o.state = 'held'")}
        lines = {(row.channel_id, row.breaker_id) for row in self._held.values()}
        if not wrong and len(lines) < len(self._held):
            wrong = f"more than one is held for a breaker and channel: {', '.join(map(str, self._held.values()))}"
        return wrong

    def _born(self, row: Row) -> str:
        if row.kind == "trip":
            active = self._active(row, row.created_ms)
            if row.state in ("held", "suppressed"):
                self._reach(f"a trip is {row.state}")
                last_ms = max((mute.ends_ms for mute in active), default=0)
                if not any(mute.id == row.mute_id and mute.ends_ms == last_ms for mute in active):
                    return f"{row} is behind mute {row.mute_id}, active are {active}"
            elif active:
                return f"{row} is not held, muted by {active}"
        elif row.kind == "recover" and row.incident is not None:
            trips = self._trips(row)
            if trips & set(TOLD):
                if row.state != "pending":
                    return f"{row} ends an outage that was told"
                if self._active(row, row.created_ms):
                    self._reach("a recover of a told trip goes out inside a mute")
            elif "held" in trips:
                return f"{row} leaves its trip held"
            elif "suppressed" in trips and (row.state != "suppressed" or row.mute_id is None):
                return f"{row} ends an outage that was muted"
        return ""

    def _trips(self, row: Row) -> set[str]:
        query = "SELECT state FROM outbox WHERE channel_id = ? AND incident = ? AND kind = 'trip'"
        return {state for (state,) in self._store.execute(query, (row.channel_id, row.incident))}

    def looked(self, now_ms: int, true_ms: int) -> str:
        """After the Notifier has looked at what is held, at a time by its clock: it left where nothing mutes it."""
        before, self._held = self._held, {row.id: row for row in self._rows("o.state = 'held'")}
        for id_ in before.keys() - self._held.keys():
            (row,) = self._rows("o.id = ?", id_)
            self._reach("a held trip is released" if row.state == "pending" else f"a held trip is {row.state}")
            if row.state == "suppressed":
                continue
            if active := self._active(row, now_ms):
                return f"{row} is released at {now_ms}, muted by {active}"
            known = self._mutes(row, "ended_ms IS NULL OR ended_reason = 'expired'")
            early = [m for m in known if m.starts_ms <= now_ms and m.ends_ms > true_ms + self._apart_ms]
            if early:
                return f"{row} is released at {now_ms} by a clock that is ahead of {true_ms}, muted by {early}"
        return ""

    def tended(self, true_ms: int) -> str:
        """After mutes were ended: none before its time."""
        query = "SELECT id, ends_ms FROM mutes WHERE ended_reason = 'expired' AND ends_ms > ?"
        if early := self._store.execute(query, (true_ms + self._apart_ms,)).fetchall():
            return f"mutes were ended by a clock that is ahead of {true_ms}: {early}"
        return ""

    def claimed(self, leased: Iterable[Leased]) -> str:
        for row in (row for one in leased for row in one.rows):
            if row.id in self._held:
                return f"{self._held[row.id]} is held, and was taken to be sent"
        return ""

    def arrived(self, delivery_id: str) -> None:
        """A receiver has got something. Raises Violation."""
        found = self._rows("o.id = ?", delivery_id)
        if not found:
            raise Violation(f"delivery {delivery_id} was sent, which is in no outbox")
        row = found[0]
        if row.state not in TOLD:
            raise Violation(f"{row} was sent")
        if row.kind in ("recover", "resolve") and row.incident is not None and "sent" not in self._trips(row):
            raise Violation(f"{row} was sent, and no trip of its outage: {self._trips(row)}")
        self._arrived.add(delivery_id)

    # the end

    def at_rest(self, was_ahead: bool, now_ms: int) -> str:
        """Everything was told, or kept back by a mute, or cancelled by a rule that is written. `was_ahead`: a Notifier
        was hours ahead, for which a delivery may have been too old. A breaker that flaps may have tripped behind a mute
        that goes on: that trip waits for its end."""
        mutes = {id_ for (id_,) in self._store.execute("SELECT id FROM mutes")}
        errors = dict(self._store.execute("SELECT id, last_error FROM outbox WHERE state = 'cancelled'"))
        for row in self._rows("1"):
            if row.state == "sent":
                fine = row.id in self._arrived
            elif row.state == "suppressed":
                fine = row.mute_id in mutes and (row.kind == "trip" or "sent" not in self._trips(row))
            elif row.state == "dead":
                fine = was_ahead
            elif row.state == "held":
                fine = bool(self._active(row, now_ms))
            else:
                fine = row.state == "cancelled" and errors[row.id] in (GONE, *NOT_TOLD.values())
            if not fine:
                return f"{row} is at rest, behind mute {row.mute_id}"
        return self._standing(now_ms)

    def _standing(self, now_ms: int) -> str:
        """Of what is open now everybody has heard."""
        begun = self._store.execute(
            "SELECT max(e.sequence) FROM events e JOIN records r ON r.breaker_id = e.breaker_id"
            " WHERE e.prev = 'closed' AND e.hidden_by IS NULL AND r.state != 'closed' GROUP BY e.breaker_id"
        )
        for (incident,) in begun.fetchall():
            newest: dict[str, Row] = {}
            for row in self._rows("o.kind = 'trip' AND o.incident = ?", incident):
                newest[row.channel_id] = row
            for row in newest.values():
                if row.state != "sent" and not (row.state == "held" and self._active(row, now_ms)):
                    return f"{row} is the newest of an outage that stands"
        return ""
