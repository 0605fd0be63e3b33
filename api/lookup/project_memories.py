"""What is remembered of each project apart, bounded in all: who floods the memory forgets its own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from api.protocols.memory import Memory

T = TypeVar("T")

IDLE_S = 600.0
"""Projects not asked for so long are forgotten first."""
DECODERS_BYTES_MAX = 256 << 20
"""What the decoders of a replica remember of all projects; of one as much as a Memory holds, 50 MB of a protocol."""


@dataclass(slots=True)
class _Entry(Generic[T]):
    value: T
    org_id: str
    weight: int
    used_s: float


class ProjectMemories(Generic[T]):
    """A value for each project, bounded in the weight of all. Beyond it those go that were not asked for long; then the
    heaviest project of the organisation whose projects are heaviest together, however many it has; of several the one
    used longest ago. `idle_s`: so long is long; `cut`: how many went that were in use."""

    def __init__(self, weight_max: int, monotonic: Callable[[], float], idle_s: float = IDLE_S) -> None:
        self._weight_max, self._monotonic, self._idle_s = weight_max, monotonic, idle_s
        # all three: used last at the end
        self._entries: OrderedDict[str, _Entry[T]] = OrderedDict()
        self._orgs: dict[str, OrderedDict[str, int]] = {}
        self._weights: OrderedDict[str, int] = OrderedDict()  # of organisations
        self._weight = self.cut = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def weight(self) -> int:
        return self._weight

    def get(self, project_id: str) -> T | None:
        entry = self._entries.get(project_id)
        if entry is None:
            return None
        self._use(project_id, entry)
        return entry.value

    def put(self, org_id: str, project_id: str, value: T, weight: int) -> None:
        """Remembers a value, or what it weighs now."""
        entry = self._entries.get(project_id)
        if entry is not None and entry.org_id == org_id:
            self._weigh(project_id, entry, weight)
            entry.value = value
        else:
            self.drop(project_id)
            self._entries[project_id] = entry = _Entry(value, org_id, 0, 0.0)
            self._weigh(project_id, entry, weight)
        self._use(project_id, entry)
        while self._weight > self._weight_max:
            self._make_room(entry.used_s)

    def drop(self, project_id: str) -> None:
        if (entry := self._entries.get(project_id)) is None:
            return
        self._weigh(project_id, entry, 0)
        del self._entries[project_id], self._orgs[entry.org_id][project_id]
        if not self._orgs[entry.org_id]:
            del self._orgs[entry.org_id], self._weights[entry.org_id]

    def _use(self, project_id: str, entry: _Entry[T]) -> None:
        entry.used_s = self._monotonic()
        self._entries.move_to_end(project_id)
        self._orgs[entry.org_id].move_to_end(project_id)
        self._weights.move_to_end(entry.org_id)

    def _weigh(self, project_id: str, entry: _Entry[T], weight: int) -> None:
        more, entry.weight = weight - entry.weight, weight
        self._weight += more
        self._weights[entry.org_id] = self._weights.get(entry.org_id, 0) + more
        self._orgs.setdefault(entry.org_id, OrderedDict())[project_id] = weight

    def _make_room(self, now_s: float) -> None:
        oldest = next(iter(self._entries))
        if self._entries[oldest].used_s < now_s - self._idle_s:
            self.drop(oldest)
            return
        projects = self._orgs[max(self._weights, key=self._weights.__getitem__)]
        self.drop(max(projects, key=projects.__getitem__))
        self.cut += 1


class DecoderMemories:
    """What the decoders of one replica remember, of each project apart."""

    def __init__(self, monotonic: Callable[[], float], bytes_max: int = DECODERS_BYTES_MAX) -> None:
        self.of: ProjectMemories[Memory] = ProjectMemories(bytes_max, monotonic)

    def lend(self, org_id: str, project_id: str) -> Memory:
        """A project's, for one request, which says what it weighs when it has read."""
        memory = self.of.get(project_id)
        if memory is None:
            memory = Memory()
            self.of.put(org_id, project_id, memory, memory.weight)
        return memory

    def weigh(self, org_id: str, project_id: str, memory: Memory) -> None:
        """Counts what a request has left in its memory, unless that is forgotten already."""
        if self.of.get(project_id) is memory:
            self.of.put(org_id, project_id, memory, memory.weight)
