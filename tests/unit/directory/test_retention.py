"""What of the history is too old, when the clock is not what it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import structlog

from breaker_actors.directory import retention
from breaker_actors.directory.retention import DAY_MS, PRUNE_EVERY_S, Retention, _least
from breaker_actors.errors import Unavailable
from breaker_actors.settings import Settings
from breaker_actors.store.rows import ForgottenLinks
from breaker_actors.telemetry.catalog import UPKEEP
from breaker_actors.telemetry.meters import Meters
from tests.support.fake_gateway import NOW_MS, FakeClock

KEPT_DAYS = 90


class Books:
    """A store with nothing in it, that remembers what it was to remove. `history`: up to when its time has come."""

    def __init__(self, history_ms: int | None) -> None:
        self.history = history_ms
        self.before: list[int] = []
        self.ended: list[int] = []
        self.is_pruned = True

    async def history_ms(self) -> int | None:
        return self.history

    async def note_history_ms(self, at_ms: int) -> None:
        self.history = at_ms

    async def prune(self, before_ms: int) -> dict[str, int]:
        self.before.append(before_ms)
        return {"events": 1}

    async def placements(self, kind: str) -> list[Any]:
        return []

    async def forget_ended_links(self, after: str) -> ForgottenLinks:
        return ForgottenLinks()

    async def log_floors(self) -> list[Any]:
        return []

    async def finish_deletions(self, now_ms: int) -> int:
        return 0

    async def prune_ended(self, now_ms: int) -> dict[str, int]:
        self.ended.append(now_ms)
        return {"gone_names": 0}

    shed_deliveries = prune_idempotency_keys = prune_deliveries = finish_deletions


def upkeep(tmp_path: Path, books: Any, clock: FakeClock) -> Retention:
    settings = Settings(data_dir=tmp_path, history_retention_days=KEPT_DAYS)
    return Retention(books, None, None, clock, settings, Meters("directory", "directory"))  # type: ignore[arg-type]


def ages(books: Books) -> list[int]:
    """Up to when history was old in each round, in ms after NOW_MS."""
    return [before + KEPT_DAYS * DAY_MS - NOW_MS for before in books.before]


async def test_a_clock_that_is_ahead_removes_nothing_more(tmp_path: Path) -> None:
    books, clock = Books(NOW_MS), FakeClock()
    keeper = upkeep(tmp_path, books, clock)
    await keeper.round()
    for _ in range(3):
        clock.seconds += PRUNE_EVERY_S
        clock.ms = NOW_MS + 400 * DAY_MS
        await keeper.round()
    step_ms = round(retention.PACE * PRUNE_EVERY_S * 1000)
    assert ages(books) == [0, step_ms, 2 * step_ms, 3 * step_ms]


async def test_nor_does_a_start_with_such_a_clock(tmp_path: Path) -> None:
    """A day at most, however often it starts; the clock is right again, and nothing is put off."""
    books, clock = Books(NOW_MS), FakeClock(NOW_MS + 400 * DAY_MS)
    await upkeep(tmp_path, books, clock).round()
    assert ages(books) == [DAY_MS]
    clock.ms = NOW_MS + DAY_MS // 2
    keeper = upkeep(tmp_path, books, clock)
    await keeper.round()
    clock.seconds += PRUNE_EVERY_S
    await keeper.round()
    assert ages(books)[1:] == [DAY_MS // 2] * 2


async def test_the_next_round_is_in_ten_minutes_of_real_time(tmp_path: Path) -> None:
    """A clock that was set back a year puts it off by nothing."""
    books, clock = Books(None), FakeClock(NOW_MS + 365 * DAY_MS)
    keeper = upkeep(tmp_path, books, clock)
    await keeper.round()
    clock.ms = NOW_MS
    await keeper.round()
    assert len(books.before) == 1
    clock.seconds += PRUNE_EVERY_S
    await keeper.round()
    assert ages(books)[1:] == [0]


async def test_a_round_that_was_cut_short_goes_on_in_the_next(tmp_path: Path) -> None:
    """However little it removed."""
    books = Books(NOW_MS)
    keeper = upkeep(tmp_path, books, FakeClock())
    for books.is_pruned in (False, True, True):
        await keeper.round()
    assert len(books.before) == 2


async def test_deletions_that_fail_keep_nothing_from_going(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come last; what ended goes by the time of history."""

    async def fails(self: Books, now_ms: int) -> int:
        raise Unavailable("not now")

    monkeypatch.setattr(Books, "finish_deletions", fails)
    books, clock = Books(NOW_MS), FakeClock(NOW_MS + 400 * DAY_MS)
    await upkeep(tmp_path, books, clock).round()
    assert (ages(books), books.ended) == ([DAY_MS], [NOW_MS + DAY_MS])


