"""What differs between two forms of a thing, and how it is told: secrets never."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from api.rules.forms import Form
from api.rules.model import Thing
from api.wire.responses_rules import RuleChange, RuleField
from breaker_actors.store.rows import ChannelRow, DeclaredRow
from breaker_actors.text.redaction import MARK, mask

Difference = tuple[str, Any, Any]
_NESTED = ("metadata", "config", "kind_params", "to", "actions")


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    """(field, before, after) of what differs, in the order of names; of objects within key by key."""
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        if name in _NESTED and isinstance(old, Mapping) and isinstance(new, Mapping):
            for key in sorted({*old, *new}):
                if old.get(key) != new.get(key):
                    yield f"{name}.{key}", old.get(key), new.get(key)
        else:
            yield name, old, new


def shown(path: str, before: Any, after: Any) -> RuleField:
    """A difference as it may be told: of a secret only that it differs."""
    name, _, key = path.partition(".")
    if MARK in (before, after):
        return RuleField(field=path, secret=True)
    if name != "config":
        return RuleField(field=path, before=before, after=after)
    old, new = (mask({key: one})[key] if key else mask(one) for one in (before, after))
    if key and (old != before or new != after):
        return RuleField(field=path, secret=True)
    return RuleField(field=path, before=old, after=new, secret=old != before or new != after)


def hide_configs(changes: Iterable[RuleChange]) -> None:
    """Leaves of what changes in configs of channels only that it does: exports don't show all of it."""
    for change in changes:
        for field in change.fields if change.kind == "channels" else ():
            if field.field.partition(".")[0] == "config":
                field.before, field.after, field.secret = None, None, True


def declared_fields(row: Thing, form: Form, references: Mapping[str, Any]) -> Form:
    """The form as it is kept and exported: in the place of a secret stands where it came from, or a mask."""
    if not isinstance(row, ChannelRow):
        return form
    config = {key: references.get(key, value) for key, value in mask(form["config"]).items()}
    for path, reference in references.items():
        key, _, inner = path.partition(".")
        if inner and isinstance(held := config.get(key), dict):
            config[key] = {**held, inner: reference}
    return {**form, "config": config, "references": dict(references)}


def hand_fields(known: DeclaredRow, row: Thing, form: Form) -> list[str]:
    """The fields that were changed since a thing was applied. Fields that came with a later release count as not."""
    return [path for path, _, _ in declared_form(known, row, form)]


def declared_form(known: DeclaredRow, row: Thing, form: Form) -> list[Difference]:
    """(field, as it is, as it was applied) of what was changed since; a channel's config counts by its time."""
    told = {name: value for name, value in known.fields.items() if name in form and name != "config"}
    found = list(differences({name: form[name] for name in told}, told))
    config = known.fields.get("config")
    if isinstance(row, ChannelRow) and row.updated_ms != known.stamp and isinstance(config, dict):
        now = declared_fields(row, form, known.fields.get("references", {}))["config"]
        found += [(path, MARK, MARK) for path, _, _ in differences({"config": now}, {"config": config})]
        if not found:
            found.append(("config", MARK, MARK))
    return found


def stamp_of(row: Thing) -> int:
    return row.updated_ms if isinstance(row, ChannelRow) else 0
