"""Whose held deliveries are looked at next."""

from __future__ import annotations

from breaker_actors.notify.rota import Rota


def test_organisations_take_turns() -> None:
    rota = Rota()
    rota.add([("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1")])
    assert list(rota.next(2)) == ["a1", "b1"]
    assert list(rota.next(9)) == ["a1", "b1", "a2", "a3"]
    rota.note({"a1": 7})
    assert rota.next(2) == {"b1": 0, "a2": 0}
    rota.note({"b1": None, "a2": None, "a3": None})
    assert rota.next(9) == {"a1": 7}
    rota.note({"a1": None})
    assert not rota


def test_a_look_goes_to_its_end_before_the_next_one_begins() -> None:
    rota = Rota()
    rota.add([("a", "a1"), ("b", "b1")])
    for after in (5, 6, 7):
        rota.note({"a1": after})
        rota.add([("a", "a1"), ("b", "b1")])
        assert rota.next(9) == {"b1": 0, "a1": after}
    rota.note({"b1": None, "a1": None})
    assert rota.next(9) == {"a1": 0}
    rota.note({"a1": None})
    assert not rota
