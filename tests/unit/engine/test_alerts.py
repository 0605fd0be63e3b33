"""From a sample to whoever has to be told, in one process: nudged, in order, none missing and none twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from breaker_actors.errors import Unavailable
from breaker_actors.notify.limits import Pace
from breaker_actors.store.rows import BreakerRow, ChannelDraft, ChannelRow, DeliveryQuery, DeliveryRow
from breaker_actors.transport.peers import NOTIFIER, journal_name
from tests.support.cluster import Service, service, until
from tests.support.notifying import ScriptedSender

QUICK = {"cooldown_ms": 30, "eval_interval_ms": 20, "recovery_allow_rate_ramp_steps": 1, "window_ms": 100}
UNASKED = Pace(poll_ms=3_600_000)
"""Looks at the outbox when it is nudged, and never by itself."""


async def channel(s: Service) -> ChannelRow:
    draft = ChannelDraft(channel="webhook", config={"url": "http://hook.example/"})
    return await s.store.create_channel(s.project.id, draft, s.clock.now_ms())


async def flap(s: Service, row: BreakerRow) -> None:
    """An outage: open, half open, closed again; the samples of the good times are sent until it is over."""
    router_id = row.router_ids[0]
    await s.send(router_id, [900.0] * 3)
    await s.in_state(row.id, "half_open", 30)

    async def closed() -> bool:
        await s.send(router_id, [1.0])
        return (await s.state(row.id)).view.state == "closed"

    await until(closed, 30)


async def rows_of(s: Service, channel_id: str) -> list[DeliveryRow]:
    query = DeliveryQuery(project_id=s.project.id, channel_id=channel_id, limit=1000)
    return (await s.store.deliveries(query))[::-1]


async def all_sent(s: Service, channel_id: str) -> list[DeliveryRow]:
    async def ended() -> list[DeliveryRow] | None:
        rows = await rows_of(s, channel_id)
        return rows if rows and all(row.state == "sent" for row in rows) else None

    found: list[DeliveryRow] = await until(ended, 30)
    return found


async def told_events(s: Service, breaker_id: str) -> list[tuple[str, int]]:
    """What the breaker's events have to be told as."""
    kinds = {"open": "trip", "closed": "recover"}
    return [(kinds[e.curr], e.transition_seq) for e in await s.events(breaker_id) if e.curr in kinds]


async def test_a_commit_wakes_the_notifier(tmp_path: Path) -> None:
    """It never looks by itself here."""
    async with service(tmp_path, breaker_actors=1) as s:
        sender = ScriptedSender(s.clock)
        told, row = await channel(s), await s.breaker(**QUICK)
        await s.cluster.start_notifier(sender, UNASKED)
        await flap(s, row)
        await all_sent(s, told.id)
        assert [m.kind for m in sender.got(told.id)][-1] == "recover"
        assert [(m.kind, m.transition_seq) for m in sender.got(told.id)] == await told_events(s, row.id)


async def test_killed_journals_and_lost_answers_make_no_row_twice_and_lose_none(tmp_path: Path) -> None:
    async with service(tmp_path, breaker_actors=1) as s:
        sender, told = ScriptedSender(s.clock), await channel(s)
        rows = [await s.breaker(**QUICK) for _ in range(3)]
        await s.cluster.start_notifier(sender)
        real, calls = s.store.commit, [0]

        async def commit(*args: Any) -> Any:
            """Every third commit is done and says that it is not known to be."""
            calls[0] += 1
            answer = await real(*args)
            if calls[0] % 3 == 0:
                raise Unavailable("the answer got lost")
            return answer

        s.store.commit = commit  # type: ignore[method-assign]
        flapping = asyncio.gather(*(flap(s, row) for row in rows for _ in range(1)))
        while not flapping.done():
            await asyncio.sleep(0.1)
            await s.net.kill(journal_name(0))
            await s.cluster.start_journal()
        await flapping
        s.store.commit = real  # type: ignore[method-assign]
        for row in rows:
            await flap(s, row)
        stored = await all_sent(s, told.id)
        for row in rows:
            expected = await told_events(s, row.id)
            assert [(one.kind, one.transition_seq) for one in stored if one.breaker_id == row.id] == expected
            heard = [(m.kind, m.transition_seq) for m in sender.got(told.id) if m.breaker_id == row.id]
            assert heard == expected
            assert expected[-1][0] == "recover"


async def test_a_killed_notifier_is_not_missed(tmp_path: Path) -> None:
    """Alerts of the time without one are sent by its successor; nothing comes twice that was noted as sent."""
    async with service(tmp_path, breaker_actors=1, notify_timeout_ms=200) as s:
        sender, told, row = ScriptedSender(s.clock), await channel(s), await s.breaker(**QUICK)
        await s.cluster.start_notifier(sender)
        await flap(s, row)
        await all_sent(s, told.id)
        await s.net.kill(NOTIFIER)
        await flap(s, row)
        await s.cluster.start_notifier(sender)
        await flap(s, row)
        await all_sent(s, told.id)
        assert [(m.kind, m.transition_seq) for m in sender.got(told.id)] == await told_events(s, row.id)
