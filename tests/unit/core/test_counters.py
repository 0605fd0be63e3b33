"""Cumulative series: each rise counts once, whatever is lost, repeated, restarted or forgotten."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from breaker_actors.core.counters import (
    ALWAYS,
    EXTRA_MAX,
    FIRST_MS,
    KEPT_MS,
    PROJECT_SHARE,
    RISE_MAX,
    CounterPoint,
    Counters,
    Held,
    Room,
    packed,
    packed_floats,
    risen,
)
from breaker_actors.core.exact_sums import FLOAT_MAX
from breaker_actors.core.log_entries import decode_samples
from breaker_actors.core.model import COUNT_MAX

NOW = 1_800_000_000_000
A, B, C = (letter * 16 for letter in (b"a", b"b", b"c"))


def point(value: float | None = None, ts_ms: int = NOW, start_ms: int = 0, **fields: Any) -> CounterPoint:
    return CounterPoint(**{"series": A, "metric": "m", "value": value, "ts_ms": ts_ms, "start_ms": start_ms} | fields)


def buckets(totals: dict[int, int]) -> dict[str, bytes]:
    """Totals by number of the bucket, which stands for a tenth of that."""
    values = packed_floats([number / 10 for number in totals])
    return {"layout": b"l", "buckets": packed(list(totals)), "values": values, "totals": packed(list(totals.values()))}


def held_buckets(totals: dict[int, int], layout: bytes = b"l") -> Held:
    fields = buckets(totals)
    return held(layout=layout, buckets=fields["buckets"], totals=fields["totals"])


def pairs(rise: tuple[Any, Any]) -> list[tuple[float, int]]:
    return list(zip(*rise, strict=True))


def held(value: float | None = None, ts_ms: int = NOW - 10_000, start_ms: int = 0, **fields: Any) -> Held:
    return Held(ts_ms, start_ms, ts_ms, value, **fields)


@pytest.mark.parametrize(
    ("before", "now", "rise", "outcome"),
    [
        (None, point(7), [], "first"),
        (None, point(7, start_ms=NOW - FIRST_MS), [(1.0, 7)], "first"),
        (None, point(7, start_ms=NOW - FIRST_MS - 1), [], "first"),
        (None, point(7, start_ms=NOW + 1), [], "first"),
        (held(5), point(7), [(1.0, 2)], "rise"),
        (held(5), point(5), [], "rise"),
        (held(5), point(7, scale=0.5), [(0.5, 2)], "rise"),
        (held(5.0), point(7.5, counts=False, scale=2.0), [(5.0, 1)], "rise"),
        (held(5.0), point(5.0, counts=False), [(0.0, 1)], "rise"),
        (held(5), point(3), [(1.0, 3)], "reset"),
        (held(5, start_ms=NOW - 90_000), point(9, start_ms=NOW - 5_000), [(1.0, 9)], "reset"),
        (held(5), point(9, start_ms=NOW - 5_000), [(1.0, 4)], "rise"),
        (held(5), point(9, ts_ms=NOW - 10_000), [], "old"),
        (held(5), point(1, ts_ms=NOW - 20_000), [], "old"),
        (held(0), point(2 * COUNT_MAX + 1), [(1.0, COUNT_MAX), (1.0, COUNT_MAX), (1.0, 1)], "rise"),
        (held(0), point(RISE_MAX), [(1.0, COUNT_MAX)] * (RISE_MAX // COUNT_MAX), "rise"),
        (held(0), point(RISE_MAX + 1), [], "huge"),
        (held(0), point(2.0**53), [], "huge"),
        (held(-1e308), point(1e308, counts=False), [(FLOAT_MAX, 1)], "rise"),
        (held(0.0), point(1e308, counts=False, scale=-1e10), [(-FLOAT_MAX, 1)], "rise"),
        (held(-1e308), point(1e308, counts=False, scale=0.0), [(0.0, 1)], "rise"),
        (held_buckets({1: 2}), point(5), [], "rebased"),
    ],
)
def test_what_a_point_comes_to(before: Held | None, now: CounterPoint, rise: list[Any], outcome: str) -> None:
    found, word = risen(before, now, since_ms=0)
    assert (pairs(found), word) == (rise, outcome)


@pytest.mark.parametrize(
    ("totals", "now", "rise", "outcome"),
    [
        ({0: 1, 1: 2}, {0: 1, 1: 5, 2: 1}, [(0.1, 3), (0.2, 1)], "rise"),
        ({0: 1, 1: 2}, {1: 3}, [(0.1, 3)], "reset"),
        ({0: 1}, {0: 1}, [], "rise"),
        ({}, {2: 4}, [(0.2, 4)], "rise"),
        ({1: 2, 5: 1}, {0: 3, 1: 2, 5: 4, 7: 1}, [(0.0, 3), (0.5, 3), (0.7, 1)], "rise"),
        ({1: 0, 5: 1}, {5: 2}, [(0.5, 1)], "rise"),
        ({1: 2, 9: 1}, {1: 3}, [(0.1, 3)], "reset"),
        ({0: 1, 1: 2}, {0: 9, 1: 1}, [(0.0, 9), (0.1, 1)], "reset"),
        ({0: 0}, {0: 2 * COUNT_MAX + 1}, [(0.0, COUNT_MAX), (0.0, COUNT_MAX), (0.0, 1)], "rise"),
        ({0: 0, 1: 0}, {0: 2**53, 1: 2**53}, [], "huge"),
    ],
)
def test_buckets_rise_each_by_itself(totals: dict[int, int], now: dict[int, int], rise: Any, outcome: str) -> None:
    """One bucket that fell is enough: the histogram began anew."""
    later = point(**buckets(now))
    found, word = risen(held_buckets(totals), later, 0)
    assert (pairs(found), word) == (rise, outcome)
    assert risen(held_buckets(totals, b"other"), later, 0) == (((), ()), "rebased")


def test_states_that_were_stored_by_number_are_read() -> None:
    """As earlier versions stored them."""
    stored = msgspec.msgpack.encode([NOW - 10_000, 0, NOW, None, b"l", {7: 1, 2: 5}])
    counters = Counters([(A, stored), (B, msgspec.msgpack.encode([NOW, 0, NOW, None, b"l", {1 << 63: 1}]))])
    assert (len(counters), counters.unread) == (1, 1)
    taken = counters.begin()
    columns = decode_samples(counters.take(taken, [point(**buckets({2: 6, 7: 1, 9: 2}))], NOW)[0])
    assert (columns.batch.value.tolist(), taken.outcomes) == ([0.2, 0.9], {"rise": 1})


def test_halves_of_a_state_are_none() -> None:
    for totals, numbers in ((b"12345678", b""), (b"1", b"1")):
        assert Counters([(A, msgspec.msgpack.encode([NOW, 0, NOW, None, b"l", totals, numbers]))]).unread == 1


def test_all_routers_of_an_owner_share_a_room() -> None:
    """A project has a share of it; what it always has is there for it, however many the others have."""
    room = Room(4 * ALWAYS * PROJECT_SHARE)
    routers = [Counters(most=100_000) for _ in range(6)]
    for router, project in zip(routers, "aabcde", strict=True):
        router.enter(room, "o", project)

    def more(router: Counters, n: int, seen_ms: int = NOW) -> int:
        taken = router.begin()
        new = [point(1, series=b"%03d%013d" % (len(router), number), ts_ms=seen_ms) for number in range(n)]
        _, full = router.take(taken, new, seen_ms)
        router.keep(taken)
        return full

    share = 4 * ALWAYS
    assert more(routers[0], share - 10) == 0
    assert more(routers[1], 20) == 10  # the project's share
    assert [more(router, share) for router in routers[2:5]] == [0, 0, 0]
    assert room.taken == share * PROJECT_SHARE
    assert more(routers[5], ALWAYS + 1) == 1
    routers[0].leave()
    assert more(routers[5], 2) == 0
    assert more(routers[1], 20) == 0  # the other router of its project is gone
    assert more(routers[0], 20) == 0  # it takes of nobody's room
    before = room.taken
    assert more(routers[2], 5, NOW + KEPT_MS) == 0  # in the place of what was not heard of
    assert room.taken == before


def test_organisations_find_room_however_many_projects_another_one_fills() -> None:
    """Series are not pushed out by others': what one organisation had taken, none had again."""
    most = 4 * ALWAYS * PROJECT_SHARE
    room = Room(most)
    share, taken = most // PROJECT_SHARE, 0
    for n in range(10):
        while room.has("loud", f"p{n}", 100):
            room.grow("loud", f"p{n}", 100)
            taken += 100
    assert taken == most + share, "one alone has all of it, and of that its projects some in any case"
    assert not room.has("loud", "new", 1)
    assert room.has("quiet", "q", 3 * ALWAYS // 2)
    room.grow("quiet", "q", 3 * ALWAYS // 2)
    assert room.has("quiet", "q", ALWAYS)
    assert room.has("third", "t", ALWAYS)


def test_a_series_that_was_forgotten_is_not_taken_for_a_new_one() -> None:
    """At the bound one not heard of for an hour makes room; it comes back with an old start, and counts nothing then.
    One that began since is new."""
    counters = Counters(most=2)
    first = counters.begin()
    counters.take(first, [point(5, series=A, ts_ms=NOW), point(5, series=B, ts_ms=NOW)], NOW)
    counters.keep(first)
    soon = counters.begin()
    assert counters.take(soon, [point(5, series=C)], NOW + 1_000)[1] == 1
    assert soon.outcomes == {"full": 1}
    late = NOW + KEPT_MS
    made = counters.begin()
    new = point(5, series=C, ts_ms=late, start_ms=NOW + 1)
    assert counters.take(made, [replace(new, start_ms=late - 1_000)], late)[1] == 0
    counters.keep(made)
    assert (len(counters), counters.since_ms) == (2, NOW)
    again = Counters([(series, state) for series, state in made.stored() if state], most=2)
    assert (len(again), again.since_ms, again.unread) == (1, NOW, 0)
    back = counters.begin()
    payload, full = counters.take(back, [point(9, series=A, ts_ms=late + 1, start_ms=NOW - 1)], late + 1)
    assert (full, decode_samples(payload).metrics) == (0, [])


@pytest.mark.parametrize("seed", range(30))
def test_a_run_adds_up(seed: int) -> None:
    """A sender counts, restarts and repeats; the owner crashes before and after a record is in the log. What comes out
    is what the sender counted, from its first point on."""
    rng, log, rows = random.Random(seed), dict[bytes, bytes](), list[tuple[float, int]]()
    counters, value, start_ms, now = Counters(), 0, NOW, NOW
    counted, sent = 0, list[CounterPoint]()
    for _ in range(200):
        now += rng.randrange(1, 20_000)
        if rng.random() < 0.05:
            value, start_ms = 0, now
        more = rng.randrange(0, 5)
        value, counted = value + more, counted + more
        sent.append(point(value, ts_ms=now, start_ms=start_ms))
        while sent:
            some = sent[: rng.randrange(1, 3)]
            taken = counters.begin()
            payload, _ = counters.take(taken, some, now)
            if rng.random() < 0.2:
                counters = Counters(log.items())  # it never came into the log
                continue
            batch = decode_samples(payload).batch
            assert batch.count is None or (batch.count >= 1).all()
            counts = [1] * len(batch) if batch.count is None else batch.count.tolist()
            rows += zip(batch.value.tolist(), counts, strict=True)
            log |= dict(taken.stored())
            if rng.random() < 0.5:
                counters.keep(taken)
            else:
                counters = Counters(log.items())
            if rng.random() < 0.8:
                del sent[: len(some)]  # else the answer was lost: it comes again
    assert all(value == 1.0 for value, _ in rows)
    assert sum(n for _, n in rows) == counted


def test_many_buckets_take_the_room_of_many_series() -> None:
    """Also where they come later; then the point is not taken, and the last one stands."""
    counters = Counters(most=5)

    def distribution(series: bytes, n: int, ts_ms: int) -> CounterPoint:
        return point(series=series, ts_ms=ts_ms, **buckets(dict.fromkeys(range(n), 1)))

    def taken(*points: CounterPoint) -> tuple[int, int]:
        some = counters.begin()
        _, full = counters.take(some, points, NOW)
        counters.keep(some)
        return full, len(counters)

    assert taken(distribution(A, 2, NOW), distribution(B, 48, NOW)) == (0, 2)
    assert taken(point(1, series=C)) == (1, 2)
    assert taken(distribution(A, 16, NOW + 1)) == (1, 2)
    assert taken(distribution(B, 2, NOW + 1)) == (0, 2)
    assert taken(point(1, series=C), distribution(A, 16, NOW + 1)) == (0, 3)


def test_few_points_come_to_no_more_samples_than_many() -> None:
    most = EXTRA_MAX * COUNT_MAX // RISE_MAX
    counters = Counters()
    taken = counters.begin()
    points = [point(float(n * RISE_MAX), ts_ms=NOW + n) for n in range(200)]
    payload, full = counters.take(taken, [*points, point(199.0 * RISE_MAX + 3, ts_ms=NOW + 200)], NOW)
    counts = decode_samples(payload).batch.count
    assert counts is not None
    assert (len(counts), counts.sum(), full) == (EXTRA_MAX + 1, EXTRA_MAX * COUNT_MAX + 3, 0)
    assert taken.outcomes == {"first": 1, "rise": most + 1, "huge": 199 - most}


def test_a_state_that_cannot_be_read_counts_as_forgotten() -> None:
    counters = Counters([(A, b"\xc1"), (B, b"")], upto_ms=NOW)
    assert (len(counters), counters.unread) == (0, 2)
    assert risen(None, point(7, ts_ms=NOW + 5, start_ms=NOW - 1), counters.since_ms) == (((), ()), "first")


def test_records_of_one_group_follow_each_other() -> None:
    """The second knows what the first took, though the log does not have it yet."""
    counters = Counters()
    base = counters.begin()
    counters.take(base, [point(10)], NOW)
    counters.keep(base)
    first = counters.begin()
    one, _ = counters.take(first, [point(12, ts_ms=NOW + 1)], NOW)
    second = counters.begin(first)
    two, _ = counters.take(second, [point(15, ts_ms=NOW + 2)], NOW)
    found = [decode_samples(payload).batch.count for payload in (one, two)]
    assert [None if count is None else count.tolist() for count in found] == [[2], [3]]


def rises(counters: Counters, points: list[CounterPoint], log: dict[bytes, bytes] | None = None) -> int:
    """Observations that the points of one record come to."""
    taken = counters.begin()
    batch = decode_samples(counters.take(taken, points, NOW)[0]).batch
    counters.keep(taken)
    if log is not None:
        log |= dict(taken.stored())
    return len(batch) if batch.count is None else int(batch.count.sum())


@pytest.mark.parametrize("age_ms", [1_000, FIRST_MS - 10, FIRST_MS * 2])
def test_what_was_kept_under_a_former_identity_counts_as_forgotten(age_ms: int) -> None:
    """A series began a moment ago, and part of it is counted: its first point under its longer identity is no rise of
    all of it, nor is that of another one that shared the former identity. The next ones rise as ever."""
    log, start_ms = dict[bytes, bytes](), NOW - age_ms
    before = Counters()
    rises(before, [point(1_000, ts_ms=NOW, start_ms=start_ms, series=A), point(7, ts_ms=NOW, series=B)], log)
    counters = Counters(log.items())
    one, other = A + b"of bytes", A + b"of units"
    assert rises(counters, [point(1_005, ts_ms=NOW + 1, start_ms=start_ms, series=one)], log) == 0
    assert rises(counters, [point(10, ts_ms=NOW + 1, start_ms=start_ms, series=other)], log) == 0
    assert (len(counters), counters.weight, log[A]) == (3, 3, b"")
    again = Counters([(series, state) for series, state in log.items() if state])
    for kept in (counters, again):
        later = [point(value, ts_ms=NOW + 2, start_ms=start_ms, series=s) for s, value in ((one, 1_007), (other, 11))]
        assert rises(kept, [*later, point(9, ts_ms=NOW + 2, series=B)]) == 2 + 1 + 2
    fresh = point(4, ts_ms=NOW + 3, start_ms=NOW + 1, series=C + b"of bytes")
    assert rises(again, [fresh]) == 4, "what began afterwards is new"


def test_a_series_without_a_unit_stays_beside_one_that_has_one() -> None:
    """In one record, whichever is first; from its second point on nothing touches it."""
    counters = Counters()
    both = [point(5, series=A), point(50, series=A + b"of bytes")]
    rises(counters, both)
    assert len(counters) == 2
    later = [replace(one, ts_ms=NOW + 1, value=one.value + 1) for one in both if one.value is not None]
    assert rises(counters, later[::-1]) == 2
    assert len(counters) == 2


def test_the_trace_of_a_point_is_told_once() -> None:
    """With its first sample, also where it becomes a thousand."""
    counters = Counters()
    none, each = (buckets(dict.fromkeys(range(5), n)) for n in (0, 1))
    base = counters.begin()
    counters.take(base, [point(series=one, **none) for one in (A, B)], NOW)
    counters.keep(base)
    later = [point(series=one, ts_ms=NOW + 1, trace="t" * 9, **each) for one in (A, B)]
    columns = decode_samples(counters.take(counters.begin(), later, NOW)[0])
    assert list(columns.traces) == ["t" * 9, "", "", "", ""] * 2
    assert columns.share is not None
    assert len(set(columns.share.tolist())) == 1


def test_a_thousand_series_make_room_for_others_in_one_pass() -> None:
    old = [point(1, series=b"o%015d" % n, ts_ms=NOW) for n in range(1_000)]
    counters = Counters(most=1_000)
    base = counters.begin()
    counters.take(base, old, NOW)
    counters.keep(base)
    asked = 0

    class Counting(Iterator[tuple[bytes, Held]]):
        def __next__(self) -> tuple[bytes, Held]:
            nonlocal asked
            asked += 1
            return next(aged)

    taken = counters.begin()
    aged, taken.by_age = taken.by_age, Counting()
    late = NOW + KEPT_MS
    new = [point(1, series=b"n%015d" % n, ts_ms=late) for n in range(1_500)]
    assert counters.take(taken, new, late)[1] == 500
    assert asked <= 1_001 + 500
    counters.keep(taken)
    assert len(counters) == 1_000
