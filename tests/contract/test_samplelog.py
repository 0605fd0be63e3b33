"""SampleLog: dense offsets per router, fences by epoch, heads at take-over, reads, trimming."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from breaker_actors.core.log_entries import BREAKER, SAMPLES, VIEW, LogRecord
from breaker_actors.errors import Invalid, Unavailable
from breaker_actors.messages import RouterRef
from breaker_actors.wal.base import READ_BYTES, Append, LogStock, RouterHead, SampleLog
from breaker_actors.wal.reader import LogReader

SLOT = "r-0"


def rec(offset: int, router: str = "a", epoch: int = 1, **fields: Any) -> Append:
    values: dict[str, Any] = {
        "router_id": router,
        "epoch": epoch,
        "offset": offset,
        "received_ms": 100 * offset,
        "kind": SAMPLES,
        "view_offset": 0,
        "payload": f"{router}{offset}".encode(),
    }
    return Append(**values | fields)


async def acquire(log: SampleLog, epoch: int = 1, owner: str = "o1", router: str = "a", **fields: int) -> RouterHead:
    (head,) = await log.acquire(SLOT, owner, [(router, epoch)], fields.get("now_ms", 0), fields.get("keys_after_ms", 0))
    return head


async def offsets(log: SampleLog, router: str = "a", after: int = 0, upto: int = 1000, limit: int = 256) -> list[int]:
    return [record.offset for record in await log.read(SLOT, router, after, upto, limit)]


async def test_a_log_nobody_made_is_empty(log: SampleLog) -> None:
    """Reads of a slot without a file answer nothing, and see what is written later."""
    assert await log.read(SLOT, "a", 0, 9) == []
    assert await log.find(SLOT, "a", 9) == 0
    assert await log.stock(SLOT) == []
    await acquire(log)
    assert await log.append(SLOT, [rec(1)]) == [True]
    assert await log.read(SLOT, "a", 0, 9) == [LogRecord("a", 1, 100, SAMPLES, 0, b"a1")]


async def test_one_call_appends_for_many_routers(log: SampleLog) -> None:
    """A result for each record; a refused one leaves the others alone."""
    await log.acquire(SLOT, "o1", [("a", 1), ("b", 4)], 0, 0)
    records = [rec(1), rec(1, "b", 4), rec(2), rec(2, "b", 3), rec(2, "b", 4), rec(1, "c")]
    assert await log.append(SLOT, records) == [True, True, True, False, True, False]
    assert await offsets(log) == [1, 2]
    assert await offsets(log, "b") == [1, 2]


@pytest.mark.parametrize("offset", [0, 1, 3])
async def test_offsets_are_dense(log: SampleLog, offset: int) -> None:
    """Only the next offset is taken."""
    await acquire(log)
    await log.append(SLOT, [rec(1)])
    assert await log.append(SLOT, [rec(offset, payload=b"other")]) == [False]
    assert await offsets(log) == [1]


async def test_time_never_goes_back(log: SampleLog) -> None:
    """A stamp before the router's last one is refused, an equal one is fine."""
    await acquire(log)
    assert await log.append(SLOT, [rec(1), rec(2, received_ms=99), rec(2, received_ms=100)]) == [True, False, True]


async def test_an_append_may_be_repeated(log: SampleLog) -> None:
    """The same record under the same epoch counts as appended; another owner must not claim it as its own."""
    await acquire(log)
    assert await log.append(SLOT, [rec(1), rec(2)]) == [True, True]
    assert await log.append(SLOT, [rec(2), rec(3)]) == [True, True]
    assert await log.append(SLOT, [rec(2, payload=b"other")]) == [False]
    await acquire(log, epoch=2, owner="o2")
    assert await log.append(SLOT, [rec(3), rec(3, epoch=2)]) == [False, False]
    assert await offsets(log) == [1, 2, 3]


