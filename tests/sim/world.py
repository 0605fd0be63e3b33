"""One run: a whole service of simulated processes over one real store and log, its clients, its faults, its checks."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import traceback
from collections import Counter, deque
from collections.abc import Callable
from contextvars import copy_context
from hashlib import blake2b
from pathlib import Path
from typing import Any

from breaker_actors.directory.retention import Retention
from breaker_actors.errors import BreakersError, Unavailable
from breaker_actors.notify.notifier import NotifierHost
from breaker_actors.persistence import DATABASE, make_log, make_store
from breaker_actors.settings import Settings
from breaker_actors.store.rows import BreakerRow, ChannelDraft, MuteRow, RouterRow, StoredState
from breaker_actors.transport.peers import DIRECTORY, NOTIFIER, journal_name, shard_of
from tests.sim.alertmanager import FarAlertmanager
from tests.sim.checks import Checks, Violation, watermark_given
from tests.sim.clients import ConfigurationClient, Reader, SampleClients
from tests.sim.damage import Damage
from tests.sim.end_state_checks import Final
from tests.sim.faults import Faults
from tests.sim.hand import Hand
from tests.sim.loop import VirtualLoop
from tests.sim.mutes import MuteChecks, Receiver
from tests.sim.net import SimNet, Wire
from tests.sim.operators import MutingClient, OperatorClient
from tests.sim.process import EPOCH_MS, OUTSIDE, ActorClock, Process
from tests.sim.replica import Replica
from tests.sim.storage import Door, drive
from tests.support.in_process import make_directory, make_host, make_journal, say_hello

TRACE_MAX = 100_000
READY_S = 20.0
SETTLE_S = 30.0
"""So long after the last fault everything is up, applied and delivered."""
SENT_PER_S = 20
"""What waits at the last fault has this pace at least (a breaker's alerts go to a channel one after the other): a clock
that is put right by an hour makes thousands at once."""
REST_S = 4.0
TASKS_MAX = 2_000


def is_alerting(seed: int) -> bool:
    """Whether there is an Alertmanager among the receivers of a run."""
    return seed % 7 in (1, 2, 6)


def journals_of(seed: int) -> int:
    """How many Journals there are in a run. The project is the last one's."""
    return 2 if seed % 6 == 5 else 1


class World:
    """`main()` runs the story; `failure` says what went wrong, None: nothing."""

    def __init__(
        self, seed: int, loop: VirtualLoop, faults: Faults, directory: Path, calls_traced: bool, naive: bool
    ) -> None:
        self.seed = seed
        self.loop = loop
        self.faults = faults
        self.calls_traced = calls_traced
        self.naive = naive
        draws = self._draws = faults.stream("world")
        self.lines: deque[tuple[float, tuple[Any, ...]]] = deque(maxlen=TRACE_MAX)
        self._digest = blake2b(digest_size=16)
        self.failure: str | None = None
        self._broken: asyncio.Future[None] = loop.create_future()
        self.down: Counter[str] = Counter()
        """Outages by what is out: store, log, or the writes of one of them."""
        ActorClock.latest_ms, ActorClock.hasty = 0, ""
        self.settings = Settings(
            data_dir=directory,
            breaker_actors=draws.randint(1, 4),
            router_actors=draws.randint(1, 3),
            journals=journals_of(seed),
            checkpoint_interval_ms=draws.choice([700, 2_000, 5_000]),
            lane_samples_max=draws.choice([40, 2_000, 200_000]),
            feed_entries_max=draws.choice([5, 50, 20_000]),
            upkeep_interval_ms=draws.choice([3_000, 8_000, 30_000]),
            log_retention_ms=draws.choice([0, 5_000, 20_000, 86_400_000]),
            subscriber_queue_max=draws.choice([1, 3, 1_000]),
            alert_renewal_ms=2_000 if is_alerting(seed) else 86_400_000,
            window_samples_max=draws.choice([25, 1_000_000, 1_000_000, 1_000_000]),
        )
        self.skew_ms = self.settings.max_clock_skew_ms if "skew" in faults.standing else 0
        self.length_s = draws.uniform(12.0, 45.0)
        self.store = make_store(self.settings)
        self.log = make_log(self.settings)
        drive(self.store.open())
        self._truth = sqlite3.connect(directory / DATABASE, isolation_level=None)
        self.journals = [journal_name(shard) for shard in range(self.settings.journals)]
        self._truth.execute("UPDATE projects SET shard = ?", (len(self.journals) - 1,))
        self.project_id: str = self._truth.execute("SELECT id FROM projects").fetchone()[0]
        self.reached: Counter[str] = Counter()
        self.checks = Checks(directory / DATABASE, directory / "log", Hand(self.reach, self._is_served))
        self.far = FarAlertmanager(directory / DATABASE, self.settings.alert_renewal_ms)
        self.mutes = MuteChecks(directory / DATABASE, self.reach, self.skew_ms)
        self._numbers: dict[str, int] = {}
        self._wrong_ms: dict[str, int] = {}
        """By how much the clock is ahead of the next process of a name, which starts before it is set right."""
        self.processes: list[Process] = []
        self.net = SimNet(self, self._start)
        self.stops = 0
        """How often everything was stopped: nothing of before lands later."""
        self.damage = Damage(self)
        self.replicas = [f"replica-{i}" for i in range(draws.randint(1, 2))]
        self._clients = [self._process("client", f"client-{i}") for i in range(5)]
        self.samples = SampleClients(self, self._clients[0])
        self.configuration = ConfigurationClient(self, self._clients[1])
        self.reader = Reader(self, self._clients[2])
        self.operator = OperatorClient(self, self._clients[3])
        self.muter = MutingClient(self, self._clients[4])

    # what everybody tells

    def trace(self, *what: Any) -> None:
        now = self.loop.time()
        self.lines.append((now, what))
        self._digest.update(f"{now:.6f} {what}\n".encode())

    def later(self, after_s: float, what: Callable[..., Any], *args: Any) -> None:
        """What a process has handed on: nothing of its own holds it up."""
        context = copy_context()
        context.run(OUTSIDE.set, True)
        self.loop.call_later(after_s, what, *args, context=context)

    def reach(self, what: str) -> None:
        """Counts a state that is worth being in."""
        self.reached[what] += 1

    def look_back(self, process: Process) -> None:
        """What a process has counted by its end."""
        if process.kind != "client" and process.part is not None:
            process.part.meters.refresh()
            for (name, *labels), n in process.part.meters.counters.items():
                if n:
                    self.reach(" ".join((process.kind, name.removeprefix("breakers_").removesuffix("_total"), *labels)))

    def digest(self) -> str:
        return self._digest.hexdigest()

    def fail(self, why: str, error: BaseException | None = None) -> None:
        """The first thing that went wrong ends the run."""
        if self.failure is None:
            where = "" if error is None else "\n" + "".join(traceback.format_exception(error)[-6:])
            self.failure = f"at {self.loop.time():.3f} s: {why}{where}"
            if not self._broken.done():
                self._broken.set_result(None)

    def check(self, what: Callable[..., None], *args: Any) -> None:
        try:
            what(*args)
        except Violation as violation:
            self.fail(str(violation))

    def judge(self, wrong: str) -> None:
        if wrong:
            self.fail(wrong)

    def observe(self, process: Process, name: str, args: tuple[Any, ...], result: Any) -> None:
        """After an operation on the store or the log was carried out, whatever its caller hears of it."""
        self.judge(ActorClock.hasty)
        latest_ms = process.believed.highest_ms + self.settings.clock_step_max_ms
        if name == "commit":
            self.check(self.checks.commits, args[1])
        elif name == "append":
            self.check(self.checks.appended, args[0], [record.router_id for record in args[1]])
            self.check(self.checks.stamped, args[1], latest_ms)
        elif name == "advance_watermark":
            self.judge(watermark_given(args[3], latest_ms))
        elif name == "create_breaker":
            self.check(self.checks.born, result[0].id, result[0].router_ids)
        elif name == "look_at_held":
            self.judge(self.mutes.looked(args[1], self.now_ms()))
        elif name == "tend_mutes":
            self.judge(self.mutes.tended(self.now_ms()))
        elif name == "lease_deliveries":
            self.judge(self.mutes.claimed(result))
        if name in ("commit", "delete_breaker"):
            self.judge(self.mutes.written())

    def zombie_acts(self, process: Process) -> None:
        self.faults.hit(f"zombie_{process.kind}")

    # what is there, read from the store itself

    def router_ids(self) -> list[str]:
        return [r[0] for r in self._truth.execute("SELECT id FROM routers WHERE deleted_ms IS NULL ORDER BY number")]

    def breaker_ids(self) -> list[str]:
        return [r[0] for r in self._truth.execute("SELECT id FROM breakers ORDER BY number")]

    def _is_served(self, breaker_id: str) -> bool:
        """Whether the actor that a breaker is given to works."""
        row = self._truth.execute("SELECT owner FROM breakers WHERE id = ?", (breaker_id,)).fetchone()
        owner = None if row is None else self.net.actors.get(row[0])
        return owner is not None and owner.alive and owner.up.is_set()

    def changes_waiting(self) -> int:
        return int(self._truth.execute("SELECT count(*) FROM changes").fetchone()[0])

    def breaker_rows(self) -> list[BreakerRow]:
        rows: list[BreakerRow] = drive(self.store.list_breakers(self.project_id))[0]
        return rows

    def mute_rows(self) -> list[MuteRow]:
        rows: list[MuteRow] = drive(self.store.list_mutes(self.project_id))
        return rows

    def channel_ids(self) -> list[str]:
        return [r[0] for r in self._truth.execute("SELECT id FROM channels ORDER BY number")]

    def router_rows(self) -> list[RouterRow]:
        rows: list[RouterRow] = drive(self.store.list_routers(self.project_id))
        return rows

    def stored_states(self) -> list[StoredState]:
        states: list[StoredState] = drive(self.store.stored_states(self.project_id))
        return states

    def client(self) -> Process:
        """Who asks in the name of the checks."""
        return self._clients[2]

    def now_ms(self) -> int:
        """The true time."""
        return EPOCH_MS + int(self.loop.time() * 1000)

    # processes

    def _process(self, kind: str, name: str) -> Process:
        number = self._numbers[name] = self._numbers.get(name, 0) + 1
        draws = self.faults.stream(f"skew of {name}#{number}")
        offset_ms = draws.randint(-self.skew_ms // 2, self.skew_ms // 2)
        if offset_ms:
            self.faults.hit("skew")
        offset_ms += self._wrong_ms.pop(name, 0)
        process = Process(kind, name, number, self.loop, offset_ms, self.settings.clock_step_max_ms)
        self.processes = [p for p in self.processes if p.alive]
        self.processes.append(process)
        return process

    def _start(self, kind: str, name: str) -> Process:
        process = self._process(kind, name)
        self.trace("started", process.label)
        process.run(getattr(self, f"_boot_{kind}")(process))
        return process

    def _doors(self, process: Process) -> tuple[Any, Any, Wire]:
        store, log = Door(self, process, "store", self.store), Door(self, process, "log", self.log)
        return store, log, Wire(self.net, process)

    async def _boot_router(self, process: Process) -> None:
        await self._boot_host(process)

    async def _boot_breaker(self, process: Process) -> None:
        await self._boot_host(process)

    async def _boot_host(self, process: Process) -> None:
        _, log, wire = self._doors(process)
        kind: Any = process.kind
        host = make_host(kind, process.name, log, wire, process.believed, self.settings)
        host.start()
        process.set_up(host)
        await say_hello(wire, kind, process.name, host.incarnation)

    async def _boot_journal(self, process: Process) -> None:
        store, _, wire = self._doors(process)
        shard, end = shard_of(process.name), self._superseded
        journal = make_journal(store, process.believed, self.settings, wire, lambda: end(process), shard)
        while True:
            try:
                await journal.start()
                break
            except BreakersError:
                await asyncio.sleep(0.2)
        process.set_up(journal)

    async def _boot_notifier(self, process: Process) -> None:
        store, _, _ = self._doors(process)
        chance = self.faults.stream(f"retries of {process.label}")
        end = self._superseded
        notifier = NotifierHost(
            store,
            Receiver(self, process),
            process.believed,
            self.settings,
            chance=chance,
            superseded=lambda: end(process),
        )
        while True:
            try:
                await notifier.start()
                break
            except BreakersError:
                await asyncio.sleep(0.2)
        process.set_up(notifier)

    async def _boot_directory(self, process: Process) -> None:
        """The upkeep runs beside it, as in the cluster."""
        store, log, wire = self._doors(process)
        end = self._superseded
        directory = make_directory(store, wire, process.believed, self.settings, superseded=lambda: end(process))
        process.set_up(directory)
        Retention(store, log, wire, process.believed, self.settings, directory.meters).start()
        await directory.start()

    def _superseded(self, process: Process) -> None:
        """It ends itself, as its actor does."""
        self.trace("superseded", process.label)
        self.net.kill(process, self._draws.uniform(0.05, 2.0))

    async def _boot_replica(self, process: Process) -> None:
        store, _, _ = self._doors(process)
        replica = Replica(self, process, self.net, store)
        replica.start()
        process.set_up(replica)
        await replica.follow()

    async def ask_replica(self, client: Process, method: str, *args: Any) -> Any:
        """One request to some replica."""
        return await self.net.call(client, self._draws.choice(self.replicas), method, *args)

    # the story

    async def main(self) -> None:
        story = self.loop.create_task(self._story())
        try:
            await asyncio.wait({story, self._broken}, return_when=asyncio.FIRST_COMPLETED)
            if story.done() and not story.cancelled() and (error := story.exception()) is not None:
                violated = isinstance(error, Violation)
                self.fail(str(error) if violated else f"{type(error).__name__}: {error}", None if violated else error)
        finally:
            story.cancel()
            await self._end()

    async def _story(self) -> None:
        if is_alerting(self.seed):
            far = ChannelDraft(channel="alertmanager", config={"url": "http://127.0.0.1:9/"})
            drive(self.store.create_channel(self.project_id, far, EPOCH_MS))
        for name in self.journals:
            self.net.spawn("journal", name)
        self.net.spawn("directory", DIRECTORY)
        self.net.spawn("notifier", NOTIFIER)
        for name in self.replicas:
            self.net.spawn("replica", name)
        await self._until_ready()
        await self.configuration.begin()
        await self._trouble()
        await self._calm()
        await Final(self).check()

    async def _until_ready(self) -> None:
        while True:
            try:
                for name in self.replicas:
                    await self.net.call(self._clients[0], name, "ready")
                return
            except Unavailable:
                if self.loop.time() > READY_S:
                    raise Violation(f"not ready after {READY_S} s without any fault") from None
                await asyncio.sleep(0.1)

    async def _trouble(self) -> None:
        begin, end = self.loop.time(), self.loop.time() + self.length_s
        self.faults.active = True
        for at, kind in self.faults.schedule(begin + 0.5, end):
            self.loop.call_at(at, self._strike, kind, end)
        users = (self.samples, self.configuration, self.reader, self.operator, self.muter)
        tasks = [client.run(user.run(end)) for client, user in zip(self._clients, users, strict=True)]
        while self.loop.time() < end:
            await asyncio.sleep(2.0)
            self._check_sizes()
        self.faults.active = False
        self._heal()
        self.damage.recover(0.1)
        self._users = tasks

    def _check_sizes(self) -> None:
        for process in self.processes:
            if process.alive and (process.tasks > TASKS_MAX or len(process.serving) > TASKS_MAX):
                raise Violation(f"{process.label} has {process.tasks} tasks and {len(process.serving)} calls")

    async def _calm(self) -> None:
        """Everything is up again within SETTLE_S, and then left alone for a moment. Time that a clock was ahead has to
        come first: nothing is stamped before what was stamped."""
        await asyncio.sleep(max(0, ActorClock.latest_ms - self.now_ms()) / 1000)
        settle_s = SETTLE_S + self.mutes.waiting()[0] // SENT_PER_S
        deadline = self.loop.time() + settle_s
        while missing := await self._missing():
            if self.loop.time() > deadline:
                raise Violation(f"{settle_s} s after the last fault: {missing}")
            await asyncio.sleep(0.5)
        self.trace("settled")
        # a BreakerActor looks at its checkpoints whether it listens to somebody who was replaced
        await asyncio.sleep(REST_S + self.settings.checkpoint_interval_ms / 1000)

    async def _missing(self) -> str:
        """What is not as it should be yet."""
        if self.samples.open or not all(task.done() for task in self._users):
            return f"{len(self.samples.open)} requests have no answer, or a client is still at work"
        names = [DIRECTORY, NOTIFIER, *self.journals, *self.replicas]
        down = [n for n in names if n not in self.net.actors or not self.net.actors[n].up.is_set()]
        if down:
            return f"{down} are not up"
        if waiting := self.changes_waiting():
            return f"{waiting} changes are not applied"
        if any(waiting := self.mutes.waiting()):
            return f"{waiting[0]} deliveries wait, {waiting[1]} are held"
        ids = self.breaker_ids()
        try:
            readings = await self.ask_replica(self._clients[2], "states", ids) if ids else []
        except Unavailable as error:
            return f"states can't be read: {error}"
        stale = [r.breaker_id for r in readings if r.stale]
        return f"the owners of {stale} do not answer" if stale else ""

    # faults that come at an instant

    def _strike(self, kind: str, end: float) -> None:
        what, _, whom = kind.partition("_")
        self.trace("strikes", kind)
        if kind == "crash_all":
            for process in [p for p in self.processes if p.alive and p.kind != "client"]:
                self.net.kill(process, self.faults.span(kind, 0.05, 3.0))
            self.faults.hit(kind)
        elif what == "damage":
            self.damage.strike(kind)
        elif what == "crash":
            if victim := self._victim(kind, whom):
                self.faults.hit(kind)
                self.net.kill(victim, self.faults.span(kind, 0.05, 4.0))
        elif what == "zombie":
            if victim := self._victim(kind, whom):
                callers = [p for p in self.processes if p.alive]
                self.net.replace(victim, self.faults.span(kind, 0.0, 3.0), callers)
                self.loop.call_later(self.faults.span(kind, 2.0, 15.0), self.net.kill, victim, 0.0)
        elif what == "stop":
            if victim := self._victim(kind, whom):
                victim.stop()
                self.faults.hit(kind)
                self.trace("stopped", victim.label)
                self.loop.call_later(self.faults.span(kind, 0.5, 20.0), victim.go_on)
        elif what == "clock":
            self._jump(kind, whom)
        else:
            self._outage(kind, min(end, self.loop.time() + self.faults.span(kind, 0.3, 6.0)))

    def stop_all(self, back_s: float) -> None:
        """The service is stopped, and started again by an operator."""
        self.stops += 1
        for process in [p for p in self.processes if p.alive and p.kind != "client"]:
            self.net.kill(process, back_s)

    def _victim(self, kind: str, whom: str) -> Process | None:
        names = sorted(name for name, p in self.net.actors.items() if p.kind == whom and p.alive)
        return self.net.actors[self.faults.pick(kind, names)] if names else None

    def _jump(self, kind: str, whom: str) -> None:
        names = sorted(name for name, p in self.net.actors.items() if p.kind in ("router", "breaker", "replica"))
        step_ms = int(1000 * self.faults.span(kind, 0.5, 7.0))
        if whom in ("wrong", "ahead"):
            self._start_wrong(kind, "router" if whom == "wrong" else "breaker")
        elif whom == "notifier":
            if (victim := self._victim(kind, whom)) is not None:
                self._jump_for_a_while(kind, victim)
        elif names:
            process = self.net.actors[self.faults.pick(kind, names)]
            if whom == "hours":
                self._jump_for_a_while(kind, process)
            elif whom == "stopped":
                process.clock.stand_still(lambda: self.faults.hit(kind))
                self.loop.call_later(step_ms / 1000, process.clock.go_on)
            else:
                process.clock.jump(step_ms if whom == "forward" else -step_ms, lambda: self.faults.hit(kind))
            self.trace("jumps", process.label, process.clock.offset_ms)

    def _jump_for_a_while(self, kind: str, process: Process) -> None:
        """Hours ahead or back, and right again soon."""
        step_ms = int(3_600_000 * self.faults.span(kind, 1.0, 4.0))
        if self.faults.span(kind, 0.0, 1.0) < 0.3:
            step_ms = -step_ms
        process.clock.jump(step_ms, lambda: self.faults.hit(kind))

        def set_right() -> None:
            if abs(process.clock.offset_ms) > abs(step_ms) // 2:  # else it was healed
                process.clock.offset_ms -= step_ms

        self.loop.call_later(self.faults.span(kind, 0.5, 20.0), set_right)

    def _start_wrong(self, kind: str, whom: str) -> None:
        """An actor starts with a clock that is ahead, and again once it was set right: what a RouterActor stamped is
        ahead of everybody's clock; a BreakerActor asks for watermarks of times to come."""
        if victim := self._victim(kind, whom):
            name, ahead_ms = victim.name, int(1000 * self.faults.span(kind, 10.0, 60.0 if whom == "router" else 15.0))
            self._wrong_ms[name] = ahead_ms
            self.net.kill(victim, 0.1)

            def set_right() -> None:
                self._wrong_ms.pop(name, None)
                process = self.net.actors.get(name)
                if process is not None and process.alive and process.clock.offset_ms > ahead_ms // 2:
                    self.faults.hit(kind)
                    self.net.kill(process, 0.1)

            self.loop.call_later(self.faults.span(kind, 1.0, 8.0), set_right)

    def _outage(self, kind: str, until_s: float) -> None:
        self.down[kind] += 1

        def over() -> None:
            self.down[kind] -= 1

        self.loop.call_at(until_s, over)

    def _heal(self) -> None:
        """Zombies end, the stopped go on, clocks are set right, broken connections noticed."""
        self.net.heal()
        for process in self.processes:
            process.go_on()
            process.clock.go_on()
            if process.replaced:
                self.net.kill(process, 0.0)
            if abs(process.clock.offset_ms) > self.skew_ms:
                process.clock.offset_ms = 0
        self.trace("healed")

    # the end

    async def _end(self) -> None:
        """Everything of this run goes."""
        self.net.closed = True
        for process in self.processes:
            self.look_back(process)
            process.die()
        while tasks := [t for t in asyncio.all_tasks(self.loop) if t is not asyncio.current_task()]:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self.checks.close()
        self.mutes.close()
        self.far.close()
        self._truth.close()
        drive(self.log.close())
        drive(self.store.close())


def copy_template(template: Path, directory: Path) -> None:
    """The files of a run: a migrated store with one project."""
    directory.mkdir(parents=True)
    for name in (DATABASE, "secret.key"):
        shutil.copy(template / name, directory / name)


def make_template(directory: Path) -> None:
    """Makes what `copy_template` copies."""
    store = make_store(Settings(data_dir=directory))
    drive(store.open())
    org = drive(store.create_org("org", EPOCH_MS))
    workspace = drive(store.create_workspace(org, "workspace", "workspace", EPOCH_MS))
    project = drive(store.create_project(org, workspace.id, "project", EPOCH_MS))
    config = {"url": "http://127.0.0.1:9/"}
    for events in (("trip", "recover"), ("trip",)):
        draft = ChannelDraft(channel="webhook", config=config, events=events)
        drive(store.create_channel(project.id, draft, EPOCH_MS))
    drive(store.close())
