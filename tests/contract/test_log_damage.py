"""What disks, copies and restored files do to a sample log is found: while reading, or at the next acquisition."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from breaker_actors.core.log_entries import DAMAGED, SAMPLES, VIEW, RouterView, decode_lost, encode_entry
from breaker_actors.errors import LogDamaged
from breaker_actors.messages import LogRead
from breaker_actors.wal.base import Append, SampleLog
from breaker_actors.wal.sqlite_file import file_name
from tests.contract.backends import Backend
from tests.contract.test_samplelog import SLOT, acquire, offsets, rec

LAST = 10
VIEW_AT = 2


def plant(backend: Backend, *statements: str) -> None:
    """Changes what lies in the log behind its back. {records} and {heads} stand for its tables."""
    if backend.database:
        with psycopg.connect(backend.database) as connection:
            for statement in statements:
                connection.execute(statement.format(records="log_records", heads="log_heads"))
        return
    path = backend.folder / "log" / file_name(SLOT)
    with sqlite3.connect(path) as file:
        for statement in statements:
            file.execute(statement.format(records="records", heads="heads"))
    file.close()


def at(offset: int) -> str:
    return f"WHERE router_id = 'a' AND \"offset\" = {offset}"


def blob(backend: Backend, text: str) -> str:
    return f"'\\x{text.encode().hex()}'" if backend.database else f"x'{text.encode().hex()}'"


async def written(log: SampleLog, epoch: int = 1) -> None:
    """Ten records of router a, the second one a view; five of router b."""
    await log.acquire(SLOT, "o1", [("a", epoch), ("b", epoch)], 0, 0)
    view = encode_entry(RouterView(version=1))
    records: list[Append] = [rec(n, view_offset=VIEW_AT if n > VIEW_AT else 0) for n in range(1, LAST + 1)]
    records[VIEW_AT - 1] = rec(VIEW_AT, kind=VIEW, payload=view)
    assert all(await log.append(SLOT, [*records, *(rec(n, "b") for n in range(1, 6))]))


async def damage(log: SampleLog) -> str:
    """What the next owner is told of router a; of b it is told nothing."""
    a, b = await log.acquire(SLOT, "o2", [("a", 2), ("b", 2)], 0, 0)
    assert b.damage == ""
    return a.damage


async def test_what_is_as_it_was_written_is_read(log: SampleLog, make_log: Callable[[], SampleLog]) -> None:
    """In parts of every length, from every place, after a restart and behind a trim."""
    await written(log)
    other = make_log()
    for trimmed in (0, 5, LAST + 1):
        await log.trim(SLOT, "a", trimmed)
        kept = [n for n in range(1, LAST + 1) if n >= trimmed or n == VIEW_AT]
        for after in range(LAST + 1):
            for limit in (1, 3, 256):
                wanted = [n for n in kept if n > after][:limit]
                assert await offsets(other, after=after, limit=limit) == wanted
        assert await damage(other) == ""


async def test_a_damaged_log_is_told_among_those_that_are_read_with_it(log: SampleLog, backend: Backend) -> None:
    await written(log)
    plant(backend, f"DELETE FROM {{records}} {at(5)}")
    before, damaged, other = await log.read_some(SLOT, [("a", 0, 4), ("a", 0, 9), ("b", 0, 9)], 9)
    assert [len(read) for read in (before, other) if isinstance(read, list)] == [4, 5]
    assert isinstance(damaged, LogDamaged)
    assert damaged.details == {"router_id": "a", "offset": 5}


CHANGED = {
    "a bit of a payload": "UPDATE {records} SET payload = BLOB ",
    "a stamp": "UPDATE {records} SET received_ms = received_ms + 1 ",
    "a kind": "UPDATE {records} SET kind = 3 ",
    "the view it was split by": "UPDATE {records} SET view_offset = 1 ",
    "its own checksum": "UPDATE {records} SET checksum = checksum # 1 ",
    "the one before's": "UPDATE {records} SET before = before # 1 ",
    "no checksum": "UPDATE {records} SET checksum = NULL ",
    "gone": "DELETE FROM {records} ",
}


@pytest.mark.parametrize("what", CHANGED)
@pytest.mark.parametrize("offset", [1, 5, LAST - 1])
async def test_a_record_that_changed_is_found(log: SampleLog, backend: Backend, what: str, offset: int) -> None:
    """By whoever reads it, whole or in parts; what lies before it is read, and so is the other router's log."""
    await written(log)
    statement = CHANGED[what].replace("BLOB", blob(backend, f"a{offset ^ 1}"))
    plant(backend, statement.replace(" # 1", " + 1") + at(offset))
    for after in range(offset):
        with pytest.raises(LogDamaged) as found:
            await offsets(log, after=after)
        assert found.value.details == {"router_id": "a", "offset": offset}
        assert str(offset) in str(found.value)
    assert await offsets(log, upto=offset - 1) == list(range(1, offset))
    assert await offsets(log, after=offset) == list(range(offset + 1, LAST + 1))
    assert await offsets(log, "b") == [1, 2, 3, 4, 5]