async def test_a_new_owner_fences_the_old_one(log: SampleLog) -> None:
    """From take on lower epochs are refused; so is an equal epoch of another owner."""
    await acquire(log)
    await log.append(SLOT, [rec(1)])
    await acquire(log, epoch=3, owner="o3")
    assert await log.append(SLOT, [rec(2)]) == [False]
    assert await log.append(SLOT, [rec(2, epoch=4)]) == [False]
    assert await log.acquire(SLOT, "o2", [("a", 2), ("a", 3)], 0, 0) == []
    assert await log.append(SLOT, [rec(2, epoch=3)]) == [True]


async def test_what_an_owner_sent_before_it_took_again_comes_too_late(log: SampleLog) -> None:
    """Once told where the log stands an owner counts on it: no append of its own may still land behind that."""
    await acquire(log)
    assert await log.append(SLOT, [rec(1)]) == [True]
    assert (await acquire(log)).generation == 2
    assert await log.append(SLOT, [rec(2)]) == [False]
    head = await acquire(log)
    assert (head.generation, head.offset) == (3, 1)
    assert await log.append(SLOT, [rec(2, generation=2)]) == [False]
    assert await log.append(SLOT, [rec(2, generation=3)]) == [True]
    assert (await acquire(log, epoch=2)).generation == 1
    assert await log.append(SLOT, [rec(3, epoch=2)]) == [True]


async def test_counters_are_stored_with_their_record(log: SampleLog) -> None:
    """The last state of each series, also of several records in one call; none of a record that is refused."""
    one, two, three = (letter * 16 for letter in (b"1", b"2", b"3"))
    assert (await acquire(log)).counters == ()
    await log.append(
        SLOT, [rec(1, counters=((one, b"a"), (two, b"b"))), rec(2, counters=((one, b"c"), (b"", b"since")))]
    )
    assert sorted((await acquire(log)).counters) == [(b"", b"since"), (one, b"c"), (two, b"b")]
    await log.append(SLOT, [rec(9, generation=2, counters=((three, b"x"),))])
    await log.append(SLOT, [rec(3, generation=2, counters=((two, b""), (three, b"d"), (one, b"")))])
    assert await log.append(SLOT, [rec(4, generation=2, counters=((one, b"e"),))]) == [True]
    assert sorted((await acquire(log, epoch=2, owner="o2")).counters) == [(b"", b"since"), (one, b"e"), (three, b"d")]
    assert (await acquire(log, router="b")).counters == ()
    await log.forget(SLOT, "a")
    assert (await acquire(log, epoch=3)).counters == ()


async def test_a_head_tells_where_the_log_stands(log: SampleLog) -> None:
    """Offset, last stamp, the view in force and the keys, oldest first and not too old ones."""
    first = await acquire(log, now_ms=50)
    assert first == RouterHead(
        router_id="a",
        epoch=1,
        offset=0,
        last_received_ms=0,
        alive_ms=50,
        view_offset=0,
        view=None,
        generation=1,
        keys=(),
    )
    await log.append(
        SLOT,
        [
            rec(1, kind=BREAKER),
            rec(2, kind=VIEW, payload=b"view"),
            rec(3, view_offset=2, keys=(b"k" * 16, b"a" * 16)),
            rec(4, view_offset=2, keys=(b"c" * 16,)),
            rec(5, view_offset=2, keys=(b"b" * 16,)),
        ],
    )
    head = await acquire(log, epoch=2, owner="o2", keys_after_ms=300, now_ms=900)
    assert (head.epoch, head.offset, head.last_received_ms) == (2, 5, 500)
    assert (head.view_offset, head.view) == (2, b"view")
    assert head.keys == ((b"c" * 16, 4), (b"b" * 16, 5))


async def test_alive_is_the_previous_owners(log: SampleLog) -> None:
    """Its heartbeats or its last stamp, whichever is later; heartbeats never go back."""
    await acquire(log, now_ms=1000)
    await log.alive(SLOT, "o1", 5000)
    await log.alive(SLOT, "o1", 4000)
    assert (await acquire(log, epoch=2, owner="o2", now_ms=9000)).alive_ms == 5000
    await log.append(SLOT, [rec(1, epoch=2, received_ms=9500)])
    assert (await acquire(log, epoch=3, owner="o3", now_ms=20_000)).alive_ms == 9500


