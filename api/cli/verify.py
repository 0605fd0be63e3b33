"""`breakers verify`: reads all that is stored once, and says what is not as it has to be. Changes nothing.

The database, each router's log, and what breakers did against what their logs say. Beside a running service what comes
meanwhile is left out: the database is read first, and logs go further than it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from api.cli.errors import one_line_errors
from api.cli.history import bars
from api.cli.output import note, put, put_json, put_table
from api.cli.store_access import AsJson, DataDir, log_to_stderr, settings_of
from breaker_actors.messages import Fault, MoreFaults
from breaker_actors.text.counting import counted

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from breaker_actors.breaker.replayed import Life
    from breaker_actors.clock import Clock
    from breaker_actors.messages import LogRead
    from breaker_actors.settings import Settings
    from breaker_actors.wal.base import SampleLog

FOUND = 3
TITLES = ("KIND", "OF", "WHAT IS WRONG")
TRIMMED = "their logs begin later than they did"
Tell = Callable[[str, int, int], None]


class Report(msgspec.Struct):
    """`more`: faults that are only counted; `moves`: transitions that were compared; `passed_over`: breakers that can't
    be compared, by reason."""

    faults: list[Fault]
    more: list[MoreFaults] = []
    logs: int = 0
    records: int = 0
    breakers: int = 0
    moves: int = 0
    passed_over: dict[str, int] = {}


def verify(
    replay: Annotated[bool, typer.Option(help="Compare what breakers did, and settings, with the logs.")] = True,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Read all that is stored and say what is wrong with it: a data directory, a backup of one, or the database of
    BREAKERS_DATABASE_URL; a service may run on it. Checksums and order of the logs, events without a hole, states that
    are where they led, deliveries in order and in pairs, counts, and against the log each transition and what was
    configured. Exit code 3 when something is wrong. Of a kind 100 faults of each project are told, others counted."""
    from breaker_actors.persistence import check_in_use

    log_to_stderr()
    with one_line_errors():
        settings = settings_of(data_dir, whole=True)
        check_in_use(settings)
        with bars(json) as tell:
            report = asyncio.run(verified(settings, replay, tell))
    if json:
        put_json(msgspec.to_builtins(report))
    else:
        _show(report)
    if report.faults:
        raise typer.Exit(FOUND)


def _show(report: Report) -> None:
    if report.faults:
        put_table(TITLES, ((fault.kind, fault.of, fault.words) for fault in report.faults))
    for more in report.more:
        whose = f" of project {more.project_id}" if more.project_id else ""
        put(f"and {more.count:,} more of kind {more.kind}{whose}")
    told = f"{counted(report.logs, 'log')} with {counted(report.records, 'record')}, "
    moves = counted(report.moves, "transition")
    put(f"{told}{counted(report.breakers, 'breaker')} with {moves} by their logs")
    for reason, count in sorted(report.passed_over.items()):
        put(f"{counted(count, 'breaker')} not compared with their logs: {reason}")
    if report.faults:
        by_kind = Counter(fault.kind for fault in report.faults)
        for more in report.more:
            by_kind[more.kind] += more.count
        kinds = ", ".join(f"{n:,} {kind}" for kind, n in sorted(by_kind.items()))
        note(f"{counted(by_kind.total(), 'fault')}: {kinds}")
    else:
        put("nothing is wrong")


async def verified(
    settings: Settings, replay: bool = True, tell: Tell = lambda words, done, total: None, clock: Clock | None = None
) -> Report:
    """Looks through everything. Raises SchemaMismatch for a database of another version, Invalid for another key."""
    from breaker_actors.clock import SystemClock
    from breaker_actors.errors import Unavailable
    from breaker_actors.persistence import kept_box, make_log, store_url
    from breaker_actors.sql.database import of_one_instant
    from breaker_actors.store import faults, migrations

    report, now_ms, box = Report([]), (clock or SystemClock()).now_ms(), kept_box(settings)
    log = make_log(settings)
    try:
        with migrations.engine_of(store_url(settings)) as engine, of_one_instant(engine).connect() as c:
            migrations.check(migrations.revision(c))
            c.rollback()
            with c.begin():
                found = faults.faults(c, box, now_ms, settings.history_retention_days)
                report.faults, report.more = found.told, found.more
                reads, upto = faults.log_reads(c), faults.newest_events(c)
            await _Logs(settings, log, c, upto, report).look(reads, replay, now_ms, tell)
    except Unavailable as error:
        report.faults.append(Fault("file", "the database", str(error)))
    finally:
        await log.close()
    return report