async def test_records_that_changed_places_are_found(log: SampleLog, backend: Backend) -> None:
    """Also whole ones: of the same router, and of another."""
    await written(log)
    plant(
        backend,
        f'UPDATE {{records}} SET "offset" = 99 {at(5)}',
        f'UPDATE {{records}} SET "offset" = 5 {at(6)}',
        f'UPDATE {{records}} SET "offset" = 6 {at(99)}',
    )
    with pytest.raises(LogDamaged, match="record 5 is not what was written"):
        await offsets(log)


async def test_a_record_of_another_history_is_found(log: SampleLog, backend: Backend) -> None:
    """Right in itself, but written behind another one: an older copy that was gone on from."""
    await written(log)
    older = f"(SELECT checksum FROM {{records}} {at(3)})"
    plant(backend, f"UPDATE {{records}} SET before = {older} {at(8)}")
    with pytest.raises(LogDamaged):
        await offsets(log)


ENDS: dict[str, tuple[str, str]] = {
    "a lost tail": (
        "DELETE FROM {records} WHERE router_id = 'a' AND \"offset\" > 7",
        "record 10, its last one, is missing",
    ),
    "a lost last record": (f"DELETE FROM {{records}} {at(LAST)}", "record 10, its last one, is missing"),
    "all of it": ("DELETE FROM {records} WHERE router_id = 'a'", "record 10, its last one, is missing"),
    "a lost head": ("DELETE FROM {heads} WHERE router_id = 'a'", "records lie there without a head"),
    "an older head": ("UPDATE {heads} SET \"offset\" = 8 WHERE router_id = 'a'", "its head is not what was written"),
    "another epoch": ("UPDATE {heads} SET epoch = 0 WHERE router_id = 'a'", "its head is not what was written"),
    "a view's bytes": (f"UPDATE {{records}} SET received_ms = 1 {at(VIEW_AT)}", "record 2, the view in force, is not"),
    "a last record": (f"UPDATE {{records}} SET checksum = 7 {at(LAST)}", "record 10, its last one, is not the one"),
}


@pytest.mark.parametrize("what", ENDS)
async def test_an_end_that_changed_is_found_by_the_next_owner(log: SampleLog, backend: Backend, what: str) -> None:
    """And stays as it was found: nothing is appended there, by whomever."""
    await written(log)
    statement, words = ENDS[what]
    plant(backend, statement)
    assert (await damage(log)).startswith(words)
    assert (await damage(log)).startswith(words), "and at every look"
    assert await log.append(SLOT, [rec(LAST + 1, epoch=2, kind=SAMPLES)]) == [False]


async def test_a_head_of_before_checksums_is_taken_over(log: SampleLog, backend: Backend) -> None:
    """What lies in such a log has none, up to where it ended then; what comes after it has."""
    await written(log)
    plant(
        backend,
        "UPDATE {records} SET before = NULL, checksum = NULL",
        'UPDATE {heads} SET checksum = 0, seal = 0, unchained = "offset", floor = "offset" + 1',
    )
    head: Any = await acquire(log, epoch=2, owner="o2")
    assert head.damage == ""
    more = [rec(n, epoch=2, view_offset=VIEW_AT) for n in range(LAST + 1, LAST + 4)]
    assert await log.append(SLOT, more) == [True] * 3
    assert await offsets(log) == list(range(1, LAST + 4))
    plant(backend, f"UPDATE {{records}} SET before = NULL, checksum = NULL {at(LAST + 2)}")
    with pytest.raises(LogDamaged, match="record 12 has no checksum"):
        await offsets(log)