async def test_an_owner_that_gave_no_sign_was_not_up(log: SampleLog) -> None:
    """It may have died before anybody reached it: the outage before it goes on."""
    await acquire(log, now_ms=1000)
    await log.alive(SLOT, "o1", 5000)
    await acquire(log, epoch=2, owner="o2", now_ms=9000)
    assert (await acquire(log, epoch=3, owner="o3", now_ms=9900)).alive_ms == 5000


async def test_a_repeated_take_answers_alike(log: SampleLog) -> None:
    """The first answer may get lost: the gap it tells of must not be lost with it."""
    await acquire(log, now_ms=1000)
    first = await acquire(log, epoch=2, owner="o2", now_ms=9000)
    await log.alive(SLOT, "o2", 9500)
    assert await acquire(log, epoch=2, owner="o2", now_ms=9600) == msgspec.structs.replace(first, generation=2)
    await log.append(SLOT, [rec(1, epoch=2, generation=2, received_ms=9700)])
    again = await acquire(log, epoch=2, owner="o2", now_ms=9900)
    assert (again.alive_ms, again.offset) == (9700, 1)


async def test_old_keys_go(log: SampleLog) -> None:
    """Keys older than ten minutes are dropped as the log goes on."""
    await acquire(log)
    await log.append(SLOT, [rec(1, keys=(b"1" * 16,)), rec(2, received_ms=700_000, keys=(b"2" * 16,))])
    head = await acquire(log, epoch=2, owner="o2", keys_after_ms=-1)
    assert head.keys == ((b"2" * 16, 2),)


async def test_reads_are_ranges(log: SampleLog) -> None:
    """after is exclusive, upto inclusive, limit bounds the answer."""
    await acquire(log)
    await log.append(SLOT, [rec(n) for n in range(1, 11)])
    assert await offsets(log, after=3, upto=7) == [4, 5, 6, 7]
    assert await offsets(log, after=3, limit=2) == [4, 5]
    assert await offsets(log, after=10) == []
    assert await offsets(log, "b") == []


async def test_reads_are_bounded_by_bytes(log: SampleLog) -> None:
    """They end with the record that goes beyond; what lies behind is not missing."""
    await acquire(log)
    await log.append(SLOT, [rec(n, payload=bytes(100)) for n in range(1, 11)])
    for bytes_max, most in ((1, 1), (100, 1), (101, 2), (450, 5), (1_000, 10), (9_999, 10)):
        records = await log.read(SLOT, "a", 0, 1_000, 256, bytes_max)
        assert [record.offset for record in records] == list(range(1, most + 1))
    assert [record.offset for record in await log.read(SLOT, "a", 4, 8, 2, 450)] == [5, 6]
    size = READ_BYTES // 2
    await log.append(SLOT, [rec(n, payload=bytes(size)) for n in range(11, 15)])
    assert await offsets(log, after=10) == [11, 12]
    (first,) = await log.read_some(SLOT, [("a", 10, 99)], 9)
    assert isinstance(first, list)
    assert [record.offset for record in first] == [11, 12]
    reader = LogReader(log)
    (begun,) = await reader.begin([(RouterRef("a", "", SLOT, 0), 10, 99)])
    for ahead in (None, begun):
        found = [r.offset async for r in reader.after(RouterRef("a", "", SLOT, 0), 10, 99, ahead)]
        assert found == [11, 12, 13, 14]


