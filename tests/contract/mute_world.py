"""Builders of the mutes' contract tests: an outbox with mutes, and a Notifier that looks after what they hold."""

from __future__ import annotations

from collections import Counter
from typing import Any

from breaker_actors.store.mutes.matching import Matcher
from breaker_actors.store.rows import MuteDraft, MuteRow
from tests.contract.outbox_world import OutboxWorld

HOUR = 3_600_000
AHEAD_MS = 600_000
NAMED_A = Matcher(field="name", op="=", value="a")


class MuteWorld(OutboxWorld):
    """Events happen at 1000, 2000, ... per breaker, so a mute from 0 on is active unless a test says otherwise.
    `warned`: channels that the last looks had warned."""

    warned: tuple[str, ...] = ()

    async def mute(self, *matchers: Matcher, now_ms: int = 0, **fields: Any) -> MuteRow:
        values: dict[str, Any] = {"starts_ms": 0, "ends_ms": HOUR, "comment": "deploy", "all": not matchers}
        draft = MuteDraft(matchers=matchers, **(values | fields))
        return await self.store.create_mute(self.world.project_id, draft, now_ms, by="k1", by_name="ann")

    async def end(self, mute: MuteRow, now_ms: int = 10_000) -> None:
        await self.store.end_mute(self.world.project_id, mute.id, now_ms)

    async def look(self, now_ms: int = 10_000) -> Counter[str]:
        """All looks that the Notifier takes at a time; how many deliveries left, by state."""
        await self.store.tend_mutes(self.epoch, now_ms, AHEAD_MS)
        states: Counter[str] = Counter()
        behind: dict[str, Counter[str]] = {}
        after: int | None = 0
        while after is not None:
            looked = await self.store.look_at_held(self.epoch, now_ms, after, None, AHEAD_MS)
            states += Counter(looked.states)
            for (_, mute_id, channel_id), n in looked.behind.items():
                behind.setdefault(mute_id, Counter())[channel_id] += n
            after = looked.last
        self.warned = await self.store.warn_of_ends(self.epoch, now_ms, AHEAD_MS, behind)
        return states

    async def mutes_of(self, channel_id: str) -> list[str | None]:
        """Of alerts, not of warnings."""
        return [row.mute_id for row in await self.rows(channel_id) if row.kind != "mute_ending"]