DAMAGE = [CHANGED[what] + at(5) for what in CHANGED] + [statement for statement, _ in ENDS.values()]


@pytest.mark.parametrize("statement", DAMAGE)
async def test_a_log_is_made_whole_by_an_operators_word(log: SampleLog, backend: Backend, statement: str) -> None:
    """What is lost is said and stood for by a gap; what is whole stays; the next owner goes on behind all of it."""
    await written(log)
    before = {record.offset: record for record in await log.read(SLOT, "a", 0, LAST)}
    plant(backend, statement.replace("BLOB", blob(backend, "a4")).replace(" # 1", " + 1"))
    told = await log.recover(SLOT, "a", LAST, 5_000, None)
    assert await log.recover(SLOT, "a", LAST, 5_000, ()) == told
    lost = {n for loss in told for n in range(loss.first, loss.last + 1)}
    head = await acquire(log, epoch=2, owner="o2", now_ms=6_000)
    assert (head.damage, head.generation) == ("", 1)
    assert head.offset == LAST
    kept = await log.read(SLOT, "a", 0, 99)
    assert {r.offset for r in kept if r.kind != DAMAGED} == set(range(1, LAST + 1)) - lost
    assert all(before[r.offset] == r for r in kept if r.kind != DAMAGED)
    assert [(decode_lost(r.payload).first, r.offset) for r in kept if r.kind == DAMAGED] == [
        (loss.first, loss.last) for loss in told
    ]
    for after in range(LAST):
        for upto in range(after + 1, LAST + 1):
            wanted = [r.offset for r in kept if after < r.offset <= upto]
            assert await offsets(log, after=after, upto=upto) == wanted, "in whatever parts"
    more = rec(LAST + 1, epoch=2, received_ms=7_000, view_offset=head.view_offset)
    assert await log.append(SLOT, [more]) == [True]
    assert len(await log.read(SLOT, "a", 0, 99)) == len(kept) + 1
    assert await log.recover(SLOT, "a", LAST, 8_000, ()) == [], "and is whole from then on"
    assert await offsets(log, "b") == [1, 2, 3, 4, 5]


async def test_what_was_read_beyond_the_end_is_lost(log: SampleLog, backend: Backend) -> None:
    """An older copy, whole in itself, and a log that is gone: nothing is written under an offset that was read."""
    await written(log)
    assert [(n.first, n.last, n.from_ms, n.to_ms) for n in await log.recover(SLOT, "a", 14, 5_000, ())] == [
        (11, 14, 1_000, 5_000)
    ]
    view = (VIEW, encode_entry(RouterView(version=7)))
    assert [(n.first, n.last, n.from_ms) for n in await log.recover(SLOT, "c", 3, 5_000, [view, view])] == [(1, 3, 0)]
    heads = await log.acquire(SLOT, "o2", [("a", 2), ("c", 1)], 6_000, 0)
    assert [(head.router_id, head.offset, head.damage) for head in heads] == [("a", 14, ""), ("c", 5, "")]
    assert (heads[1].view_offset, heads[1].view, heads[1].alive_ms) == (5, view[1], 5_000)
    assert await offsets(log) == [*range(1, 11), 14]
    assert await offsets(log, "c") == [3, 4, 5]


async def faults(log: SampleLog, router_id: str, **read: int) -> list[str]:
    """But that the records of these tests hold no samples."""
    found = await log.faults(LogRead(router_id, SLOT, **read), 5_000)
    return [words for words in found if "can't be read" not in words]


async def test_nothing_is_wrong_with_a_whole_log(log: SampleLog, make_log: Callable[[], SampleLog]) -> None:
    """Before it, behind a trim, and once it was recovered; nor with one that is not there and nobody has read."""
    assert await faults(log, "a") == []
    await written(log)
    for below in (0, 5, LAST + 1):
        await log.trim(SLOT, "a", below)
        assert await faults(make_log(), "a", last=LAST, first=LAST) == []
    assert await faults(log, "nobody") == []


