"""What people look through of a project: each breaker with its settings, routers, labels and state, in memory.

Loaded from the store for the first who asks, then followed through the feed; configuration that changed is loaded anew
when somebody asks. So a page of 10,000 breakers, sorted and filtered, costs a walk through memory and no query. Times
of moves are those at which they were heard of, to be told by the breaker itself where they are shown.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from api.lookup.shared_loads import Shared
from breaker_actors.core.model import Control, Override, Rule, StateWord, View
from breaker_actors.core.overlay import in_force
from breaker_actors.gateway.stored_states import stored_view
from breaker_actors.messages import EVERY_PROJECT, FeedEntry
from breaker_actors.store.base import ReplicaStore
from breaker_actors.store.rows import BreakerRow, RouterRow

KEPT_MAX = 50_000
"""Breakers held, or routers where a project has more of them, of all projects together; the project asked for longest
ago goes first."""
HEARD_MAX = 20_000
"""Moves kept while a project is loaded; of more it is loaded again."""
SLICE = 500
"""Breakers put in place before others have their turn."""
TEXT_MAX, WORDS_MAX = 4_000, 8
"""Characters of a breaker that are looked through, and different words that are looked for; what is beyond is not."""
PASSED_MAX = 2_000
"""Breakers that a search goes through before others have their turn: 2 ms."""
LOOKED_MAX = 500_000
"""Characters looked through, once for each word, before others have their turn: 2 ms."""
REST = 3.0
"""So many times as long as a load took what was loaded is told, though configuration has changed meanwhile; a small
project's load takes no time worth waiting for."""
RANK: dict[StateWord, int] = {"open": 0, "half_open": 1, "closed": 2}


class Shown(msgspec.Struct, kw_only=True):
    """One breaker. `routers`: names by id, in link order. `since_ms`: in its state since then, as callers see it.
    `created_ms`: when it was made. `text`: what is looked through; so many characters of it are `open` to whoever may
    see states, what follows is configuration."""

    id: str
    name: str
    rule: Rule
    control: Control
    metadata: Mapping[str, str]
    routers: Mapping[str, str]
    shadow_of: str | None
    state: StateWord
    allow_rate: float
    seq: int
    since_ms: int
    created_ms: int
    text: str
    open: int

    def override(self, now_ms: int) -> Override | None:
        return in_force(self.control, now_ms)


class Search(NamedTuple):
    """What is looked for; an empty field asks for nothing. `text`: words that all stand in a breaker's name, metric,
    `key=value`s or routers. `special`: one of SPECIAL. `whole`: its configuration is looked through, too."""

    text: str = ""
    state: str = ""
    metric: str = ""
    router_id: str = ""
    special: str = ""
    whole: bool = True


class Found(NamedTuple):
    """A page of what was found: `total` in all, of `there` in the project; `states`: how many of those found are in
    each state; `by_hand`: how many have an override."""

    rows: list[Shown]
    total: int
    there: int
    states: Mapping[StateWord, int]
    by_hand: int


class ProjectIndex:
    """The breakers of one project."""

    def __init__(self) -> None:
        self.rows: dict[str, Shown] = {}
        self.all_routers: list[RouterRow] = []
        self.stale = True
        self.took_s = self.loaded_s = 0.0
        self.metrics: list[str] = []
        """In order."""
        self.routers: dict[str, str] = {}
        """Names by id, in the order of names."""
        self._sorted: list[Shown] | None = None

    @property
    def size(self) -> int:
        return max(len(self.rows), len(self.all_routers))

    def put(self, rows: dict[str, Shown]) -> None:
        self.rows, self._sorted = rows, None
        self.metrics = sorted({row.rule.metric for row in rows.values()})
        routers = {id_: name for row in rows.values() for id_, name in row.routers.items()}
        self.routers = dict(sorted(routers.items(), key=lambda pair: pair[1]))

    def hear(self, entry: FeedEntry, now_ms: int) -> None:
        """Follows a state entry of the feed."""
        row = self.rows.get(entry.breaker_id)
        if row is None or entry.transition_seq < row.seq:
            return
        if row.state != entry.state:
            row.since_ms = now_ms
            self._sorted = None
        row.state, row.allow_rate, row.seq = entry.state, entry.allow_rate, entry.transition_seq

    async def find(
        self, search: Search, first: int, most: int, now_ms: int, rest: Callable[[], Awaitable[None]]
    ) -> Found:
        """Open ones first, then half_open; of one state the newest move first. `rest` lets others have their turn,
        before and between slices of the work; a small project has none."""
        if len(self.rows) > PASSED_MAX:
            await rest()
        if self._sorted is None:
            self._sorted = sorted(self.rows.values(), key=lambda row: (RANK[row.state], -row.since_ms, row.name))
        asks, found = [*_asks(search, now_ms)], self._sorted
        if asks:
            found = [row async for some in _slices(found, rest) for row in some if all(ask(row) for ask in asks)]
        if words := sorted(set(search.text.lower().split()), key=len, reverse=True)[:WORDS_MAX]:
            found = await _with_words(found, words, search.whole, rest)
        states, by_hand, wanted = Counter[StateWord](), 0, list[Shown]()
        async for some in _slices(found, rest):
            states.update(row.state for row in some)
            by_hand += sum(row.control.override is not None and row.override(now_ms) is not None for row in some)
            wanted += [row for row in some if row.state == search.state] if search.state else some
        return Found(wanted[first : first + most], len(wanted), len(self.rows), states, by_hand)


