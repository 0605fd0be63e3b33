"""A bulk replace in steps (semantics.md section 8).

The project is looked at outside of any lock. The first step is only taken while it is as it was looked at: then all
checks hold. A step that has more notifications to write by then, as breakers opened or channels were made, is taken in
several. Replaces of one project take turns: what needs more than one step claims the project, and a claim is another
one after each step. One that stays the same for AWAY_S is that of a process that is gone. Breakers that others
change between two steps keep what they were given, in all fields that the replace does not change.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, func, select, update

from breaker_actors.errors import NotFound, Unavailable, too_many_breakers
from breaker_actors.store import tables as t
from breaker_actors.store.alerts import ends_each
from breaker_actors.store.base import Check
from breaker_actors.store.config.audit_log import Place, refuse_beyond
from breaker_actors.store.config.bulk_replace import plan_of
from breaker_actors.store.config.change_set import EDITABLE, Plan, carry_out, edited, load_breakers, taken_ids
from breaker_actors.store.quotas import breaker_bytes, refuse_larger, refuse_overfull, room
from breaker_actors.store.rows import BreakerItem, BreakerRow, Replaced
from breaker_actors.store.section import lock_project, new_id
from breaker_actors.store.steps import Steps, Who, first_few

LOOKS_MAX = 3
"""After so many looks that somebody's write has overtaken the next one is taken under the lock."""
AGAIN_S = 0.05
AWAY_S = 10.0
WAIT_S = 60.0
LINK_WEIGHT = 1 << 10
"""Bytes that a link weighs in a step, beyond a breaker's first: a thousand of them are a step."""
END_WEIGHT = 1 << 10
"""The same of a notification that a breaker was deleted, of which it may have one for each channel."""
_UNDER_WAY = "another bulk replace of this project is under way"


class _Look(NamedTuple):
    """What there is and what to do about it. `claim`: what the project is claimed by before the first step, which is
    the claim of a process that is gone, if any."""

    rows: list[BreakerRow]
    plan: Plan
    steps: list[Plan]
    growth: int
    version: int
    claim: str | None


class _Step(NamedTuple):
    """A step that is done: its change rows, the steps that are left, and what the project is claimed by for them."""

    change_ids: Sequence[int] = ()
    left: Sequence[Plan] = ()
    claim: str | None = None


