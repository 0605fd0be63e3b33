"""What a test says, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from breaker_actors.core.log_entries import Gap
from breaker_actors.core.model import Control, Record, Rule
from breaker_actors.core.rules import parse_rule
from pipelines.columns import Samples
from pipelines.rules.model import Declared, Place
from pipelines.ruletests.arrivals import Arrivals
from pipelines.ruletests.expectations import Expected
from pipelines.ruletests.times import offset, written


@dataclass(frozen=True, slots=True)
class Happening:
    """What happens beside samples: an outage, mode and override from then on, or fields of the rule from then on.
    `record`: it comes before the samples of this record, counted from 0; None: before those of its instant."""

    at_ms: int
    what: Gap | Control | Mapping[str, Any]
    record: int | None = None

    def row(self, samples: Samples) -> int:
        """Before which of the samples it comes."""
        if self.record is None or samples.record is None:
            return int(np.searchsorted(samples.at, self.at_ms, "left"))
        return int(np.searchsorted(samples.record, self.record, "left"))


@dataclass(frozen=True, slots=True)
class Case:
    """One test. `begin`: how the breaker stands at the start; None: it is created then. Samples from before the start
    only fill its window. `dated`: the file says when it starts, so its times are told as instants."""

    name: str
    place: Place
    breakers: tuple[Declared, ...]
    start_ms: int
    until_ms: int
    dated: bool
    begin: Record | None
    arrivals: Arrivals
    happenings: tuple[Happening, ...]
    expect: Mapping[str, Sequence[Expected]]

    def time(self, ms: int) -> str:
        """A time as the test would say it."""
        return written(ms) if self.dated else offset(ms - self.start_ms)


Course = tuple[Rule, ...]
"""A rule, and what each of a test's changes makes of it, one after the other."""


def course(case: Case, rule: Rule) -> Course:
    """The rules in force, in order. Raises Invalid for a change that makes none."""
    rules = [rule]
    for one in case.happenings:
        if isinstance(one.what, Mapping):
            rules.append(parse_rule(one.what, rules[-1]))
    return tuple(rules)
