"""Files by themselves: what the service would refuse of them in any project, by the code that it compares them with."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import count
from typing import Any

from api.rules.model import KINDS, Asked, names_of
from api.rules.wanted import at_thing, is_over, wanted_row
from api.wire.requests_mutes import LAST_MS
from api.wire.requests_rules import rules_document
from breaker_actors.errors import Invalid
from breaker_actors.store.rows import ProjectRules

_NOTHING = ProjectRules(breakers=[], routers=[], mappings=[], channels=[], mutes=[], declared=[])


def wrong_in(document: Mapping[str, Any], unset: Mapping[str, Collection[str]], now_ms: int) -> dict[str, Any]:
    """What is wrong with each thing of a document, by its place. What hangs on the project, or on the settings of the
    service is not looked at: names that are not in the document, how long a mute may last, private addresses. `unset`:
    secrets of each channel whose values are not there, such as config.url."""
    numbers = count(1)
    try:
        read = rules_document(document)
    except Invalid as error:
        return dict(error.details)
    asked = Asked(read, "", now_ms, "", lambda: str(next(numbers)), LAST_MS, True, unset)
    ids = {(kind, name): asked.new_id() for kind in KINDS for name in asked.things(kind)}
    names = names_of(_NOTHING, [(kind, id_, name) for (kind, name), id_ in ids.items()], others=True)
    found: dict[str, Any] = {}
    for (kind, name), id_ in ids.items():
        fields = asked.things(kind)[name]
        if kind == "mutes" and is_over(fields, now_ms):
            continue
        try:
            wanted_row(asked, kind, name, fields, None, id_, names)
        except Invalid as error:
            told = at_thing(kind, name, error)
            found |= {path: words for path, words in told.items() if not _is_unset(kind, name, path, unset)}
    return found


def _is_unset(kind: str, name: str, path: str, unset: Mapping[str, Collection[str]]) -> bool:
    return kind == "channels" and path.removeprefix(f"channels.{name}.") in unset.get(name, ())
