"""Which rules a breaker had, as its routers' logs tell of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from breaker_actors.clock import moment
from breaker_actors.core.log_entries import BREAKER, BreakerSet, decode_breaker
from breaker_actors.core.model import Control, Rule
from breaker_actors.messages import RouterRef
from breaker_actors.store.rows import BreakerRow
from breaker_actors.wal.base import SampleLog
from breaker_actors.wal.reader import LogReader
from pipelines.candidates import RULE_FIELDS
from pipelines.sources.files import Born, ControlSet, InForce

RULES_SHOWN = 5
FIRST_VERSION = 1
"""Of a breaker that was never changed."""


@dataclass(slots=True)
class SettingsRead:
    """Follows the settings of one breaker through the logs of its routers, each of which has them."""

    was_born: bool = False
    in_force: InForce | None = None
    _version: int = 0
    _control: Control = field(default_factory=Control)

    def items(self, settings: BreakerSet, received_ms: int) -> list[Born | ControlSet | InForce]:
        """What one record of settings changes: the rule first, then mode and override."""
        if settings.version <= self._version:
            return []
        self._version = settings.version if settings.rule is not None else 0
        before, self._control = self._control, settings.control or Control()
        if settings.created:
            self.was_born = True
            return [Born(received_ms, settings.after_seq, settings.control)]
        found: list[Born | ControlSet | InForce] = []
        if settings.rule is not None and (self.in_force is None or self.in_force.rule != settings.rule):
            self.in_force = InForce(received_ms, settings.rule)
            found.append(self.in_force)
        if self._control != before:
            found.append(ControlSet(received_ms, self._control))
        return found


async def rules_in_force(
    log: SampleLog, routers: Sequence[RouterRef], rows: Sequence[BreakerRow]
) -> dict[str, list[InForce]]:
    """The rules of breakers that their routers' logs tell of, in order of time; where they tell of none, the present
    one. What changed a name or a link only is no change. What the rule was before the first that is told, is not known:
    it is taken to be that one."""
    told: dict[str, list[tuple[int, int, Rule]]] = {row.id: [] for row in rows if row.version != FIRST_VERSION}
    reader = LogReader(log)
    for router in routers if told else ():
        async for record in reader.after(router, router.since_offset, router.until_offset or 0):
            if record.kind != BREAKER:
                continue
            settings = reader.attempt(partial(decode_breaker, record.payload), record)
            if settings is not None and settings.rule is not None and settings.breaker_id in told:
                told[settings.breaker_id].append((settings.version, record.received_ms, settings.rule))
    return {row.id: _course(told.get(row.id, ()), row) for row in rows}


def _course(told: Sequence[tuple[int, int, Rule]], row: BreakerRow) -> list[InForce]:
    found: list[InForce] = []
    for _, received_ms, rule in sorted(told, key=lambda one: one[:2]):
        if not found or found[-1].rule != rule:
            found.append(InForce(received_ms, rule))
    return found or [InForce(row.created_ms, row.rule)]


def course_of(rules: Sequence[InForce]) -> str:
    """Which rules were in force until when, in a sentence: of their fields those that changed."""
    stays = [one.rule for one in rules]
    fields = [name for name in RULE_FIELDS if len({str(getattr(rule, name)) for rule in stays}) > 1]
    words = [", ".join(f"{name} {_worded(getattr(rule, name))}" for name in fields) for rule in stays]
    until = [f"{word} until {_instant(after.at_ms)}" for word, after in zip(words, rules[1:], strict=False)]
    left_out = "..., " if len(until) > RULES_SHOWN else ""
    times = f"{len(until)} time{'s' * (len(until) > 1)}"
    shown = "; ".join([*until[-RULES_SHOWN:], f"{words[-1]} since"])
    return f"the breaker's rule was changed {times}; its own is replayed as it was in force: {left_out}{shown}"


def _instant(ms: int) -> str:
    return moment(ms).isoformat(" ", "milliseconds").removesuffix("+00:00")


def _worded(value: object) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)