@pytest.mark.parametrize("what", CHANGED)
async def test_all_that_is_wrong_is_told(log: SampleLog, backend: Backend, what: str) -> None:
    """Of that log alone, and once it is recovered no more."""
    await written(log)
    statement = CHANGED[what].replace("BLOB", blob(backend, "a4")).replace(" # 1", " + 1")
    plant(backend, statement + at(5), statement.replace("a4", "a6") + at(7))
    found = await faults(log, "a", last=LAST)
    told = [words for words in found if "missing, or not what was written" in words]
    assert told[0].startswith(("record 5 ", "records 5 to "))
    assert await faults(log, "b", last=5) == []
    assert await log.recover(SLOT, "a", LAST, 5_000, ()) != []
    assert await faults(log, "a", last=LAST) == []


async def test_what_breakers_have_read_is_there(log: SampleLog) -> None:
    await written(log)
    assert "records 11 to 14 are missing" in (await faults(log, "a", last=14))[0]
    (words,) = await faults(log, "gone", last=1)
    assert words == "record 1 is missing, or not what was written"
    await log.trim(SLOT, "a", 6)
    assert await faults(log, "a", last=LAST, first=4) == [
        "its records below 6 are trimmed, but a breaker has read up to record 4 only"
    ]


async def test_a_recovered_log_is_read_behind_a_trim(log: SampleLog, backend: Backend) -> None:
    """The gap begins before the record that stands for it: what is trimmed up to there is not missing."""
    await written(log)
    plant(backend, "DELETE FROM {records} WHERE router_id = 'a' AND \"offset\" BETWEEN 5 AND 7")
    assert [(n.first, n.last) for n in await log.recover(SLOT, "a", LAST, 5_000, ())] == [(5, 7)]
    await log.trim(SLOT, "a", 5)
    for after in range(LAST):
        for upto in range(after + 1, LAST + 1):
            wanted = [n for n in (VIEW_AT, 7, 8, 9, 10) if after < n <= upto]
            assert await offsets(log, after=after, upto=upto) == wanted
    assert await faults(log, "a", last=LAST, first=LAST) == []


@pytest.mark.parametrize("changed", ["payload = BLOB", "checksum = checksum + 1", "received_ms = 1"])
async def test_what_stands_for_lost_records_is_lost_like_any_other(
    log: SampleLog, backend: Backend, changed: str
) -> None:
    """All that it stood for is told again, whatever it still says of that."""
    await written(log)
    plant(backend, "DELETE FROM {records} WHERE router_id = 'a' AND \"offset\" BETWEEN 5 AND 7")
    await log.recover(SLOT, "a", LAST, 5_000, ())
    plant(backend, f"UPDATE {{records}} SET {changed} {at(7)}".replace("BLOB", blob(backend, "80")))
    with pytest.raises(LogDamaged, match="records 5 to 6 are missing"):
        await offsets(log)
    assert [(n.first, n.last) for n in await log.recover(SLOT, "a", LAST, 6_000, ())] == [(5, 7)]
    assert await offsets(log) == [1, 2, 3, 4, 7, 8, 9, 10]
    assert await log.recover(SLOT, "a", LAST, 7_000, ()) == []


async def test_what_a_lost_view_split_is_lost_with_it(log: SampleLog, backend: Backend) -> None:
    """Nobody knows any more whose samples they were."""
    await written(log)
    plant(backend, f"DELETE FROM {{records}} {at(VIEW_AT)}")
    assert [(n.first, n.last) for n in await log.recover(SLOT, "a", LAST, 5_000, ())] == [(VIEW_AT, LAST)]


async def test_what_is_trimmed_is_not_lost(log: SampleLog, backend: Backend) -> None:
    """The view in force stays behind a trim; when it is damaged, only what it split of what is kept is lost with it."""
    await written(log)
    assert await log.append(
        SLOT, [rec(11, kind=VIEW, payload=encode_entry(RouterView(version=2)), view_offset=VIEW_AT)]
    )
    await log.trim(SLOT, "a", 8)
    plant(backend, f"UPDATE {{records}} SET received_ms = 1 {at(VIEW_AT)}")
    await log.recover(SLOT, "a", 11, 5_000, ())
    assert await offsets(log) == [10, 11]


