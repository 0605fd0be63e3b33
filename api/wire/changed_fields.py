"""What differs between before and after in an entry of the audit log, field by field; pure.

Fields are walked one by one as they are asked for, and only what differs gets a name: a key may have 64 KB and a
thousand fields below it, whose whole names together would be a thousand times the entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

OMITTED = "omitted_characters"
"""The one field of what stands for a value that was too large for its entry."""
DULL = ("updated_ms", "inserted_ms", "created_ms")
"""They change with every change."""


class Changed(NamedTuple):
    """A field that is other than before; None: it was, or is, not there. `name`: with those of what it is in, cut;
    `key`: its own."""

    name: str
    key: str
    old: Any
    new: Any


def changed_fields(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, chars: int, at: str = ""
) -> Iterator[Changed]:
    """The fields that differ, those within fields each by itself; all of a thing that was made or is gone. Null is as
    not there. `chars`: of a name at most, the first; `at`: what the names begin with. Raises what a mapping would that
    these are none."""
    old, new = before or {}, after or {}
    for key in dict.fromkeys((*old, *new)):
        if not at and key in DULL:
            continue
        was, now = old.get(key), new.get(key)
        in_was, in_now = _fields(was), _fields(now)
        if in_was is None or in_now is None:
            was, now = None if in_was else was, None if in_now else now  # one without any is a value
            if was != now:
                yield Changed(f"{at}{key[:chars]}"[:chars], key, was, now)
        if in_was or in_now:
            yield from changed_fields(in_was, in_now, chars, f"{at}{key[:chars]}."[:chars])


def _fields(value: Any) -> dict[str, Any] | None:
    """The fields within a value, if it is such."""
    return value if isinstance(value, dict) and OMITTED not in value else None


def value_at(fields: Any, *path: str) -> Any:
    """The value of a field within fields; None where it is not there."""
    for key in path:
        fields = fields.get(key) if isinstance(fields, dict) else None
    return fields