class BulkReplace:
    """One bulk replace, as `ConfigStore.replace_breakers` describes it."""

    def __init__(
        self, steps: Steps, place: Place, items: Sequence[BreakerItem], check: Check, breakers_max: int
    ) -> None:
        self._steps = steps
        self._who = Who("")
        self._breakers_max = breakers_max
        self._place = place
        self._project_id = place.project_id or ""
        self._items = items
        self._check = check

    async def run(self) -> Replaced:
        """Raises Unavailable where another one takes too long, or has taken over. Until the first step it is its
        caller's: who hangs up has asked for nothing."""
        self._who = await self._steps.turn_of(self._place.project_id or "", len(self._items))
        for _ in range(LOOKS_MAX):
            look = await self._look()
            done = await self._steps.whole(self._who, partial(self._carry_out, look)) if look.steps else []
            if done is not None:
                return _replaced(look, done)
        return await self._steps.whole(self._who, self._carry_out_locked)

    async def _carry_out(self, look: _Look) -> list[int] | None:
        """The ids of the change rows of all steps; None where the look is overtaken."""
        begun = await self._steps.write(self._who, partial(self._begin, look=look))
        return None if begun is None else await self._go_on_to_the_end(begun)

    async def _carry_out_locked(self) -> Replaced:
        look, begun = await self._steps.write(self._who, self._look_and_begin)
        return _replaced(look, await self._go_on_to_the_end(begun))

    async def _go_on_to_the_end(self, step: _Step) -> list[int]:
        """The ids of the change rows, those of the first step included."""
        change_ids = [*step.change_ids]
        while (claim := step.claim) is not None:
            self._steps.live.add(claim)
            try:
                step = await self._steps.write(self._who, partial(self._go_on, before=step))
            except Exception:
                await self._steps.write(self._who, partial(self._give_up, claim=claim))
                raise
            finally:
                self._steps.live.discard(claim)
            change_ids += step.change_ids
        return change_ids

    async def _look(self) -> _Look:
        """Outside of any lock, once no other replace of the project is under way."""
        clock = asyncio.get_running_loop().time
        begun = changed = clock()
        seen = gone = None
        while True:
            found = await self._steps.read(self._who, partial(self._see, gone=gone))
            if isinstance(found, _Look):
                return found
            now = clock()
            if now - begun > WAIT_S:
                raise Unavailable(_UNDER_WAY)
            if found != seen or found in self._steps.live:
                seen, changed = found, now
            elif now - changed > AWAY_S:
                gone = found
            await asyncio.sleep(AGAIN_S)

    def _see(self, c: Connection, gone: str | None = None) -> _Look | str:
        """The look, or the claim of a replace that is under way."""
        version, claim = _head(c, self._project_id)
        if claim is not None and claim != gone:
            return claim
        rows = load_breakers(c, self._project_id)
        named = [item.id for item in self._items if item.id is not None]
        foreign = taken_ids(c, named) - {row.id for row in rows}
        plan = plan_of(self._project_id, rows, self._items, foreign, self._place.now_ms, self._place.by)
        self._check(rows, len(plan.removed))
        ends = ends_each(c, self._project_id, [row.id for row in plan.removed])
        steps = list(_steps(plan, self._breakers_max - len(rows), room(c, self._project_id), ends))
        return _Look(rows, plan, steps, _growth(plan), version, claim)

    def _look_and_begin(self, c: Connection) -> tuple[_Look, _Step]:
        lock_project(c, self._project_id)
        look = self._see(c)
        if isinstance(look, str):
            raise Unavailable(_UNDER_WAY)
        return look, self._begin(c, look) or _Step()

    def _begin(self, c: Connection, look: _Look) -> _Step | None:
        """The first step, or None where the look is overtaken."""
        if not look.steps:
            return _Step()
        lock_project(c, self._project_id)
        if _head(c, self._project_id) != (look.version, look.claim):
            return None
        first, *left = _fitting(c, self._project_id, look.steps)
        if left:
            refuse_larger(c, self._project_id, look.growth)
            refuse_beyond(c, self._place, look.plan.notes())
        claim = _set_claim(c, self._project_id, left)
        return _Step(self._write(c, first) if left else carry_out(c, self._place, first), left, claim)

    def _go_on(self, c: Connection, before: _Step) -> _Step:
        lock_project(c, self._project_id)
        if _head(c, self._project_id)[1] != before.claim:
            raise Unavailable("another bulk replace of this project has taken over: a part of this one is done")
        step = _refreshed(c, self._project_id, before.left[0], self._place.now_ms)
        first, *left = _fitting(c, self._project_id, [step, *before.left[1:]])
        claim = _set_claim(c, self._project_id, left)
        return _Step(self._write(c, first), left, claim)

    def _write(self, c: Connection, step: Plan) -> list[int]:
        """One of several steps. The project may have been filled up by others since the look."""
        change_ids = carry_out(c, self._place, step, judged=True)
        if _growth(step) > 0:
            refuse_overfull(c, self._project_id)
        if len(step.created) > len(step.removed):
            mine = t.breakers.c.project_id == self._project_id
            if c.execute(select(func.count()).select_from(t.breakers).where(mine)).scalar_one() > self._breakers_max:
                raise too_many_breakers(self._breakers_max)
        return change_ids

    def _give_up(self, c: Connection, claim: str | None) -> None:
        """The project is free for others: the same replace again does what is left."""
        mine = (t.projects.c.id == self._project_id) & (t.projects.c.replacing == claim)
        c.execute(update(t.projects).where(mine).values(replacing=None))


def _head(c: Connection, project_id: str) -> tuple[int, str | None]:
    """Which set of breakers the project has, and what it is claimed by. Raises NotFound."""
    p = t.projects.c
    found = c.execute(select(p.breakers_version, p.replacing).where(p.id == project_id, p.deleted_ms.is_(None))).first()
    if found is None:
        raise NotFound("There is no such project.", {"project_id": project_id})
    return found.breakers_version, found.replacing


def _set_claim(c: Connection, project_id: str, left: Sequence[Plan]) -> str | None:
    """Claims the project for the steps that are left, by another word than before, or frees it where none is."""
    claim = new_id() if left else None
    c.execute(update(t.projects).where(t.projects.c.id == project_id).values(replacing=claim))
    return claim


def _replaced(look: _Look, change_ids: list[int]) -> Replaced:
    return Replaced(changed=bool(look.steps), rows=_outcome(look), change_ids=change_ids)


