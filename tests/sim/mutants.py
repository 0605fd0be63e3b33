"""Bugs planted into the code under test, as changes of its text: what the simulation must be able to see.

A text that is not there any more is an error: the mutant has to follow the code.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

HEAD = "from __future__ import annotations\n"


class Mutant(NamedTuple):
    """`where`: module and qualified name of a function, in which `old` (found once) becomes `new`."""

    where: str
    old: str
    new: str


CORE = {
    "minimum duration off by one tick": Mutant(
        "breaker_actors.core.decisions:decide",
        "now >= schedule.ripe_ms()",
        "now >= schedule.ripe_ms() + schedule.rule.eval_interval_ms",
    ),
    "floor not moved at half_open": Mutant(
        "breaker_actors.core.decisions:_half_open",
        '"evidence_floor_ms": now',
        '"evidence_floor_ms": record.evidence_floor_ms',
    ),
    "backoff doubles once too often": Mutant(
        "breaker_actors.core.schedule:Schedule.open_wait", "base << min(failed,", "base << min(failed + 1,"
    ),
    "tick grid not restarted at a transition": Mutant(
        "breaker_actors.core.moves:Mover._move", "grid_ms=now", "grid_ms=before.grid_ms"
    ),
    "late samples count as on time after a restore": Mutant(
        "breaker_actors.core.evidence:Evidence.load",
        "self.window.add(batch,",
        "self.window.add(Batch(batch.ts_ms * 0 + received_ms, batch.value, batch.ok),",
    ),
    "counted samples count once after a restore": Mutant(
        "breaker_actors.core.evidence:Evidence.load",
        "self.window.add(batch,",
        "self.window.add(Batch(batch.ts_ms, batch.value, batch.ok),",
    ),
    "gap ignored": Mutant(
        "breaker_actors.core.machine:Breaker.gap", "effects = self.fire(from_ms)", "return self.fire(from_ms)"
    ),
    "peak not reset": Mutant("breaker_actors.core.evidence:Evidence._assess_streak", "self.peak = self.streak", "pass"),
    "restore loses passes": Mutant(
        "breaker_actors.core.machine:Breaker.restore",
        "return cls(rule, record,",
        "return cls(rule, replace(record, passes=0),",
    ),
    "one sample more than min_count is asked for": Mutant(
        "breaker_actors.core.evidence:Evidence.assess",
        "n < self.need or now < self.ready_ms",
        "n <= self.need or now < self.ready_ms",
    ),
    "ramp not announced": Mutant(
        "breaker_actors.core.moves:Mover._carry_out",
        "() if rate == before else (RateChange(ts_ms=now, allow_rate=rate),)",
        "()",
    ),
}
"""Bugs in what a breaker decides: the replay by the core has most of them, too, so the naive model has to tell."""

SHELL = {
    "no epoch is looked at": (
        Mutant(
            "breaker_actors.wal.head:judge", "or (head.epoch, head.generation) != (record.epoch, record.generation)", ""
        ),
        Mutant(
            "breaker_actors.wal.sqlite_file:Owners.are",
            "self._of.get(router_id) == (epoch, owner)",
            "True",
        ),
        Mutant(
            "breaker_actors.store.operational.journal:_advance",
            '"under": head.epoch',
            '"under": c.execute(select(t.journals.c.epoch).where(t.journals.c.shard == head.shard)).scalar()',
        ),
    ),
    "no duplicate keys": (Mutant("breaker_actors.router.group:Group._known", "if key in router.keys:", "if False:"),),
    "no compare-and-set of transition_seq": (
        Mutant(
            "breaker_actors.store.operational.journal:_judge",
            "if fence is not None and (fence.epoch, fence.transition_seq) == (commit.epoch, wanted):",
            "if fence is not None:",
        ),
    ),
}
"""Protections between processes taken away."""

CLOCK = {
    "a step of the clock is believed at once": Mutant(
        "breaker_actors.clock:SteadyClock._lasts", "at_s - self._doubted[1] >= STEP_LASTS_S", "True"
    ),
    "samples are taken into a log that is ahead of the clock": Mutant(
        "breaker_actors.router.group:Group._next_ms", "return max(last_ms, router.stamp(self._now_ms))", "return 0"
    ),
    "a watermark is given whatever the clock says": Mutant(
        "breaker_actors.router.host:RouterHost.advance_watermark", "or self._ahead.is_far(upto_ms, now)", ""
    ),
}
"""Protections against clocks that are wrong taken away."""

DISK = {
    "checksums are not looked at": Mutant(
        "breaker_actors.wal.chain:fault", 'else "is not what was written"', 'else ""'
    ),
    "a log that is too short is taken over": Mutant(
        "breaker_actors.router.group:shortfall", "if offset >= read", "if offset >= 0"
    ),
    "a missing record is passed over": Mutant(
        "breaker_actors.wal.chain:losses", "first, last = first or next_, begin - 1", "pass"
    ),
    "what stands for lost records is believed": Mutant(
        "breaker_actors.wal.chain:_begin", " and not fault(row, extent.unchained)", ""
    ),
}
"""Protections against damaged files taken away."""


_OWN_CLOCK = '__import__("tests.sim.process", fromlist=["RUNS_IN"]).RUNS_IN.get().clock.now_ms()'
_CONTROL = "settings.control or Control()"
HAND = {
    "an override comes back after a restart": Mutant(
        "breaker_actors.breaker.host:restore_record",
        "restored(stored())",
        "restored(msgspec.structs.replace(stored(), override=control.override))",
    ),
    "an override ends by the clock of its breaker's owner": Mutant(
        "breaker_actors.breaker.hosted:HostedBreaker._set",
        f"control({_CONTROL}, now_ms)",
        "control((lambda c: c if c.override is None else msgspec.structs.replace(c, override=msgspec.structs.replace("
        f"c.override, until_ms=c.override.until_ms - c.override.since_ms + {_OWN_CLOCK})))({_CONTROL}), now_ms)",
    ),
    "a change of settings drops the override": Mutant(
        "breaker_actors.breaker.hosted:HostedBreaker._set",
        f"control({_CONTROL}, now_ms)",
        "control((lambda c: c if c.override is None or c.override.version == settings.version"
        f" else msgspec.structs.replace(c, override=None))({_CONTROL}), now_ms)",
    ),
    "an override that ends inside an outage ends behind it": Mutant(
        "breaker_actors.core.machine:Breaker.gap", "if override_end is not None and override_end <= end:", "if False:"
    ),
    "a ramp behind an override goes by old evidence": Mutant(
        "breaker_actors.core.moves:Mover._show",
        '"evidence_floor_ms": now}',
        '"evidence_floor_ms": after.evidence_floor_ms}',
    ),
    "moves by hand are not numbered": Mutant(
        "breaker_actors.core.moves:Mover._show", "seq, since = seq + 1, now", "seq, since = seq, now"
    ),
    "the machine's state is stored as the one that callers see": Mutant(
        "breaker_actors.breaker.hosted:HostedBreaker.commit", "state=shown.state", "state=record.state"
    ),
    "streams are told of hidden moves": Mutant(
        "breaker_actors.messages:Commit.seen",
        "any(event.hidden_by is None for event in self.events)",
        "bool(self.events)",
    ),
}
"""Bugs in what operators make of breakers."""

MUTES = {
    "what is held is released by the machine's clock": Mutant(
        "breaker_actors.notify.notifier:NotifierHost._survey",
        "self._mutes.work(self._epoch, now)",
        f"self._mutes.work(self._epoch, {_OWN_CLOCK})",
    ),
    "a muted trip is sent": Mutant(
        "breaker_actors.store.outbox.muting:Births._trip",
        "if mute_id or not is_known:",
        "if not is_known:",
    ),
    "a recover of a sent trip is held back": Mutant(
        "breaker_actors.store.outbox.muting:Births.judge",
        'elif row["incident"] is None and before is None:',
        "else:",
    ),
    "a recover behind a second trip that is held is not told": Mutant(
        "breaker_actors.store.outbox.muting:Births.judge",
        'elif before is not None and (row["channel_id"], row["incident"]) not in self._told:',
        "elif before is not None:",
    ),
    "what is held is released whoever else mutes it": Mutant(
        "breaker_actors.store.outbox.held:_Look.judge",
        "self._judge_of(row).last_to_end(",
        "Judge([one for one in live_mutes(self._c, [row.project_id]).get(row.project_id, ()) if one.id == row.mute_id],"
        " self._routers.of, self._effort).last_to_end(",
    ),
    "what stands is not sent again": Mutant(
        "breaker_actors.notify.renewals:Renewals.begin",
        "queue.renew_ms, queue.renewed, queue.failures = now, 0, 0",
        "pass",
    ),
    "an end of a mute is not looked at": Mutant(
        "breaker_actors.notify.mute_keeper:MuteKeeper._work",
        "whole = changes != self._changes or now >= self._look_ms",
        "whole = self._changes < 0",
    ),
}
"""Bugs in what people are told, and what is kept back."""

ALERTED = {
    "hidden moves are alerted": (
        Mutant("breaker_actors.store.operational.journal:write_alerts", ' if event["hidden_by"] is None]', "]"),
        Mutant("breaker_actors.store.operational.journal:_commit", ' if event.hidden_by != "override"', ""),
    )
}

SYMPTOMS = {
    "a step of the clock is believed at once": r"a step of .* is believed after",
    "samples are taken into a log that is ahead of the clock": r"took samples .* further ahead",
    "a watermark is given whatever the clock says": r"a watermark was given .* further ahead",
    "an override comes back after a restart": r"ends an override at \d+ that was to end at",
    "an override ends by the clock of its breaker's owner": r"begins an override .*, the logs tell|that was to end at",
    "a change of settings drops the override": r"its log says",
    "an override that ends inside an outage ends behind it": r"ends an override at|when none was in force",
    "a ramp behind an override goes by old evidence": r"NaiveModel: ",
    "moves by hand are not numbered": r"which was never stored|the owners of .* do not answer",
    "the machine's state is stored as the one that callers see": r"the record says",
    "streams are told of hidden moves": r"the feed tells .*, which callers see nothing of",
    "hidden moves are alerted": r"outbox: ",
    "what is held is released by the machine's clock": r"by a clock that is ahead",
    "a muted trip is sent": r"is not held, muted by",
    "a recover of a sent trip is held back": r"ends an outage that was told",
    "a recover behind a second trip that is held is not told": r"ends an outage that was told",
    "what is held is released whoever else mutes it": r"is released at \d+, muted by",
    "what stands is not sent again": r"believes the contrary",
    "an end of a mute is not looked at": r"deliveries wait, \d+ are held|\(held\) is at rest, behind mute",
}
"""What each of them is found by."""

_SINGLE = {**CORE, **CLOCK, **DISK, **HAND, **MUTES}
ALL: dict[str, tuple[Mutant, ...]] = {**{name: (mutant,) for name, mutant in _SINGLE.items()}, **SHELL, **ALERTED}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """The code has the bug within the block."""
    with ExitStack() as stack:
        for mutant in ALL[name]:
            stack.enter_context(_planted(mutant))
        yield


@contextmanager
def _planted(mutant: Mutant) -> Iterator[None]:
    module_name, _, path = mutant.where.partition(":")
    module = importlib.import_module(module_name)
    *outer, name = path.split(".")
    owner: Any = module
    for part in outer:
        owner = getattr(owner, part)
    original = inspect.getattr_static(owner, name)
    setattr(owner, name, _changed(mutant, original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def _changed(mutant: Mutant, original: Any) -> Any:
    function = getattr(original, "__func__", original)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(mutant.old) == 1, f"{mutant.where} does not have this text once: {mutant.old}"
    scope: dict[str, Any] = {}
    code = compile(
        "from __future__ import annotations\n" + source.replace(mutant.old, mutant.new), mutant.where, "exec"
    )
    exec(code, function.__globals__, scope)  # maybe of another module, which it was imported from
    return next(iter(value for key, value in scope.items() if key != "annotations"))