PARTS = {
    "logs": "placements",
    "deliveries_beyond": "shed_deliveries",
    "time": "history_ms",
    "ended_links": "forget_ended_links",
    "history": "prune",
    "answers": "prune_idempotency_keys",
    "deliveries": "prune_deliveries",
    "ended": "prune_ended",
    "deletions": "finish_deletions",
}


@pytest.mark.parametrize("error", [Unavailable("not now"), RuntimeError("a bug")], ids=["put off", "bug"])
@pytest.mark.parametrize("part", UPKEEP)
async def test_a_part_that_fails_keeps_no_other_from_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, error: Exception
) -> None:
    """It is logged and counted once, and has another turn in the next round."""
    had = list[str]()

    def turn(name: str, of: str) -> None:
        real = getattr(Books, of)

        async def takes(self: Books, *args: Any) -> Any:
            had.append(name)
            if name == part and had.count(name) == 1:
                raise error
            return await real(self, *args)

        monkeypatch.setattr(Books, of, takes)

    for name, of in PARTS.items():
        turn(name, of)
    keeper = upkeep(tmp_path, Books(NOW_MS), FakeClock())
    with structlog.testing.capture_logs() as lines:
        await keeper.round()
    needs_time = {"history", "answers", "deliveries", "ended"} if part == "time" else set()
    assert set(had) == set(UPKEEP) - needs_time
    (line,) = [line for line in lines if line["log_level"] in ("warning", "error")]
    assert part in (line.get("part"), line.get("loop", "").removeprefix("upkeep: "))
    counted = {key: n for key, n in keeper._meters.counters.items() if key[0] == "breakers_upkeep_failures_total" and n}
    assert counted == {("breakers_upkeep_failures_total", part): 1}
    await keeper.round()
    assert set(had) == set(UPKEEP)
    assert had.count(part) == 2


async def test_ended_links_are_gone_through_in_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind where the last one was, then from the beginning."""
    asked = list[str]()

    async def forget(self: Books, after: str) -> ForgottenLinks:
        asked.append(after)
        return ForgottenLinks(after=None if after == "ccc" else after + "c")

    monkeypatch.setattr(Books, "forget_ended_links", forget)
    monkeypatch.setattr(retention, "LINK_PAGES", 2)
    books = Books(NOW_MS)
    keeper = upkeep(tmp_path, books, FakeClock())
    for _ in range(3):
        await keeper.round()
    assert asked == ["", "c", "cc", "ccc"]
    assert len(books.before) == 2, "the second round came to the end"


@pytest.mark.parametrize(
    ("floor", "end", "least"), [(None, None, 0), (None, 7, 7), (20, 7, 7), (3, 7, 3), (3, None, 3)]
)
def test_no_log_goes_beyond_what_lay_in_it_before_its_readers_were_asked(
    floor: int | None, end: int | None, least: int
) -> None:
    """Who is linked while they are asked is not among them, maybe."""
    assert _least(floor, end) == least


async def test_the_line_shows_every_number(tmp_path: Path) -> None:
    """Names of its fields are none that are masked."""
    from breaker_actors.text.redaction import mask

    with structlog.testing.capture_logs() as lines:
        await upkeep(tmp_path, Books(NOW_MS), FakeClock()).round()
    (line,) = [line for line in lines if line["event"] == "history_pruned"]
    assert mask(line) == line
    assert line["answers"] == 0