async def test_find_by_time(log: SampleLog) -> None:
    """The last record at or before a time, also among equal stamps and when the beginning is gone."""
    await acquire(log)
    stamps = [100, 200, 200, 200, 300, 1000, 1000]
    await log.append(
        SLOT,
        [rec(n, received_ms=ms, kind=VIEW if n == 1 else SAMPLES, view_offset=1) for n, ms in enumerate(stamps, 1)],
    )
    times = [0, 99, 100, 199, 200, 250, 300, 999, 1000, 9999]
    assert [await log.find(SLOT, "a", ms) for ms in times] == [0, 0, 1, 1, 4, 4, 5, 5, 7, 7]
    await log.trim(SLOT, "a", 5)
    assert [await log.find(SLOT, "a", ms) for ms in times] == [0, 0, 1, 1, 1, 1, 5, 5, 7, 7]


async def test_many_routers_are_read_at_once(log: SampleLog) -> None:
    """Each as by itself; what has no log is empty."""
    assert await log.read_some(SLOT, [("a", 0, 9)], 9) == [[]]
    assert await log.find_some(SLOT, [("a", 9)]) == [0]
    await log.acquire(SLOT, "o1", [("a", 1), ("b", 1)], 0, 0)
    await log.append(SLOT, [rec(1), rec(2), rec(1, "b"), rec(3)])
    wanted = [("a", 0, 2), ("b", 1, 9), ("c", 0, 9), ("a", 1, 9), ("b", 0, 9)]
    found = await log.read_some(SLOT, wanted, 2)
    assert found == [await log.read(SLOT, *stretch, 2) for stretch in wanted]
    assert await log.find_some(SLOT, [("a", 200), ("b", 99), ("c", 9), ("a", 9999)]) == [2, 0, 0, 3]


async def test_one_read_of_many_routers_is_bounded(log: SampleLog) -> None:
    """It answers for the first ones; who asks goes on from there."""
    size = READ_BYTES // 2 - 1
    await acquire(log)
    await log.append(SLOT, [rec(n, payload=bytes(size)) for n in range(1, 6)])
    found = await log.read_some(SLOT, [("a", n, n + 1) for n in range(5)], 9)
    assert [[record.offset for record in records] for records in found if isinstance(records, list)] == [[1], [2], [3]]


async def test_stock_and_forget(log: SampleLog) -> None:
    """A slot tells what lies in it; a forgotten router leaves nothing, its neighbour everything."""
    await log.acquire(SLOT, "o1", [("a", 1), ("b", 1)], 0, 0)
    await log.append(SLOT, [rec(n, keys=(bytes([n % 251]) * 16,)) for n in range(1, 602)] + [rec(1, "b")])
    a, b = await log.stock(SLOT)
    assert (a, b) == (LogStock("a", 601, 60100, a.bytes), LogStock("b", 1, 100, b.bytes))
    assert a.bytes > 600 * b.bytes
    await log.forget(SLOT, "a")
    await log.forget(SLOT, "nobody")
    assert await log.stock(SLOT) == [b]
    assert await offsets(log) == []
    assert await offsets(log, "b") == [1]
    assert (await acquire(log, epoch=9)).keys == ()


async def test_trim_keeps_the_view_in_force(log: SampleLog) -> None:
    """The first record kept must still find its view; older views go."""
    await acquire(log)
    kinds = {1: VIEW, 3: VIEW, 7: VIEW}
    view = 0
    records = []
    for n in range(1, 10):
        view = n if n in kinds else view
        records.append(rec(n, kind=kinds.get(n, SAMPLES), view_offset=view))
    await log.append(SLOT, records)
    assert await log.trim(SLOT, "a", 6) == 4
    assert await offsets(log) == [3, 6, 7, 8, 9]
    assert await log.trim(SLOT, "a", 100) == 4
    assert await offsets(log) == [7]
    head = await acquire(log, epoch=2, owner="o2")
    assert (head.offset, head.view, head.view_offset) == (9, b"a7", 7)
    assert await log.append(SLOT, [rec(10, epoch=2, view_offset=7)]) == [True]
    assert await log.trim("r-9", "a", 5) == 0