class ProjectIndexes:
    """Those that were asked for on this replica. `monotonic` and `now_ms`: the clock."""

    def __init__(self, store: ReplicaStore, monotonic: Callable[[], float], now_ms: Callable[[], int]) -> None:
        self._store, self._monotonic, self._now_ms = store, monotonic, now_ms
        self._of: OrderedDict[str, ProjectIndex] = OrderedDict()
        self._heard: dict[str, list[FeedEntry]] = {}
        self._loads: Shared[Shown] = Shared(lambda project_id, _: self._load(project_id))

    async def get(self, project_id: str) -> ProjectIndex:
        """The index of a project, loaded where it has to be."""
        index = self._of.setdefault(project_id, ProjectIndex())
        self._of.move_to_end(project_id)
        rested = self._monotonic() - index.loaded_s >= REST * index.took_s
        if index.stale and (rested or not index.loaded_s):
            await self._loads.get(project_id, None)
        return index

    def hear(self, entry: FeedEntry) -> None:
        """An entry of the feed; "config" of EVERY_PROJECT: anything may have changed."""
        if entry.kind == "config":
            for name, index in self._of.items():
                if entry.project_id in (EVERY_PROJECT, name):
                    index.stale = True
        elif entry.kind == "state" and entry.project_id in self._of:
            index = self._of[entry.project_id]
            if (heard := self._heard.get(entry.project_id)) is not None:
                heard.append(entry)
                if len(heard) > HEARD_MAX:
                    heard.clear()
                    index.stale = True
            index.hear(entry, self._now_ms())

    async def _load(self, project_id: str) -> dict[str, Shown]:
        index = self._of.setdefault(project_id, ProjectIndex())
        begun, index.stale = self._monotonic(), False
        self._heard[project_id] = []
        try:
            rows, routers = await self._read(project_id)
        except BaseException:
            index.stale = True
            raise
        finally:
            heard = self._heard.pop(project_id)
        index.put(rows)
        index.all_routers = routers
        for entry in heard:
            index.hear(entry, self._now_ms())
        index.loaded_s = self._monotonic()
        index.took_s = index.loaded_s - begun
        self._keep_few()
        return rows

    async def _read(self, project_id: str) -> tuple[dict[str, Shown], list[RouterRow]]:
        rows, _ = await self._store.list_breakers(project_id)
        all_routers = await self._store.list_routers(project_id)
        routers = {router.id: router.name for router in all_routers}
        states = {state.breaker_id: state for state in await self._store.stored_states(project_id)}
        found: dict[str, Shown] = {}
        for number, row in enumerate(rows, 1):
            if number % SLICE == 0:
                await asyncio.sleep(0)
            if state := states.get(row.id):
                view = stored_view(state, self._now_ms(), self._store.asides)
                found[row.id] = _shown(row, {id_: routers.get(id_, id_) for id_ in row.router_ids}, view)
        return found, sorted(all_routers, key=lambda router: router.name)

    def forget(self, project_id: str) -> None:
        """Something of the project was changed here: who asks next sees it."""
        if index := self._of.get(project_id):
            index.stale, index.loaded_s = True, 0.0

    def _keep_few(self) -> None:
        while (
            len(self._of) > 1
            and sum(max(len(index.rows), len(index.all_routers)) for index in self._of.values()) > KEPT_MAX
        ):
            self._of.popitem(last=False)


def _shown(row: BreakerRow, routers: Mapping[str, str], view: View) -> Shown:
    labels = [f"{key}={value}" for key, value in row.metadata.items()]
    told = "\n".join([row.id, row.name, *labels])[:TEXT_MAX].lower()
    text = "\n".join([told, row.rule.metric, row.rule.kind, *routers.values()])
    return Shown(
        id=row.id,
        name=row.name,
        rule=row.rule,
        control=row.controls,
        metadata=row.metadata,
        routers=routers,
        shadow_of=row.shadow_of,
        state=view.state,
        allow_rate=view.allow_rate,
        seq=view.transition_seq,
        since_ms=view.state_since_ms,
        created_ms=row.created_ms,
        text=text[:TEXT_MAX].lower(),
        open=len(told),
    )


async def _slices(rows: list[Shown], rest: Callable[[], Awaitable[None]]) -> AsyncIterator[list[Shown]]:
    """All of them, with a rest before each slice but the first one."""
    for start in range(0, len(rows), PASSED_MAX):
        if start:
            await rest()
        yield rows[start : start + PASSED_MAX]


async def _with_words(
    rows: list[Shown], words: list[str], whole: bool, rest: Callable[[], Awaitable[None]]
) -> list[Shown]:
    """Those that have all of the words."""
    found, looked = list[Shown](), 0
    for row in rows:
        text = row.text if whole else row.text[: row.open]
        if all(word in text for word in words):
            found.append(row)
        looked += len(words) * len(row.text)
        if looked > LOOKED_MAX:
            looked = 0
            await rest()
    return found


def _asks(search: Search, now_ms: int) -> Iterator[Callable[[Shown], bool]]:
    """What has to be true of a breaker that is looked for, whatever state it is in and words it has."""
    if search.metric:
        yield lambda row: row.rule.metric == search.metric
    if search.router_id:
        yield lambda row: search.router_id in row.routers
    if search.special:
        special = SPECIAL[search.special]
        yield lambda row: special(row, now_ms)


SPECIAL: dict[str, Callable[[Shown, int], bool]] = {
    "overridden": lambda row, now_ms: row.override(now_ms) is not None,
    "observed": lambda row, now_ms: row.control.mode == "observe",
    "shadow": lambda row, now_ms: row.shadow_of is not None,
}
"""Breakers that an operator, or who set them up, wants to see apart."""
