"""What a bulk replace has to do: the breakers wanted against those there are (semantics.md section 8). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import msgspec

from breaker_actors.errors import Invalid
from breaker_actors.store.config.change_set import Plan, edited
from breaker_actors.store.rows import NO_SHADOW, BreakerItem, BreakerRow, with_mode
from breaker_actors.store.section import new_id


def plan_of(
    project_id: str,
    rows: Sequence[BreakerRow],
    items: Sequence[BreakerItem],
    foreign: Collection[str],
    now_ms: int,
    by: str,
) -> Plan:
    """Matches by id, else by name. `foreign`: ids that breakers of other projects have; `by`: whose change it is.
    Raises Invalid."""
    _check(items, foreign)
    matched = _match(rows, items)
    taken = {row.name for row in rows} | {item.name for item in items if item.name}
    created, changed, names = [], [], []
    for i, (item, row) in enumerate(zip(items, matched, strict=True)):
        _refuse_shadow(i, item, None if row is None else row.shadow_of)
        if row is None:
            created.append(_new(project_id, item, taken, now_ms, by))
            names.append(created[-1].name)
            continue
        wanted = _wanted(row, item, by)
        names.append(wanted.name)
        if wanted != row:
            changed.append((row, edited(row, wanted, now_ms)))
    _refuse_twice(items, names)
    kept = {row.id for row in matched if row is not None}
    return Plan(created, changed, [row for row in rows if row.id not in kept])


def _check(items: Sequence[BreakerItem], foreign: Collection[str]) -> None:
    ids: set[str] = set()
    for i, item in enumerate(items):
        if item.id is None and not item.name:
            raise _invalid(i, "name", "an item needs an id or a name")
        if item.id in foreign:
            raise _invalid(i, "id", "is taken")
        if item.id in ids:
            raise _invalid(i, "id", "is there twice")
        if item.id is not None:
            ids.add(item.id)


def _refuse_twice(items: Sequence[BreakerItem], names: Sequence[str]) -> None:
    """A name may be had twice only where it was before and no item asks for it."""
    counts = Counter(names)
    for i, item in enumerate(items):
        if item.name and counts[item.name] > 1:
            raise _invalid(i, "name", "is there twice")


def _invalid(i: int, field: str, message: str) -> Invalid:
    path = f"breakers[{i}].{field}"
    return Invalid(f"{path}: {message}", {path: message})


def _refuse_shadow(i: int, item: BreakerItem, stored: str | None) -> None:
    if item.shadow_of not in (None, stored):
        raise _invalid(i, "shadow_of", NO_SHADOW)


def _match(rows: Sequence[BreakerRow], items: Sequence[BreakerItem]) -> list[BreakerRow | None]:
    """The breaker each item means. Ids go first, so that names can be swapped; of equal names the oldest is meant."""
    by_id = {row.id: row for row in rows}
    meant = {item.id for item in items if item.id in by_id}
    by_name: dict[str, BreakerRow] = {}
    for row in rows:
        if row.id not in meant:
            by_name.setdefault(row.name, row)
    found = []
    for item in items:
        row_by_id = by_id.get(item.id) if item.id is not None else None
        found.append(row_by_id or by_name.pop(item.name or "", None))
    return found


def _wanted(row: BreakerRow, item: BreakerItem, by: str) -> BreakerRow:
    metadata = row.metadata if item.metadata is None else item.metadata
    return msgspec.structs.replace(
        row,
        name=item.name or row.name,
        rule=item.rule,
        actions=item.actions,
        metadata=metadata,
        control=with_mode(row.control, item.mode, by),
    )


def _new(project_id: str, item: BreakerItem, taken: set[str], now_ms: int, by: str) -> BreakerRow:
    breaker_id = item.id or new_id()
    short = f"breaker-{breaker_id[:8]}"
    name = item.name or (f"breaker-{breaker_id}" if short in taken else short)
    taken.add(name)
    return BreakerRow(
        id=breaker_id,
        project_id=project_id,
        name=name,
        rule=item.rule,
        actions=item.actions,
        metadata=item.metadata or {},
        control=with_mode(None, item.mode, by),
        version=1,
        created_ms=now_ms,
        updated_ms=now_ms,
        router_ids=(new_id(),),
    )
