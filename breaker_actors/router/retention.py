"""How long a RouterActor's logs grow: a retention, a byte bound, a share of it for each project, and never past what a
breaker still has to read.

Bytes are counted as records come, and set right from the log when it is taken and in every round: free pages of a file
are used again and don't count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from breaker_actors.errors import LogDamaged
from breaker_actors.messages import LogFloor, ProjectShare, Refusal
from breaker_actors.wal.base import SampleLog, Stretch

EARLY_SHARE = 0.8
"""From this share of a byte bound on, records go before their retention is over."""
SHORTER = 0.75
ROW_BYTES = 64
AT_ONCE = 200
"""So many logs are looked at in one read."""
_SHORTEST_MS = 1_000


class LogRetention:
    """Trims logs and knows who may add to them: not to a slot at its byte bound, not for a project at its share of one,
    and where several organisations have routers not for one that leaves no more free than it uses: whoever comes finds
    room, however many projects others have.

    What lies in the log of a router that was deleted counts for its project as long as this process knew the router.
    Whose projects are is known from the first round on."""

    def __init__(self, log: SampleLog, retention_ms: int, bytes_max: int, share_max: int) -> None:
        self._log = log
        self._retention_ms = retention_ms
        self._bytes_max, self._share_max = bytes_max, share_max
        self._bytes: dict[str, int] = {}
        self._shares: dict[tuple[str, str], int] = {}
        # of routers with a log here: their project
        self._projects: dict[str, str] = {}
        self._routers: dict[str, int] = {}
        # of projects: their organisation; what of a slot each has, and which have routers there
        self._orgs: dict[str, str] = {}
        self._org_bytes: dict[tuple[str, str], int] = {}
        self._tenants: dict[str, set[str]] = {}
        self._trimmed: dict[str, int] = {}
        # of routers: no record that is kept came before
        self._oldest: dict[str, int] = {}
        self._is_running = False
        self.by_retention = self.by_size = 0

    def adopt(self, slot: str, router_id: str, project_id: str, size: int) -> None:
        """A router's log was taken: so many bytes of its project lie there."""
        before = self._routers.get(router_id, 0)
        self._projects[router_id], self._routers[router_id] = project_id, size
        self._grow(slot, project_id, size - before)

    def note(self, slot: str, router_id: str, payload_bytes: int) -> None:
        """A record was appended."""
        size = payload_bytes + ROW_BYTES
        self._routers[router_id] = self._routers.get(router_id, 0) + size
        self._grow(slot, self._projects.get(router_id, ""), size)

    def _grow(self, slot: str, project_id: str, size: int) -> None:
        self._bytes[slot] = self._bytes.get(slot, 0) + size
        self._shares[slot, project_id] = self._shares.get((slot, project_id), 0) + size
        org = (slot, self._orgs.get(project_id, ""))
        self._org_bytes[org] = self._org_bytes.get(org, 0) + size

    def refusal(self, slot: str, project_id: str) -> Refusal | None:
        """Why samples of a project are not taken into a slot now; None: they are."""
        if self._bytes.get(slot, 0) >= self._bytes_max:
            return "log_full"
        if self._shares.get((slot, project_id), 0) >= self._share_max:
            return "share_full"
        return "share_full" if self._used_of_room(slot, self._orgs.get(project_id, "")) >= 1 else None

    def _used_of_room(self, slot: str, org_id: str) -> float:
        """What an organisation has of a slot, as a part of what is left free; 0 where it is the only one there."""
        if not org_id or len(self._tenants.get(slot, ())) < 2:
            return 0.0
        return self._org_bytes.get((slot, org_id), 0) / max(1, self._bytes_max - self._bytes.get(slot, 0))

    @property
    def size_bytes(self) -> int:
        """What all logs take, as far as is known."""
        return sum(self._bytes.values())

    def limits(self) -> tuple[ProjectShare, ...]:
        """The projects that have used up their share of a slot, and organisations that leave no more free."""
        full = [(project_id, used) for (_, project_id), used in self._shares.items() if used >= self._share_max]
        return tuple(
            ProjectShare(project_id=project_id, limit="log_bytes", used=used, most=self._share_max)
            for project_id, used in full
            if project_id
        ) + tuple(
            ProjectShare(org_id=org_id, limit="log_bytes", used=used, most=self._bytes_max - self._bytes.get(slot, 0))
            for (slot, org_id), used in self._org_bytes.items()
            if self._used_of_room(slot, org_id) >= 1
        )

    async def run(self, floors: Sequence[LogFloor], gone: Sequence[tuple[str, str]], now_ms: int) -> int:
        """One round over all slots of these floors; answers how many records went. While one goes on the next is left
        out, with 0: whoever asks gives up waiting and asks anew, and knows more by then."""
        if self._is_running:
            return 0
        self._is_running = True
        try:
            return await self._run(floors, gone, now_ms)
        finally:
            self._is_running = False

    async def _run(self, floors: Sequence[LogFloor], gone: Sequence[tuple[str, str]], now_ms: int) -> int:
        for slot, router_id in gone:
            await self._log.forget(slot, router_id)
            for known in (self._trimmed, self._routers, self._projects, self._oldest):
                known.pop(router_id, None)
        self._projects.update({floor.router_id: floor.project_id for floor in floors if floor.project_id})
        self._learn_orgs(floors)
        by_slot: dict[str, list[LogFloor]] = {slot: [] for slot, _ in gone}
        for floor in floors:
            by_slot.setdefault(floor.slot, []).append(floor)
        return sum([await self._trim_slot(slot, some, now_ms) for slot, some in by_slot.items()])

    def _learn_orgs(self, floors: Sequence[LogFloor]) -> None:
        orgs = self._orgs | {floor.project_id: floor.org_id for floor in floors if floor.org_id}
        self._orgs = {id_: orgs[id_] for id_ in {*self._projects.values()} if id_ in orgs}
        self._tenants = {}
        for floor in floors:
            if floor.org_id:
                self._tenants.setdefault(floor.slot, set()).add(floor.org_id)

    async def _trim_slot(self, slot: str, floors: list[LogFloor], now_ms: int) -> int:
        """By retention; near a share and near the byte bound by ever shorter ones, so that the newest stay as long as
        there is room. A project near its share pays with its own logs, and so does an organisation."""
        dropped = await self._trim_older(slot, floors, now_ms - self._retention_ms, now_ms)
        self.by_retention += dropped
        await self._measure(slot)
        near = {p: list[LogFloor]() for s, p in self._shares if s == slot and self._used_of_share((s, p)) > EARLY_SHARE}
        for floor in floors if near else ():
            if (mine := near.get(self._projects.get(floor.router_id, ""))) is not None:
                mine.append(floor)
        for project_id, mine in near.items():
            dropped += await self._shorten(slot, mine, now_ms, partial(self._used_of_share, (slot, project_id)))
        for org_id in sorted(self._tenants.get(slot, ())):
            if self._used_of_room(slot, org_id) > EARLY_SHARE:
                mine = [floor for floor in floors if self._org_of(floor.router_id) == org_id]
                dropped += await self._shorten(slot, mine, now_ms, partial(self._used_of_room, slot, org_id))
        return dropped + await self._shorten(slot, floors, now_ms, lambda: self._bytes[slot] / self._bytes_max)

    def _org_of(self, router_id: str) -> str:
        return self._orgs.get(self._projects.get(router_id, ""), "")

    def _used_of_share(self, share: tuple[str, str]) -> float:
        return self._shares.get(share, 0) / self._share_max

    async def _shorten(self, slot: str, floors: list[LogFloor], now_ms: int, used: Callable[[], float]) -> int:
        """Ever shorter retentions until less than EARLY_SHARE of a bound is used."""
        dropped, keep_ms = 0, self._retention_ms
        while used() > EARLY_SHARE and keep_ms > 0:
            floors = [floor for floor in floors if not self._is_held_up(floor)]
            keep_ms = int(keep_ms * SHORTER) if keep_ms > _SHORTEST_MS else 0
            if early := await self._trim_older(slot, floors, now_ms - keep_ms, now_ms):
                dropped += early
                await self._measure(slot)
        self.by_size += dropped
        return dropped

    async def _trim_older(self, slot: str, floors: list[LogFloor], before_ms: int, now_ms: int) -> int:
        """Looks only at logs that may have a record so old which nobody needs: of thousands, few have."""
        due: list[tuple[LogFloor, int]] = []
        for floor in floors:
            old_ms = before_ms if floor.since_ms is None else min(before_ms, floor.since_ms)
            if old_ms >= self._oldest.get(floor.router_id, 0) and not self._is_held_up(floor):
                due.append((floor, old_ms))
        return sum([await self._trim_some(slot, due[n : n + AT_ONCE], now_ms) for n in range(0, len(due), AT_ONCE)])

    def _is_held_up(self, floor: LogFloor) -> bool:
        """Whether a log is trimmed up to where its readers are: nothing more of it goes before they have moved on."""
        return floor.offset is not None and floor.offset <= self._trimmed.get(floor.router_id, 0)

    async def _trim_some(self, slot: str, due: Sequence[tuple[LogFloor, int]], now_ms: int) -> int:
        """Trims logs up to these times, as far as their readers are; notes how old what is left is."""
        dropped, whole = 0, list[Stretch]()
        looked = [(floor.router_id, old_ms) for floor, old_ms in due]
        ends = await self._log.find_some(slot, looked)
        for (floor, _), found in zip(due, ends, strict=True):
            last = found if floor.offset is None else min(found, floor.offset)
            if last > self._trimmed.get(floor.router_id, 0):
                dropped += await self._log.trim(slot, floor.router_id, last + 1)
                self._trimmed[floor.router_id] = last
            if last == found:
                whole.append((floor.router_id, last, last + 1))
        times = dict(looked)
        while whole:
            read = await self._log.read_some(slot, whole, 1)
            for (router_id, _, _), kept in zip(whole, read, strict=False):
                if isinstance(kept, LogDamaged):  # its owner and its readers say so
                    self._oldest[router_id] = times[router_id] + 1
                else:
                    self._oldest[router_id] = kept[0].received_ms if kept else now_ms
            whole = whole[len(read) :]
        return dropped

    async def _measure(self, slot: str) -> None:
        """Sets the counts right by what the log says."""
        self._bytes[slot] = await self._log.size_bytes(slot)
        shares: dict[tuple[str, str], int] = {}
        for entry in await self._log.stock(slot):
            self._routers[entry.router_id] = entry.bytes
            share = (slot, self._projects.get(entry.router_id, ""))
            shares[share] = shares.get(share, 0) + entry.bytes
        self._shares = {share: size for share, size in self._shares.items() if share[0] != slot} | shares
        self._org_bytes = {of: size for of, size in self._org_bytes.items() if of[0] != slot}
        for (_, project_id), size in shares.items():
            org = (slot, self._orgs.get(project_id, ""))
            self._org_bytes[org] = self._org_bytes.get(org, 0) + size
