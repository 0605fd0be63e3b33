"""What a breaker reads of a router that it has left, where that one's log was recovered."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from breaker_actors.breaker.hosted import HostedBreaker, forget_left
from breaker_actors.breaker.recovery import Recovery
from breaker_actors.breaker.slices import Slices
from breaker_actors.core.log_entries import (
    BREAKER,
    DAMAGED,
    VIEW,
    BreakerSet,
    Link,
    Lost,
    RouterView,
    encode_entry,
)
from breaker_actors.core.rules import parse_rule
from breaker_actors.messages import BreakerAssignment, RouterRef
from breaker_actors.telemetry.set_aside import Asides
from breaker_actors.wal.base import Append
from breaker_actors.wal.sqlite import SqliteLog

SLOT, AT_MS = "slot-0", 5_000
RULE = parse_rule({"metric": "load", "kind": "avg", "op": "gt", "threshold": 100})
CREATED, WITH, WITHOUT, AGAIN = range(1, 5)
"""Offsets: the creation, a view with the breaker, one without it, and the creation as a recovery tells it again."""


async def read(directory: Path, lost: int) -> HostedBreaker:
    """The breaker, which has read the log that lacks one record."""

    def born(again: bool) -> tuple[int, bytes, int]:
        settings = BreakerSet(breaker_id="b", version=1, name="b", rule=RULE, created=True, again=again)
        return BREAKER, encode_entry(settings), WITH if again else 0

    views = (RouterView(version=1, links=(Link("b", "load"),)), RouterView(version=2), RouterView(version=2))
    before, after, last = map(encode_entry, views)
    records = [born(False), (VIEW, before, 0), (VIEW, after, WITH), born(True), (VIEW, last, WITHOUT)]
    stand_in = DAMAGED, encode_entry(Lost(from_ms=AT_MS, to_ms=AT_MS, first=lost)), records[lost - 1][2]
    records[lost - 1] = stand_in
    rows = [Append("r", 1, n, AT_MS + n, kind, view, body) for n, (kind, body, view) in enumerate(records, start=1)]
    log = SqliteLog(directory)
    await log.acquire(SLOT, "o", [("r", 1)], 0, 0)
    assert all(await log.append(SLOT, rows))
    held = HostedBreaker(
        BreakerAssignment(
            breaker_id="b",
            project_id="p",
            shard=0,
            epoch=1,
            name="b",
            routers=(RouterRef("r", "o", SLOT, 0, WITHOUT),),
            applied_offsets={"r": 0},
        )
    )
    async for hosted, item in Recovery(log, cast(Any, None), Asides(), Slices()).read_all([held]):
        hosted.apply(item, 1_000)
    await log.close()
    return held


@pytest.mark.parametrize("lost", [CREATED, WITH, WITHOUT])
async def test_a_breaker_lives_and_has_left_whichever_record_was_lost(tmp_path: Path, lost: int) -> None:
    """Where its creation was, it reads on behind the view that ended the link, up to what tells of it again."""
    held = await read(tmp_path, lost)
    assert held.breaker is not None
    assert held.breaker.record().created_ms == AT_MS + (AGAIN if lost == CREATED else CREATED)
    assert (list(held.routers), list(held.ended_links)) == ([], ["r"])


@pytest.mark.parametrize(
    ("link", "is_kept"),
    [(RouterRef("r", "", "", 0, AGAIN), False), (RouterRef("r", "", "", 0, WITHOUT), True)],
    ids=["as stored", "read further since"],
)
async def test_a_router_goes_out_of_the_cut_unless_it_was_read_further(
    tmp_path: Path, link: RouterRef, is_kept: bool
) -> None:
    held = await read(tmp_path, WITH)
    held.applied_offsets["r"] = AGAIN
    held.dirty = False
    forget_left(held, link)
    assert ("r" in held.applied_offsets, "r" in held.ended_links, held.dirty) == (is_kept, is_kept, not is_kept)


async def test_nor_while_the_link_has_begun_anew(tmp_path: Path) -> None:
    held = await read(tmp_path, WITH)
    held.routers["r"] = RouterRef("r", "o", SLOT, AGAIN)
    forget_left(held, RouterRef("r", "", "", 0, held.applied_offsets["r"]))
    assert "r" in held.applied_offsets
