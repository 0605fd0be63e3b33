"""Log files that are not as they were written, and the operator who makes them whole.

Everything is stopped while files are put back, taken away or recovered, as the pages for operators ask for; what a disk
does to single records it does in use, too. Whatever is lost must be named by `breakers recover`, unless nobody has read
it and what lies there is right in itself.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from api.cli.recover import make_whole
from breaker_actors.core.log_entries import DAMAGED, decode_lost
from tests.sim.storage import drive

if TYPE_CHECKING:
    from breaker_actors.messages import RouterAssignment
    from breaker_actors.wal.base import Loss
    from tests.sim.world import World

TABLES = ("records", "heads", "keys", "alive")
OPERATOR_S = (1.0, 12.0)
"""So long after a damage an operator comes."""


class Damage:
    """`planted`: by router, offsets of records that are damaged or missing and not yet recovered."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.planted: dict[str, set[int]] = {}
        self._recoveries = 0

    def strike(self, kind: str) -> None:
        """One of the kinds of faults that begin with `damage`."""
        faults = self._world.faults
        draws = faults.stream(f"{kind} at {self._world.loop.time()}")
        slots = sorted(set(self._world.checks.slots.values()))
        if not slots:
            return
        slot = draws.choice(slots)
        if self._is_damaged(slot):
            return  # one at a time: what was planted stays as it was
        if kind == "damage_copy":
            copy = sqlite3.connect(":memory:")
            self._world.checks.file(slot).backup(copy)
            self._world.loop.call_later(draws.uniform(0.5, 6.0), self._put_back, slot, copy, draws, self._recoveries)
        elif kind == "damage_missing":
            self._put_back(slot, None, draws, self._recoveries)
        else:
            self._one_record(slot, kind, draws)

    def _is_damaged(self, slot: str) -> bool:
        return any(self._world.checks.slots[router_id] == slot for router_id in self.planted)

    def _put_back(self, slot: str, copy: sqlite3.Connection | None, draws: Random, recoveries: int) -> None:
        """The file of a slot is what it was a while ago, or new and empty."""
        world = self._world
        if not world.faults.active or self._is_damaged(slot) or recoveries != self._recoveries:
            return
        world.stop_all(draws.uniform(0.05, 2.0))
        file = world.checks.file(slot)
        before = _ends(file)
        if copy is None:
            for table in TABLES:
                file.execute(f"DELETE FROM {table}")
        else:
            copy.backup(file)
            copy.close()
        ends = _ends(file)
        for router in self._assignments(before):
            end, read = ends.get(router.router_id, 0), router.reached_offset
            if read > end:
                self.planted[router.router_id] = set(range(end + 1, read + 1))
            world.checks.cut_off(router.router_id, end, read)
            world.checks.forget_breakers(router.router_id)
        if ends != before:
            self._happened("damage_missing" if copy is None else "damage_copy", slot, draws)

    def _one_record(self, slot: str, kind: str, draws: Random) -> None:
        world = self._world
        file = world.checks.file(slot)
        query = "SELECT router_id, offset, kind, payload FROM records ORDER BY router_id, offset"
        rows = file.execute(query).fetchall()
        if not rows:
            return
        if draws.random() < 0.5:
            world.stop_all(draws.uniform(0.05, 2.0))
        stand_ins = [row for row in rows if row[2] == DAMAGED]
        if stand_ins and draws.random() < 0.5:
            rows = stand_ins  # hardly ever met by chance
        router_id, offset, record_kind, payload = draws.choice(rows)
        place = "WHERE router_id = ? AND offset = ?"
        if kind == "damage_gone":
            file.execute(f"DELETE FROM records {place}", (router_id, offset))
        else:
            column, value = draws.choice([("payload", _flipped(payload, draws)), *_NUMBERS])
            file.execute(f"UPDATE records SET {column} = {value} {place}", (router_id, offset))
        first = _first(payload, offset) if record_kind == DAMAGED else offset
        self.planted.setdefault(router_id, set()).update(range(first, offset + 1))
        self._happened(kind, f"{router_id[:4]}@{offset}", draws)

    def _happened(self, kind: str, what: str, draws: Random) -> None:
        self._world.faults.hit(kind)
        self._world.trace("damages", kind, what)
        self._world.loop.call_later(draws.uniform(*OPERATOR_S), self._in_trouble, draws.uniform(0.05, 2.0))

    def _in_trouble(self, back_s: float) -> None:
        if self._world.faults.active:
            self.recover(back_s)

    def explains(self, event: Mapping[str, Any]) -> bool:
        """Whether a line of the log tells of what is damaged."""
        told = event["event"] == "set_aside" and event["reason"].startswith("LogDamaged")
        return told and event["thing"] in self.planted

    # the operator

    def recover(self, back_s: float) -> None:
        """`breakers recover --all --yes`, with everything stopped. What it names is what was damaged, all of it."""
        if not self.planted:
            return
        world = self._world
        world.stop_all(back_s)
        routers = self._assignments(sorted(world.checks.slots))
        for router_id in self.planted.keys() - {router.router_id for router in routers}:
            world.checks.gone(router_id)
        for router in routers:
            losses: list[Loss] = drive(make_whole(world.store, world.log, router, world.now_ms(), dry=False))
            self._check(router.router_id, router.log_slot, losses)
            if losses:
                world.trace("recovers", *losses)
                world.reach("the operator recovers a log")
            world.checks.recovered(router.router_id, router.log_slot, losses)
        self.planted.clear()
        self._recoveries += 1

    def _check(self, router_id: str, slot: str, losses: Iterable[Loss]) -> None:
        """It names what was damaged or split by a damaged view, as far as it is kept, and nothing else."""
        world = self._world
        planted = self.planted.get(router_id, set())
        planted |= world.checks.split_by(router_id, planted)
        named = {offset for loss in losses for offset in range(loss.first, loss.last + 1)}
        ((floor,),) = world.checks.file(slot).execute(
            "SELECT coalesce(max(floor), 0) FROM heads WHERE router_id = ?", (router_id,)
        )
        if false := {offset for offset in named - planted if offset >= floor}:
            world.fail(f"recover names records {sorted(false)} of router {router_id}, which were whole")
        if missed := {offset for offset in planted - named if offset >= floor}:
            world.fail(f"recover does not name records {sorted(missed)} of router {router_id}")

    def _assignments(self, router_ids: Iterable[str]) -> list[RouterAssignment]:
        found: list[RouterAssignment] = drive(self._world.store.router_assignments(sorted(router_ids)))
        return found


def _ends(file: sqlite3.Connection) -> dict[str, int]:
    return dict(file.execute("SELECT router_id, offset FROM heads"))


_NUMBERS = (("received_ms", "received_ms + 1"), ("received_ms", "0"), ("checksum", "checksum + 1"), ("before", "1"))


def _first(payload: bytes, offset: int) -> int:
    """The first record that one stands for; it may be damaged itself, where nobody reads it any more."""
    with suppress(msgspec.MsgspecError):
        return decode_lost(payload).first
    return offset


def _flipped(payload: bytes, draws: Random) -> str:
    """The payload with one bit changed, as SQL has it."""
    changed = bytearray(payload)
    bit = draws.randrange(8 * len(changed))
    changed[bit // 8] ^= 1 << bit % 8
    return f"x'{changed.hex()}'"
