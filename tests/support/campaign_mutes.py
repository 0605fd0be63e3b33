"""Somebody who mutes: makes, edits and ends mutes under load, and remembers when each of them held for sure. What must
hold of what people heard meanwhile is here as well."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.campaign import Caller, Project
from tests.support.invariants import Evidence

LENGTHS_MS = (700, 2_000, 5_000, 12_000, 25_000)
BREAKERS = 8
"""So many breakers of a project are muted; the others are always heard."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class Mute:
    """One mute as its maker knows it. `sure`: [from, to) in which it was in force whatever became of requests."""

    project_id: str
    prefix: str
    channel_id: str | None
    ends_ms: int
    sure: list[tuple[int, int]] = field(default_factory=list)

    def matches(self, breaker_id: str, channel_id: str) -> bool:
        return breaker_id.startswith(self.prefix) and self.channel_id in (None, channel_id)


class Muter:
    """Makes, edits and ends mutes of some breakers, on one channel or all. `mutes`: by id, those that were answered."""

    def __init__(self, caller: Caller, rng: random.Random) -> None:
        self._caller = caller
        self._rng = rng
        self.mutes: dict[str, Mute] = {}
        self.done: Counter[str] = Counter()

    async def run(self, project: Project, stop: asyncio.Event) -> None:
        while not stop.is_set():
            act = self._rng.choice((self._make, self._make, self._edit, self._end))
            await act(project)
            await asyncio.sleep(self._rng.uniform(0.5, 2.0))

    async def end_all(self, project: Project) -> None:
        """Those too whose making was never answered."""
        answer = await self._caller.ask("GET", f"{project.path}/mutes")
        for mute in answer.json()["mutes"]:
            if mute["state"] != "expired":
                await self._delete(project, mute["id"])

    def _live(self, project: Project) -> list[str]:
        now = now_ms()
        return [id_ for id_, mute in self.mutes.items() if mute.project_id == project.id and mute.ends_ms > now]

    async def _make(self, project: Project) -> None:
        rng = self._rng
        id_, exact = rng.choice(list(project.breakers)[:BREAKERS]), rng.random() < 0.6
        mute = Mute(project.id, id_ if exact else id_[:1], None, now_ms() + rng.choice(LENGTHS_MS))
        value = {"op": "=", "value": id_} if exact else {"op": "glob", "value": f"{id_[:1]}*"}
        matchers = [{"field": "id", **value}]
        if rng.random() < 0.3:
            mute.channel_id = rng.choice(list(project.channels))
            matchers.append({"field": "channel", "op": "=", "value": mute.channel_id})
        body = {"matchers": matchers, "ends_ms": mute.ends_ms, "comment": f"because {rng.getrandbits(64):x}"}
        headers = {"Idempotency-Key": f"{rng.getrandbits(96):x}"}
        answer = await self._caller.ask("POST", f"{project.path}/mutes", json=body, headers=headers)
        if self._took(answer.status_code, "make"):
            self.mutes[answer.json()["mute"]["id"]] = mute
            self._now_sure(mute, mute.ends_ms)

    async def _edit(self, project: Project) -> None:
        if not (live := self._live(project)):
            return
        id_ = self._rng.choice(live)
        mute, ends_ms = self.mutes[id_], now_ms() + self._rng.choice(LENGTHS_MS)
        self._unsure(mute)
        answer = await self._caller.ask("PATCH", f"{project.path}/mutes/{id_}", json={"ends_ms": ends_ms})
        if self._took(answer.status_code, "edit"):
            mute.ends_ms = ends_ms
            self._now_sure(mute, ends_ms)

    async def _end(self, project: Project) -> None:
        if live := self._live(project):
            await self._delete(project, self._rng.choice(live))

    async def _delete(self, project: Project, id_: str) -> None:
        if (mute := self.mutes.get(id_)) is not None:
            self._unsure(mute)
            mute.ends_ms = 0
        answer = await self._caller.ask("DELETE", f"{project.path}/mutes/{id_}")
        self._took(answer.status_code, "end")

    def _took(self, status: int, what: str) -> bool:
        """One that came too late, after its own end, is refused."""
        assert status < 400 or status == 422, (what, status)
        self.done[what if status < 400 else f"{what} too late"] += 1
        return status < 400

    @staticmethod
    def _unsure(mute: Mute) -> None:
        """Something about it is asked for: from now on nobody knows."""
        if mute.sure and mute.sure[-1][1] > now_ms():
            mute.sure[-1] = (mute.sure[-1][0], now_ms())

    @staticmethod
    def _now_sure(mute: Mute, until_ms: int) -> None:
        if until_ms > now_ms():
            mute.sure.append((now_ms(), until_ms))