@pytest.mark.parametrize("head_is_lost", [False, True])
async def test_a_view_that_is_lost_when_all_else_is_trimmed(
    log: SampleLog, backend: Backend, head_is_lost: bool
) -> None:
    """The next owner is told, the operator gets a new one, and no offset is given twice."""
    await written(log)
    await log.trim(SLOT, "a", LAST + 1)
    plant(backend, f"DELETE FROM {{records}} {at(VIEW_AT)}")
    if head_is_lost:
        plant(backend, "UPDATE {heads} SET seal = seal + 1 WHERE router_id = 'a'")
    assert await damage(log) == (
        "its head is not what was written" if head_is_lost else "record 2, the view in force, is missing"
    )
    told = await log.recover(SLOT, "a", LAST, 5_000, None)
    assert [(loss.first, loss.last) for loss in told] == ([] if head_is_lost else [(VIEW_AT, VIEW_AT)])
    view = encode_entry(RouterView(version=7))
    assert await log.recover(SLOT, "a", LAST, 5_000, [(VIEW, view)]) == told
    head = await acquire(log, epoch=2, owner="o2", now_ms=6_000)
    assert (head.damage, head.offset, head.view_offset, head.view) == ("", LAST + 1, LAST + 1, view)
    assert await offsets(log, after=LAST) == [LAST + 1]
    assert await log.recover(SLOT, "a", LAST, 8_000, ()) == []


async def test_a_recovered_log_goes_on_behind_what_breakers_were_promised(log: SampleLog, backend: Backend) -> None:
    """They have gone on up to the watermark: nothing is stamped before it, and the gap begins there."""
    await written(log)
    assert await log.advance_watermark(SLOT, "o1", [("a", 1)], 9_000) == [True]
    plant(backend, f"DELETE FROM {{records}} {at(LAST)}")
    (loss,) = await log.recover(SLOT, "a", LAST, 5_000, [(VIEW, encode_entry(RouterView(version=2)))])
    assert loss.to_ms == 9_001
    head = await acquire(log, epoch=2, owner="o2", now_ms=10_000)
    assert (head.alive_ms, head.last_received_ms, head.offset) == (9_001, 9_001, LAST + 1)


async def test_a_log_that_is_whole_keeps_its_owner(log: SampleLog) -> None:
    """Nothing to recover: nothing changes."""
    await written(log)
    assert await log.advance_watermark(SLOT, "o1", [("a", 1)], 9_000) == [True]
    assert await log.recover(SLOT, "a", LAST, 5_000, ()) == []
    assert await log.append(SLOT, [rec(LAST + 1, received_ms=9_500, view_offset=VIEW_AT)]) == [True]
    assert (await acquire(log, epoch=2, owner="o2", now_ms=10_000)).alive_ms == 9_500


async def test_a_log_that_is_ahead_of_the_clock_is_set_back(log: SampleLog) -> None:
    """By what was stamped, or by a watermark alone. A record that says so stands behind all that breakers have read."""
    await written(log)
    late = [rec(n, received_ms=900_000 + n, view_offset=VIEW_AT) for n in (LAST + 1, LAST + 2)]
    assert await log.append(SLOT, late) == [True, True]
    assert await log.advance_watermark(SLOT, "o1", [("a", 1)], 950_000) == [True]
    view = (VIEW, encode_entry(RouterView(version=2)))
    assert await log.recover(SLOT, "a", LAST + 2, 945_000, [view], 5_000) == [], "that is near enough"
    told = await log.recover(SLOT, "a", LAST + 2, 50_000, None, 5_000)
    assert await log.recover(SLOT, "a", LAST + 2, 50_000, [view], 5_000) == told
    assert [(n.first, n.last, n.to_ms) for n in told] == [(LAST + 1, LAST + 3, 50_000)]
    gap, table = await log.read(SLOT, "a", LAST, LAST + 9)
    assert (gap.offset, gap.kind, gap.received_ms, decode_lost(gap.payload).sets_back) == (13, DAMAGED, 50_000, True)
    assert (table.kind, table.received_ms) == (VIEW, 50_000)
    assert await log.recover(SLOT, "a", LAST + 2, 50_000, [view], 5_000) == [], "once"
    head = await acquire(log, epoch=2, owner="o2", now_ms=51_000)
    assert (head.damage, head.alive_ms, head.offset) == ("", 50_000, LAST + 4)
    assert await log.advance_watermark(SLOT, "o2", [("a", 2)], 900_000) == [True]
    assert [n.last for n in await log.recover(SLOT, "a", LAST + 4, 60_000, [view], 5_000)] == [LAST + 5]
    assert (await acquire(log, epoch=3, owner="o3", now_ms=61_000)).alive_ms == 60_000
