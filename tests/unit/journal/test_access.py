"""What replicas are told of changes of who may do what: of sessions that ended no more than that."""

from __future__ import annotations

import pytest

from breaker_actors.journal.host import JournalHost
from breaker_actors.messages import EVERY_PROJECT, SESSIONS
from breaker_actors.settings import Settings
from breaker_actors.store.rows import AccessVersion
from tests.support.fake_gateway import FakeClock
from tests.unit.journal.test_groups import SlowStore


@pytest.mark.parametrize(
    ("found", "told"),
    [(AccessVersion(1, 4), SESSIONS), (AccessVersion(2, 3), EVERY_PROJECT), (AccessVersion(2, 4), EVERY_PROJECT)],
)
async def test_ended_sessions_have_nothing_else_forgotten(found: AccessVersion, told: str) -> None:
    store = SlowStore()
    store.access = AccessVersion(1, 3)
    journal = JournalHost(0, store, FakeClock(), Settings())  # type: ignore[arg-type]
    await journal.start()
    store.access = found
    page = await journal.poll(1, 0, 5.0)
    assert [(entry.kind, entry.project_id) for entry in page.entries] == [("keys", told)]
    await journal.stop()