def assert_muted_rightly(
    evidence: Evidence, project: Project, mutes: Iterable[Mute], arrived: Mapping[str, list[int]], ended: int
) -> int:
    """What people heard of a project (delivery -> when it came, in ms) was not muted, and what they did not hear was;
    answers how many deliveries were suppressed. `ended`: deliveries up to that number were no longer to be sent.

    Not a time: a delivery has that of its move, and is stored a moment later."""
    rows = evidence.rows(
        "SELECT o.id, o.channel_id, o.breaker_id, o.kind, o.state, o.incident, o.created_ms, o.mute_id, m.id, o.number"
        " FROM outbox o LEFT JOIN mutes m ON m.id = o.mute_id AND m.project_id = o.project_id"
        " WHERE o.project_id = ? ORDER BY o.number",
        project.id,
    )
    mine = [mute for mute in mutes if mute.project_id == project.id]
    suppressed, states = 0, Counter[tuple[Any, ...]]()
    newest: dict[tuple[str, int], str] = {}
    for id_, channel_id, breaker_id, kind, state, incident, at_ms, mute_id, known, number in rows:
        who = f"delivery {id_} ({kind}, {state})"
        assert state != "held", f"{who} is held, and nothing is muted"
        assert (id_ in arrived) <= (state == "sent" or number > ended), f"{who} came"
        states[channel_id, incident, kind, state] += 1
        assert number > ended or state not in ("pending", "held"), f"{who} was to be sent before, and still is"
        if kind == "trip" and number <= ended:
            newest[channel_id, incident] = state
        if state == "suppressed":
            suppressed += 1
            assert known, f"{who} names no mute: {mute_id}"
        if kind == "trip" and id_ in arrived:
            first = min(arrived[id_])
            muted = [m for m in mine if m.matches(breaker_id, channel_id)]
            over = [(a, b) for m in muted for a, b in m.sure if a < at_ms and first < b]
            assert not over, f"{who} of {at_ms} came at {first}, muted {over}"
    for (channel_id, incident, kind, state), count in states.items():
        if incident is None or kind not in ("recover", "resolve"):
            continue
        told = states[channel_id, incident, "trip", "sent"]
        assert (state == "sent") <= bool(told), (
            f"channel {channel_id}: the end of outage {incident} that nobody heard of"
        )
        assert (state == "suppressed") <= (not told), f"channel {channel_id}: outage {incident} was told, its end not"
        assert count == 1, f"channel {channel_id}: {count} ends of outage {incident}"
    for channel_id, incident in _standing(evidence, project, newest):
        state = newest[channel_id, incident]
        assert state == "sent", f"channel {channel_id}: outage {incident} stands, its newest trip is {state}"
    return suppressed


def _standing(evidence: Evidence, project: Project, known: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """The (channel, outage) of breakers that are not closed now."""
    begun = dict(
        evidence.rows(
            "SELECT max(e.sequence), e.breaker_id FROM events e JOIN records r ON r.breaker_id = e.breaker_id"
            " WHERE e.project_id = ? AND e.prev = 'closed' AND e.hidden_by IS NULL AND r.state != 'closed'"
            " GROUP BY e.breaker_id",
            project.id,
        )
    )
    return [(channel_id, incident) for channel_id, incident in known if incident in begun]
