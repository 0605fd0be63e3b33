"""Names in files of rules: what each means, and that none costs more in a large project."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator
from typing import Any

from api.rules.model import Names
from api.rules.renaming import tell_renames
from breaker_actors.core.rules import parse_rule
from breaker_actors.store.rows import BreakerRow, RouterRow


class Watched(dict[Any, Any]):
    """Counts how often all of it is walked through."""

    walks = 0

    def __iter__(self) -> Iterator[Any]:
        self.walks += 1
        return super().__iter__()

    def items(self) -> ItemsView[Any, Any]:
        self.walks += 1
        return super().items()


def test_a_name_is_one_look_however_many_there_are() -> None:
    """A document of a MiB names 33,000 breakers, and a project has 10,000: walked through for each that is half a
    minute, in which an apply kept everybody's changes waiting."""
    breakers = Watched({f"id{n}": f"b{n}" for n in range(100)})
    routers = Watched({f"id{n}": f"r{n}" for n in range(100)})
    names = Names(breakers, routers, {"id7"}, {})
    made = breakers.walks, routers.walks
    for n in range(100):
        assert names.breaker_id(f"b{n}") == names.router_id(f"r{n}") == f"id{n}"
        assert names.router(f"id{n}") == f"r{n}"
    assert (breakers.walks, routers.walks) == made


def test_renames_look_at_all_routers_once_however_many_breakers_go() -> None:
    """Files that call 9,000 breakers otherwise are compared with a project of 9,000 routers."""
    rule = parse_rule({"metric": "m", "kind": "avg", "op": "gt", "threshold": 1})
    plain = {"project_id": "p", "metadata": {}, "version": 1}
    times = {"actions": None, "created_ms": 0, "updated_ms": 0, "router_ids": ()}
    breakers = {
        ("breakers", f"{word}{n}"): BreakerRow(id=f"{word}{n}", name=f"{word}{n}", rule=rule, **plain, **times)
        for word in ("old", "new")
        for n in range(10)
    }
    made = {"mode": "static", "enabled": True, "created_by": "user", "inserted_ms": 0}
    live, wanted = (
        Watched({("routers", "r"): RouterRow(id="r", name="r", breaker_ids=(word,), **plain, **made)})
        for word in ("old0", "new0")
    )
    gone = {key: row for key, row in breakers.items() if key[1].startswith("old")}
    tell_renames([], gone, {key: row for key, row in breakers.items() if key not in gone}, live, wanted)
    assert (live.walks, wanted.walks) == (1, 1)


def test_what_names_mean() -> None:
    breakers = {"1": "a", "2": "twice", "3": "twice", "a": "b", "twice": "c"}
    names = Names(
        breakers, {"1": "made", "2": "made", "3": "own", "4": "own", "5": "x", "6": "x", "x": "y"}, "2346", {}
    )
    assert [names.breaker_id(one) for one in ("a", "b", "1", "twice", "none")] == ["1", "a", "1", None, None]
    found = [names.router_id(one) for one in ("made", "own", "x", "y", "1", "none")]
    assert found == ["2", None, "6", "x", "1", None]
    assert [names.router(one) for one in ("1", "2", "3", "5", "6", "x", "gone")] == [
        "1",
        "made",
        "3",
        "5",
        "x",
        "y",
        "gone",
    ]
