"""Who may hold how much of what a replica takes in at a time.

A request counts for several holders, each with a part of the whole. Before anything is proven it counts for its address
only; a known key (an ingest token is one), or a signature that holds, moves it to holders that nobody else can fill.
All that is unproven has half of the whole together, so what is proven always finds room: keyless ingest 6/16, requests
whose key is being looked up 2/16. These read no body and end with the look-up, so slow bodies of the same address do
not keep a key from it. What happens where a share is full: api/admission/room.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from breaker_actors.errors import Overloaded
from breaker_actors.store.rows import KeyRow

Holder = tuple[str, str]
"""What kind, and which."""
Holders = Sequence[Holder]
"""All that a request counts for. The first says most exactly who it is."""
EVERYBODY: Holder = ("", "")
"""Stands for all callers together."""

WHOLE = 16
SIXTEENTHS = {
    "asking": 2,
    "asker": 1,
    "keyless": 6,
    "address": 4,
    "project": 4,
    "sender": 2,
    "signed": 2,
    "signers": 4,
    "key": 2,
    "project keys": 2,
    "project and user keys": 3,
    "organisation": 4,
}
"""What a holder of a kind may hold, in sixteenths of the whole."""
ORGANISATIONS = {"organisation", "signers"}
"""Kinds that are an organisation's own."""
UNPROVEN = {"asking", "keyless"}
"""Kinds with one holder for all callers."""


def asking(address: str) -> Holders:
    """The holders of a request whose key, if it has one, is not known yet."""
    return ("asker", address), ("asking", "")


def keyless(address: str, project_id: str) -> Holders:
    """The holders of an ingest request; what nobody signed is never more than that."""
    return ("sender", f"{address} {project_id}"), ("address", address), ("project", project_id), ("keyless", "")


def signed(project_id: str, org_id: str) -> Holders:
    """The holders of an ingest request whose signature holds."""
    return ("signed", project_id), ("signers", org_id)


def keyed(key: KeyRow) -> Holders:
    """The holders of a request with a known key. Of an organisation's share project keys, which are on many machines,
    leave a part to user and admin keys, and both of them a part to admin keys, which alone can revoke the others. What
    comes with an ingest token shares with the signed ingest of its project."""
    if key.kind == "ingest":
        return ("key", key.id), *signed(key.project_id or "", key.org_id)
    holders = ("organisation", key.org_id)
    if key.kind == "admin":
        return ("key", key.id), holders
    limited = ("project and user keys", key.org_id)
    if key.kind == "user":
        return ("key", key.id), limited, holders
    return ("key", key.id), ("project keys", key.org_id), limited, holders


def owner(holders: Holders) -> Holder:
    """Who takes turns with others: the organisation, however many keys it has; of what is not proven the caller."""
    return holders[-1] if holders[-1][0] in ORGANISATIONS else holders[0]


class Shares:
    """Something that is held in parts, bounded in all and for each holder. `refused` counts what was not given. Every
    holder may have `holder_min`, however small its part."""

    def __init__(self, what: str, total_max: int, holder_min: int = 1) -> None:
        self._what = what
        self._total_max = total_max
        self._max = {kind: max(total_max * part // WHOLE, holder_min) for kind, part in SIXTEENTHS.items()}
        self._held: dict[Holder, int] = {}
        self.total = 0
        self.refused = 0

    def full(self, holders: Holders, n: int = 1) -> Holder | None:
        """The first that can't have `n` more: EVERYBODY, or one of these."""
        if self.total + n > self._total_max:
            return EVERYBODY
        return next((holder for holder in holders if self._held.get(holder, 0) + n > self._max[holder[0]]), None)

    def take(self, holders: Holders, n: int = 1) -> None:
        """Counts `n` more for each of these. Raises Overloaded at a bound, and then counts nothing."""
        if self.full(holders, n):
            self.refuse(holders, n)
        self.add(holders, n)

    def add(self, holders: Holders, n: int) -> None:
        """Counts `n` more for each of these, beyond a bound, too: of what has been done already."""
        self.total += n
        for holder in holders:
            self._held[holder] = self._held.get(holder, 0) + n

    def give_back(self, holders: Holders, n: int = 1) -> None:
        self.total -= n
        for holder in holders:
            left = self._held.get(holder, 0) - n
            if left:
                self._held[holder] = left
            else:
                self._held.pop(holder, None)

    def refuse(self, holders: Holders, n: int = 1) -> NoReturn:
        """Counts what was not given, and says whose bound it was."""
        self.refused += 1
        kind, _ = self.full(holders, n) or holders[0]
        whose = "all callers without a known key" if kind in UNPROVEN else "this caller"
        whose = "all callers together" if kind == EVERYBODY[0] else whose
        words = f"Too much is in flight for {whose}: {self._what}."
        raise Overloaded(words, {"limit": self._what, "retry_after_s": 1})