async def test_a_long_trim_is_complete(log: SampleLog) -> None:
    """More records than one step drops; their bytes count no more."""
    assert await log.size_bytes(SLOT) == 0
    await acquire(log)
    await log.append(SLOT, [rec(n, payload=bytes(1000)) for n in range(1, 1302)])
    assert await log.size_bytes(SLOT) > 1_300_000
    assert await log.trim(SLOT, "a", 1301) == 1300
    assert await offsets(log, upto=9999) == [1301]
    assert await log.size_bytes(SLOT) < 200_000


@pytest.mark.parametrize("payload", [30, 400, 940, 1_500, 6_000, 60_000])
async def test_bytes_are_counted_per_router(make_log: Callable[[], SampleLog], payload: int) -> None:
    """What the routers of a slot take adds up to what the slot takes, also after a trim and a restart."""
    first_id, second_id = sorted(str(uuid4()) for _ in "ab")
    log, count = make_log(), 6_000_000 // (payload + 1_000)
    await log.acquire(SLOT, "o1", [(first_id, 1), (second_id, 1)], 0, 0)
    empty = await log.size_bytes(SLOT)
    for first in range(1, count, 100):
        await log.append(SLOT, [rec(n, first_id, payload=os.urandom(payload)) for n in range(first, first + 100)])
    await log.append(SLOT, [rec(1, second_id, payload=os.urandom(payload))])
    a, b = await log.stock(SLOT)
    size = await log.size_bytes(SLOT) - empty
    assert size * 0.85 < a.bytes + b.bytes < size * 1.15
    assert await log.trim(SLOT, first_id, a.last_offset - 9) == a.last_offset - 10
    heads = await make_log().acquire(SLOT, "o2", [(first_id, 2), (second_id, 2)], 0, 0)
    taken = {head.router_id: head.log_bytes for head in heads}
    assert taken == {first_id: 10 * b.bytes, second_id: b.bytes}
    assert {entry.router_id: entry.bytes for entry in await log.stock(SLOT)} == taken


async def test_slots_are_apart(log: SampleLog) -> None:
    """One router id in two slots is two logs; a name that could leave the folder is refused."""
    await acquire(log)
    await log.append(SLOT, [rec(1)])
    assert await log.read("r-1", "a", 0, 9) == []
    for slot in ("../x", "", "A", "a/b", "a.b", "x" * 65):
        with pytest.raises(Invalid):
            await log.read(slot, "a", 0, 9)
        with pytest.raises(Invalid):
            await log.append(slot, [])


async def test_a_closed_log_refuses(make_log: Callable[[], SampleLog]) -> None:
    """Closing twice is harmless; another log on the same place goes on."""
    log, other = make_log(), make_log()
    await acquire(log)
    await log.append(SLOT, [rec(1)])
    await log.close()
    await log.close()
    with pytest.raises(Unavailable):
        await log.append(SLOT, [rec(2)])
    assert await offsets(other) == [1]


async def test_a_zombie_next_to_its_successor(make_log: Callable[[], SampleLog]) -> None:
    """Two owners with the log open at once: the lower epoch gets nothing in, readers see one sequence."""
    old, new, reader = make_log(), make_log(), make_log()
    await acquire(old)
    await old.append(SLOT, [rec(1)])
    await acquire(new, epoch=2, owner="o2")
    assert await old.append(SLOT, [rec(2, payload=b"zombie")]) == [False]
    assert await new.append(SLOT, [rec(2, epoch=2)]) == [True]
    assert await old.append(SLOT, [rec(3, payload=b"zombie")]) == [False]
    assert [record.payload for record in await reader.read(SLOT, "a", 0, 9)] == [b"a1", b"a2"]


