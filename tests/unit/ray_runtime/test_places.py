"""On which node a numbered actor starts."""

from __future__ import annotations

from collections import Counter

from breaker_actors.ray_runtime.actors import place_of


def test_nodes_take_turns_as_often_as_they_have_cpus() -> None:
    cpus = {"b": 1, "a": 2, "c": 3}
    assert [place_of(i, cpus) for i in range(7)] == ["a", "b", "c", "a", "c", "c", "a"]
    assert Counter(place_of(i, cpus) for i in range(60)) == {"a": 20, "b": 10, "c": 30}


def test_a_new_node_gets_some_of_the_next_actors() -> None:
    """Whatever its id is, among those of the others."""
    for new in "0xz":
        cpus = {"head": 2, "one": 1, new: 3}
        assert new in {place_of(i, cpus) for i in range(8, 12)}


def test_nodes_without_cpus_take_actors_only_where_there_are_no_others() -> None:
    assert {place_of(i, {"head": 0, "worker": 2}) for i in range(4)} == {"worker"}
    assert [place_of(i, {"a": 0, "b": 0}) for i in range(3)] == ["a", "b", "a"]
