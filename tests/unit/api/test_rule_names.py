"""Names in files of rules: what each means, and that none costs more in a large project."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator

from api.rules.model import Names


class Watched(dict[str, str]):
    """Counts how often all of it is walked through."""

    walks = 0

    def __iter__(self) -> Iterator[str]:
        self.walks += 1
        return super().__iter__()

    def items(self) -> ItemsView[str, str]:
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
