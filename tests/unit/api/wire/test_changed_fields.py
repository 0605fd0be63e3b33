"""What differs between two sides of an entry of the audit log: every field by its name, and no more work than that."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from api.wire.changed_fields import OMITTED, changed_fields, value_at
from breaker_actors.store.config.audit_log import OMITTED as WRITTEN

KEYS = st.sampled_from(["a", "b", "c", OMITTED])
LEAVES = st.sampled_from([None, 0, 1, "", "x"]) | st.lists(st.integers(0, 1), max_size=2)
FIELDS = st.recursive(
    st.dictionaries(KEYS, LEAVES, max_size=3), lambda inner: st.dictionaries(KEYS, LEAVES | inner, max_size=3)
)


def whole(fields: dict[str, Any], at: str = "") -> dict[str, Any]:
    """All fields by their names, those without any included."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict) and value and OMITTED not in value:
            found |= whole(value, f"{at}{name}.")
        elif value is not None:
            found[f"{at}{name}"] = value
    return found


@given(FIELDS, FIELDS)
def test_it_tells_what_all_fields_side_by_side_tell(before: dict[str, Any], after: dict[str, Any]) -> None:
    """But for what has no field left, or had none before: its fields tell that."""
    old, new = whole(before), whole(after)
    names = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
    emptied = {name for name in names if (old.get(name), new.get(name)) in (({}, None), (None, {}))}
    found = {name: (was, now) for name, _, was, now in changed_fields(before, after, 99)}
    told = {name: (old.get(name), new.get(name)) for name in names}
    assert {name: told[name] for name in names - emptied} == {
        name: sides for name, sides in found.items() if name not in emptied
    }
    assert found.keys() <= names


def test_a_name_is_cut_and_its_last_part_is_whole() -> None:
    (one,) = changed_fields({"a": {"long": {"since_ms": 1}}}, {"a": {"long": {"since_ms": 2}}}, 8)
    assert one == ("a.long.s", "since_ms", 1, 2)
    (one,) = changed_fields({"k" * 99: 1}, None, 8)
    assert one == ("k" * 8, "k" * 99, 1, None)


def test_what_changes_with_every_change_is_told_only_within_fields() -> None:
    before, after = ({"updated_ms": n, "metadata": {"updated_ms": n}} for n in (1, 2))
    assert [*changed_fields(before, after, 99)] == [("metadata.updated_ms", "updated_ms", 1, 2)]


def test_nothing_is_not_the_same_as_no_fields() -> None:
    assert [*changed_fields({"a": {}}, {"a": {"b": 1}}, 9)] == [("a.b", "b", None, 1)]
    assert [*changed_fields({"a": {}}, {}, 9)] == [("a", "a", {}, None)]
    assert [*changed_fields({"a": 5}, {"a": {"b": 1}}, 9)] == [("a", "a", 5, None), ("a.b", "b", None, 1)]


def test_what_was_left_out_of_an_entry_is_a_value() -> None:
    assert OMITTED == WRITTEN
    assert [*changed_fields({"a": {OMITTED: 9}}, {"a": {"b": 1}}, 9)] == [
        ("a", "a", {OMITTED: 9}, None),
        ("a.b", "b", None, 1),
    ]


def test_a_value_within_fields_is_found_or_none() -> None:
    assert value_at({"a": {"b": 1}}, "a", "b") == 1
    assert value_at({"a": 1}, "a", "b") is value_at(None, "a") is None