def _steps(plan: Plan, places: int, free: int, ends: Mapping[str, int]) -> Iterator[Plan]:
    """What is new first, what goes last: who is interrupted in between has more breakers than wanted, not fewer. But
    what has no room goes behind as much as has to go for it. `places`, `free`: breakers and bytes there is room for;
    `ends`: how many notifications go with a breaker."""
    going = deque(plan.removed)
    acts: list[tuple[str, Any, int]] = []
    added: list[tuple[str, Any, int, int, int]] = []
    for row in plan.created:
        added.append(("created", row, 1, breaker_bytes(row), breaker_bytes(row)))
    for pair in plan.edited:
        old, new = map(breaker_bytes, pair)
        added.append(("edited", pair, 0, new - old, new + old + _spread(pair[0])))
    for kind, thing, more, grows, size in added:
        while going and (places < more or free < grows):
            row = going.popleft()
            places, free = places + 1, free + breaker_bytes(row)
            acts.append(("removed", row, _removed_weight(row, ends)))
        places, free = places - more, free - grows
        acts.append((kind, thing, size))
    acts += [("removed", row, _removed_weight(row, ends)) for row in going]
    begin = 0
    while begin < len(acts):
        end = begin + first_few(size for _, _, size in islice(acts, begin, None))
        some = acts[begin:end]
        yield Plan(*([thing for kind, thing, _ in some if kind == name] for name in ("created", "edited", "removed")))
        begin = end


def _spread(row: BreakerRow) -> int:
    """What a change of a breaker weighs in a step as it goes to the logs of more routers than its own."""
    return LINK_WEIGHT * max(0, len(row.router_ids) - 1)


def _removed_weight(row: BreakerRow, ends: Mapping[str, int]) -> int:
    """What the end of a breaker weighs in a step."""
    return breaker_bytes(row) + _spread(row) + END_WEIGHT * ends.get(row.id, 0)


def _fitting(c: Connection, project_id: str, steps: Sequence[Plan]) -> list[Plan]:
    """The steps, the first of which is small enough as breakers and channels are now. Of one that is not a part of what
    goes is a step before the rest of it, so there is room for what is new."""
    first, *left = steps
    ends = ends_each(c, project_id, [row.id for row in first.removed])
    count = first_few(_removed_weight(row, ends) for row in first.removed)
    if count == len(first.removed):
        return [first, *left]
    return [Plan(removed=first.removed[:count]), first._replace(removed=first.removed[count:]), *left]


def _growth(plan: Plan) -> int:
    """How much more the project's configuration takes with a plan carried out; routers of removed breakers go with
    them."""
    made = sum(map(breaker_bytes, plan.created)) - sum(map(breaker_bytes, plan.removed))
    return made + sum(breaker_bytes(new) - breaker_bytes(old) for old, new in plan.edited)


def _refreshed(c: Connection, project_id: str, step: Plan, now_ms: int) -> Plan:
    """The step for breakers as they are by now: of what others changed since the look only those fields are changed
    that the replace changes; what they deleted stays deleted, what they made under a wanted id is changed."""
    now = {row.id: row for row in load_breakers(c, project_id, step.ids())}
    created = [row for row in step.created if row.id not in now]
    pairs = [(now[row.id], row) for row in step.created if row.id in now]
    for old, new in step.edited:
        if (current := now.get(old.id)) is not None:
            changed = {name: getattr(new, name) for name in EDITABLE if getattr(new, name) != getattr(old, name)}
            pairs.append((current, msgspec.structs.replace(current, **changed)))
    found = [(current, edited(current, wanted, now_ms)) for current, wanted in pairs]
    removed = [now[row.id] for row in step.removed if row.id in now]
    return Plan(created, [pair for pair in found if _differ(*pair)], removed)


def _differ(old: BreakerRow, new: BreakerRow) -> bool:
    return any(getattr(old, name) != getattr(new, name) for name in EDITABLE)


def _outcome(look: _Look) -> list[BreakerRow]:
    """The set that the replace makes of what it looked at, in creation order."""
    removed = {row.id for row in look.plan.removed}
    new = {row.id: row for _, row in look.plan.edited}
    rows = [new.get(row.id, row) for row in look.rows if row.id not in removed]
    return sorted([*rows, *look.plan.created], key=lambda row: row.created_ms)
