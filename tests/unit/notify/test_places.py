"""Places of deliveries: who gets them, however many others want."""

from __future__ import annotations

import random
import sys
from collections import Counter
from types import FrameType

import pytest

from breaker_actors.notify.limits import Pace
from breaker_actors.notify.places import Claim, _Channels, shared_out

PACE = Pace()


def claim(org: str, project: str, n: int, taken: int = 0, room: int = 4, served: int = 0) -> Claim:
    return Claim(f"{org}/{project}/{n}", project, org, taken, room, served)


def by(more: dict[str, int], level: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for channel_id, count in more.items():
        found["/".join(channel_id.split("/")[:level])] += count
    return found


def in_turns(claims: list[Claim]) -> Counter[str]:
    """What each channel gets by turns of which each gives an organisation so many places at most."""
    total: Counter[str] = Counter()
    while more := shared_out(
        [one._replace(taken=one.taken + (got := total[one.channel_id]), room=one.room - got) for one in claims], PACE
    ):
        assert max(by(more, 1).values()) <= PACE.begun_max
        total.update(more)
    return total


@pytest.mark.parametrize(("orgs", "each"), [(1, 256), (2, 171), (3, 128), (7, 64)])
def test_organisations_that_take_all_they_may_leave_as_much_free(orgs: int, each: int) -> None:
    claims = [claim(f"o{i}", f"p{n % 15}", n) for i in range(orgs) for n in range(1_500)]
    found = by(in_turns(claims), 1)
    assert all(each - 1 <= count <= each for count in found.values())
    assert PACE.total_max - found.total() >= each - 2


def test_beside_another_organisation_a_turn_is_short() -> None:
    """A channel begins what it has places for in each turn: others' part of the turns is what the rest of its rows wait
    for, also while those under way are not settled. Who is alone, or beside slow receivers, has longer ones."""
    many, few = [claim("many", "p", n, served=9) for n in range(60)], claim("few", "p", 0, served=5)
    assert by(shared_out([*many, few], PACE), 1) == {"many": PACE.begun_beside_max, "few": PACE.channel_max}
    full = few._replace(taken=PACE.channel_max, room=0)
    for served, begun in ((9, PACE.begun_beside_max), (7, PACE.begun_beside_max), (6, PACE.begun_max)):
        assert by(shared_out([*many, full._replace(served=served)], PACE), 1) == {"many": begun}
    assert by(shared_out(many, PACE), 1) == {"many": PACE.begun_max}


def test_who_comes_beside_them_gets_a_place() -> None:
    full = [claim("slow", f"p{n % 15}", n, taken=1 if n < 256 else 0) for n in range(1_500)]
    assert shared_out([*full, claim("late", "p", 0, room=1)], PACE) == {"late/p/0": 1}


def test_projects_of_an_organisation_take_turns() -> None:
    claims = [claim("o", "large", n) for n in range(1_000)] + [claim("o", "small", n) for n in range(3)]
    found = in_turns(claims)
    assert by(found, 2) == {"o/large": 244, "o/small": 12}
    assert {found[channel_id] for channel_id in found if "large" in channel_id} == {1}


def test_channels_of_a_project_take_turns() -> None:
    """Who has none comes before who has one, of several who was served longest ago."""
    pace = Pace(total_max=4)
    claims = [claim("o", "p", 0, taken=1), claim("o", "p", 1, served=7), claim("o", "p", 2, served=6)]
    assert shared_out(claims, pace) == {"o/p/2": 1}
    assert shared_out([claim("o", "p", 0, taken=1, room=0), claim("o", "p", 1), claim("p", "p", 2)], pace) == {
        "o/p/1": 1,
        "p/p/2": 1,
    }


def test_one_channel_alone_gets_all_it_may_use() -> None:
    assert shared_out([claim("o", "p", 0)], PACE) == {"o/p/0": 4}
    assert shared_out([claim("o", "p", 0, room=0)], PACE) == {}
    assert shared_out([], PACE) == {}


def test_whatever_is_asked_for_the_bounds_hold() -> None:
    chance = random.Random(7)
    for _ in range(200):
        claims = [
            claim(f"o{chance.randrange(4)}", f"p{chance.randrange(4)}", n, chance.randrange(3), chance.randrange(5))
            for n in range(chance.randrange(300))
        ]
        taken = by({one.channel_id: one.taken for one in claims}, 1)
        found = shared_out(claims, PACE)
        assert all(0 < found[one.channel_id] <= one.room for one in claims if one.channel_id in found)
        total = taken.total() + sum(found.values())
        assert total <= max(PACE.total_max, taken.total())
        for org, count in by(found, 1).items():
            assert taken[org] + count - 1 <= PACE.total_max - total + 1


def test_only_channels_of_projects_that_have_a_turn_are_put_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """One place is free: of a hundred projects one is looked into."""
    looked: list[_Channels] = []
    peek = _Channels.peek
    monkeypatch.setattr(_Channels, "peek", lambda channels: looked.append(channels) or peek(channels))
    claims = [claim("o", f"p{n % 100}", n, taken=int(n < 255)) for n in range(10_000)]
    assert sum(shared_out(claims, PACE).values()) == 1
    assert len(set(looked)) == 1


def _work(claims: list[Claim]) -> int:
    """Steps of Python functions that sharing out takes."""
    calls = 0

    def note(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(note)
    try:
        shared_out(claims, PACE)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("taken", [253, 256])
def test_thousands_of_channels_cost_little_where_few_places_are_left_to_them(taken: int) -> None:
    claims = [claim("o", f"p{n % 100}", n, taken=1 if n < taken else 0) for n in range(10_000)]
    assert _work([*claims, claim("late", "p", 0, room=1)]) < 6_000