class _Logs:
    def __init__(
        self, settings: Settings, log: SampleLog, c: Connection, upto: Mapping[int, int], report: Report
    ) -> None:
        self._settings = settings
        self._log = log
        self._c = c
        self._upto = upto
        self._report = report
        self._passed_over: dict[str, str] = {}
        self._heard: set[str] = set()
        self._born: set[str] = set()
        """Breakers whose life begins in one of the logs."""
        self._different: list[Fault] = []
        self._beyond: list[Fault] = []

    async def look(self, reads: Sequence[LogRead], replay: bool, now_ms: int, tell: Tell) -> None:
        from breaker_actors.errors import BreakersError
        from breaker_actors.store.faults import SEVERAL, incomparable, on_several_routers, told_of

        for number, read in enumerate(reads):
            tell("logs", number, len(reads))
            self._report.logs += 1
            try:
                found = await self._log.faults(read, now_ms)
                if replay and not found:
                    await self._replay(read)
            except BreakersError as error:
                found = [str(error)]
            self._report.faults += (Fault("log", read.router_id, words, read.project_id) for words in found)
        tell("logs", len(reads), len(reads))
        with self._c.begin():
            excused = incomparable(self._c, [fault.of for fault in self._different])
            several = on_several_routers(self._c)
        self._report.faults += (fault for fault in self._different if fault.of not in excused)
        older = told_of(iter(self._beyond))
        self._report.faults += older.told
        self._report.more += older.more
        unborn = self._heard - self._born
        self._passed_over |= excused | {id_: SEVERAL if id_ in several else TRIMMED for id_ in unborn}
        self._report.passed_over = dict(Counter(self._passed_over.values()))

    async def _replay(self, read: LogRead) -> None:
        from breaker_actors.breaker.replayed import Replay
        from breaker_actors.messages import RouterRef
        from breaker_actors.store.faults import beyond

        router = RouterRef(read.router_id, "", read.log_slot, 0)
        replay = Replay(self._log, router, self._settings.window_samples_max)
        lives: dict[str, list[tuple[Life, bool]]] = {}
        async for life, ended in replay.lives():
            lives.setdefault(life.breaker_id, []).append((life, ended))
        self._report.records += replay.count
        self._heard |= replay.told.keys()
        with self._c.begin():
            self._beyond += beyond(self._c, read, replay.view_version, replay.told)
        self._born |= lives.keys()
        for breaker_id, mine in lives.items():
            self._compare(read.project_id, breaker_id, mine)

    def _compare(self, project_id: str, breaker_id: str, lives: Sequence[tuple[Life, bool]]) -> None:
        """Each life has the events up to where the next one begins to count."""
        from breaker_actors.breaker.replayed import END
        from breaker_actors.store.faults import SEVERAL, moves_of

        if any(life.left for life, _ in lives):
            self._passed_over[breaker_id] = SEVERAL
            return
        with self._c.begin():
            events = moves_of(self._c, project_id, breaker_id, self._upto)
        ends = [*(life.after_seq for life, _ in lives[1:]), END]
        for (life, ended), last in zip(lives, ends, strict=True):
            mine = [event for event in events if life.after_seq < event[0] <= last]
            self._report.moves += len(mine)
            if words := life.difference(mine, ended):
                self._different.append(Fault("event", breaker_id, words, project_id))
        self._report.breakers += 1