@pytest.mark.parametrize("mine", [True, False])
async def test_a_watermark_is_an_owners_as_long_as_it_owns(make_log: Callable[[], SampleLog], mine: bool) -> None:
    """However often it gave some before: one is refused from the moment on at which a router is taken, recovered or
    forgotten, by a door of its own or another's."""
    log = make_log()
    other = log if mine else make_log()
    asked = [("a", 1), ("b", 1), ("c", 2), ("d", 1)]

    async def given(upto_ms: int) -> list[bool]:
        return await log.advance_watermark(SLOT, "o1", asked, upto_ms)

    await log.acquire(SLOT, "o1", [("a", 1), ("b", 1), ("c", 1)], 0, 0)
    await log.append(SLOT, [rec(1, "c")])
    assert [await given(upto) for upto in (1_000, 1_001)] == [[True, True, False, False]] * 2
    await other.acquire(SLOT, "o2", [("a", 2)], 0, 0)
    assert await given(1_002) == [False, True, False, False]
    await other.acquire(SLOT, "o1", [("c", 2), ("d", 1)], 0, 0)
    assert [await given(upto) for upto in (1_003, 1_003)] == [[False, True, True, True]] * 2
    await other.forget(SLOT, "d")
    assert await given(1_004) == [False, True, True, False]
    assert await other.recover(SLOT, "c", 2, 1_005, [])
    assert await given(1_006) == [False, True, False, False]
    (head,) = await other.acquire(SLOT, "o3", [("b", 2)], 0, 0)
    assert head.alive_ms == 1_006
    assert await given(1_007) == [False] * 4
    (head,) = await other.acquire(SLOT, "o4", [("b", 3)], 0, 0)
    assert head.alive_ms == 1_006, "what was refused is not stored"


async def test_keys_are_read_a_page_at_a_time(log: SampleLog) -> None:
    """Those of each router in their order, behind a place that may lie within a record, whoever owns it."""
    assert not any((await log.keys(SLOT, {"a": (0, b"")}, 5)).values())
    await log.acquire(SLOT, "o1", [("a", 1), ("b", 1)], 0, 0)
    names = [b"%d" % n * 16 for n in range(10)]
    await log.append(
        SLOT, [rec(1, keys=tuple(names[2::-1])), rec(2, keys=tuple(names[3:7])), rec(1, "b", keys=(b"b",))]
    )
    places = {"a": (0, b""), "b": (0, b""), "c": (0, b"")}
    first = await log.keys(SLOT, places, 4)
    assert {i: [one[:2] for one in found] for i, found in first.items()} == {
        "a": [(1, names[0]), (1, names[1]), (1, names[2]), (2, names[3])],
        "b": [(1, b"b")],
        "c": [],
    }
    assert [one.received_ms for one in first["a"]] == [100, 100, 100, 200]
    rest = await log.keys(SLOT, {"a": first["a"][-1][:2]}, 4)
    assert [one[:2] for one in rest["a"]] == [(2, name) for name in names[4:7]]


async def test_a_take_answers_the_keys_that_are_not_known(log: SampleLog) -> None:
    await log.acquire(SLOT, "o1", [("a", 1), ("b", 1)], 0, 0)
    await log.append(SLOT, [rec(n, router, keys=(b"%d" % n * 16,)) for router in "ab" for n in (1, 2, 3)])
    a, b = await log.acquire(SLOT, "o2", [("a", 2), ("b", 2)], 0, 0, {"a": 2})
    assert [offset for _, offset in a.keys] == [3]
    assert [offset for _, offset in b.keys] == [1, 2, 3]


async def test_keys_are_dropped_up_to_an_offset(log: SampleLog) -> None:
    """However many; those behind it, and of others, stay."""
    await log.drop_keys(SLOT, {"a": 1})
    await log.acquire(SLOT, "o1", [("a", 1), ("b", 1), ("c", 1)], 0, 0)
    many = tuple(n.to_bytes(16, "big") for n in range(6_000))
    await log.append(SLOT, [rec(n, router, keys=many[::n]) for router in "abc" for n in (1, 2, 3)])
    await log.drop_keys(SLOT, {"a": 2, "b": 1})
    heads = await log.acquire(SLOT, "o2", [("a", 2), ("b", 2), ("c", 2)], 0, 0)
    assert [len(head.keys) for head in heads] == [2_000, 5_000, 11_000]
    assert {offset for _, offset in heads[0].keys} == {3}
