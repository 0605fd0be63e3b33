"""Writes that are done once for each Idempotency-Key: the answer is kept in the transaction of the write itself.

So a crash between them can't make a thing twice. Serial writes take turns: of several equal requests at once the first
does the work, the others find its answer. Answers may hold secrets that are shown only once, and are sealed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, TypeVar

import msgspec
from sqlalchemy import BigInteger, ColumnElement, Connection, cast, delete, func, insert, select

from breaker_actors.errors import IdempotencyKeyReused
from breaker_actors.store import tables as t
from breaker_actors.store.aging import Aging
from breaker_actors.store.quotas import add, shares, used, weight
from breaker_actors.store.rows import KEPT_MS, Once, Repeated
from breaker_actors.store.steps import Who

T = TypeVar("T")

KEYS_MAX = 10_000
"""Keys of an organisation; beyond it, or where their answers take more than its share of bytes (Shares.answer_bytes),
the oldest are forgotten early, counted in Once.forgotten."""
ANSWER_BYTES_MAX = 1 << 18
"""An answer that tells more of other things is not kept, but told anew from the id of what was made."""
FORGOTTEN_AT_ONCE = 100
PRUNED_MAX = 20_000

_I = t.idempotency_keys.c
_WEIGHT = weight(_I.sealed, _I.operation, _I.key)


class _Kept(msgspec.Struct, frozen=True):
    """What is sealed of a write: the fingerprint of its request, and what it was answered with, or the id of what it
    made (`thing`) where the answer was too large."""

    fingerprint: str
    status: int
    body: str
    change_ids: list[int]
    thing: str | None = None


class Onces(Aging):
    async def write_once(
        self,
        who: Who,
        once: Once | None,
        work: Callable[[Connection], T],
        shown: Callable[[Connection, T], Any] | None = None,
        large: Callable[[Connection, T], str | None] | None = None,
    ) -> T:
        """Runs `work` in one transaction, in the turn of `who`, and keeps its answer; without `once` it is a write like
        any other. Raises
        Repeated when it was done before, IdempotencyKeyReused when that was for another request. `shown` fetches what
        the answer says beside the result. `large` says the id of what was made where that would be too much to keep:
        then nothing of it is fetched or encoded here."""

        def attempt(c: Connection) -> T:
            if once is None:
                return work(c)
            self._look(c, once)
            made = work(c)
            thing = None if large is None else large(c, made)
            answer = "" if thing is not None else once.answer(made if shown is None else shown(c, made))
            self._keep(c, once, made, answer, thing)
            return made

        return await self._steps.write_small(who, attempt)

    async def prune_idempotency_keys(self, before_ms: int) -> int:
        is_old = _I.inserted_ms < before_ms
        old = select(_I.number).where(is_old).order_by(_I.inserted_ms).limit(PRUNED_MAX)
        numbers = await self._db.read(lambda c: c.execute(old).scalars().all())

        def forget(c: Connection, some: Sequence[int]) -> int:
            return forget_answers(c, _I.number.in_(some) & is_old)

        forgotten, is_done = await self._in_steps(numbers, forget)
        self._note_end("answers", is_done and len(numbers) < PRUNED_MAX)
        return forgotten

    def _look(self, c: Connection, once: Once) -> None:
        mine = (_I.org_id == once.org_id) & (_I.operation == once.operation) & (_I.key == once.key)
        found = c.execute(select(_I.sealed, _I.inserted_ms).where(mine)).first()
        if found is None:
            return
        if found.inserted_ms <= once.now_ms - KEPT_MS:
            forget_answers(c, mine)
            return
        kept = msgspec.json.decode(self._box.unseal(found.sealed, _place(once)), type=_Kept)
        if kept.fingerprint != once.fingerprint:
            raise IdempotencyKeyReused
        raise Repeated(kept.status, kept.body, kept.change_ids, kept.thing)

    def _keep(self, c: Connection, once: Once, made: Any, answer: str, thing: str | None) -> None:
        change_ids = made[1] if isinstance(made, tuple) and isinstance(made[1], list) else []
        kept = _Kept(once.fingerprint, once.status, answer, change_ids, thing)
        values = {
            "org_id": once.org_id,
            "project_id": once.project_id,
            "operation": once.operation,
            "key": once.key,
            "sealed": self._box.seal(msgspec.json.encode(kept).decode(), _place(once)),
            "inserted_ms": once.now_ms,
        }
        size = c.execute(insert(t.idempotency_keys).values(values).returning(_WEIGHT)).scalar_one()
        add(c, once.org_id, "answers", size)
        once.forgotten = _forget_beyond(c, once.org_id)


def forget_answers(c: Connection, which: ColumnElement[bool]) -> int:
    """Forgets keys and their answers; how many."""
    sizes = select(_I.org_id, cast(func.sum(_WEIGHT), BigInteger)).where(which).group_by(_I.org_id).order_by(_I.org_id)
    for org_id, size in c.execute(sizes).all():
        add(c, org_id, "answers", -size)
    return c.execute(delete(t.idempotency_keys).where(which)).rowcount


def _forget_beyond(c: Connection, org_id: str) -> int:
    """Forgets the oldest keys of an organisation beyond KEYS_MAX, and beyond its bytes; how many. The newest stays,
    whatever its size: a key that is forgotten with its own request would make the thing twice."""
    last = select(func.max(_I.number)).where(_I.org_id == org_id).scalar_subquery()
    mine = (_I.org_id == org_id) & (_I.number < last)
    newest = c.execute(select(_I.number).where(mine).order_by(_I.number.desc()).limit(1).offset(KEYS_MAX - 1)).scalar()
    gone = 0 if newest is None else forget_answers(c, mine & (_I.number <= newest))
    while (much := used(c, org_id, "answers") - shares(c).answer_bytes) > 0:
        oldest = c.execute(select(_I.number, _WEIGHT).where(mine).order_by(_I.number).limit(FORGOTTEN_AT_ONCE)).all()
        if not oldest:
            break
        sums = list(accumulate(size for _, size in oldest))
        enough = next((i for i, total in enumerate(sums) if total >= much), len(sums) - 1)
        gone += forget_answers(c, mine & (_I.number <= oldest[enough][0]))
    return gone


def _place(once: Once) -> str:
    """What an answer is sealed for."""
    return f"repeated answer:{once.org_id}:{once.operation}:{once.key}"
