"""One Journal and two of them on PostgreSQL, in turns: transitions a second, by the clock and by the CPU they use.

python -m tests.bench journal [--json FILE] [--smoke]

Each Journal is a process of its own, as in the service, behind its wire; this process is the BreakerActors, with two
lanes for each Journal, and the replica that follows its feed. Each breaker commits its next transition when the last
one is stored. A Journal has the same projects and breakers to itself however many work: one of them alone in one turn,
the two others together in the next one.

What counts is what two Journals come to with the CPU that two of them use: twice the transitions of a CPU second with
two, over those with one. By the clock they share this machine's cores with PostgreSQL and this process.

Afterwards each transition that was answered is there once, those of a project in the order in which they were told,
each in its project's shard. The aim: 1.7 times.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import structlog

from breaker_actors.clock import SystemClock
from breaker_actors.errors import BreakersError
from breaker_actors.journal.host import JournalHost
from breaker_actors.messages import Address, Commit, CommitResult, EventDraft, Paced
from breaker_actors.persistence import make_store
from breaker_actors.settings import Settings, load_settings
from breaker_actors.store.rows import BreakerItem
from breaker_actors.transport.lane import Lane
from breaker_actors.transport.peers import JournalPeer, journal_name
from breaker_actors.transport.rpc import Listener, Wire
from tests.contract.store_world import RULE
from tests.support.figures import options_of, show
from tests.support.live import tree_of
from tests.support.postgres import own_server
from tests.support.usage import TICKS

AIM = 1.7
TURNS, TURN_S = 4, 8.0
PROJECTS, BREAKERS, LANES = 4, 250, 2
"""Of each Journal: projects, breakers of each, and BreakerActors that call it."""
ALONE, TOGETHER = (0,), (1, 2)
"""The Journals of the turns with one and with two."""
SHARDS = (*ALONE, *TOGETHER)
RECORD = bytes(range(256)) * 3
CALL_COMMITS_MAX = 1_000
"""As `breaker/commits.py` has it."""
STARTED_S = 60.0
CPU = "cpu"
"""What a Journal's process is asked for its CPU seconds by."""


def main(argv: list[str]) -> int:
    options = options_of("journal").parse_args(argv)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    turns, turn_s, breakers = (1, 0.5, 10) if options.smoke else (TURNS, TURN_S, BREAKERS)
    with tempfile.TemporaryDirectory() as folder, own_server() as server, server.database() as url:
        environ = {
            "BREAKERS_DATA_DIR": folder,
            "BREAKERS_DATABASE_URL": url,
            "BREAKERS_SECRET_KEY": "ab" * 32,
            "BREAKERS_JOURNALS": str(len(SHARDS)),
            "BREAKERS_TRANSITIONS_PER_MINUTE_MAX": str(1 << 30),
            "BREAKERS_FEED_ENTRIES_MAX": "200000",
        }
        figures = asyncio.run(Bench(environ, url, breakers).run(turns, turn_s))
    show(figures, options.json)
    return int(not options.smoke and figures["times, by CPU"] < AIM)


class OneNet:
    """Calls over the wires of the Journals."""

    def __init__(self) -> None:
        self.wires: dict[str, Wire] = {}

    async def call(self, actor: str, method: str, *args: Any) -> Any:
        return await self.wires[actor].call(method, args)


@dataclass
class Mine:
    """A breaker, as its BreakerActor has it."""

    shard: int
    project_id: str
    breaker_id: str
    epoch: int
    seq: int = 0

    def next(self) -> Commit:
        """The commit of its next transition."""
        seq = self.seq + 1
        prev, curr = ("closed", "open") if seq % 2 else ("open", "closed")
        event = EventDraft(
            name="bench",
            prev=prev,  # type: ignore[arg-type]
            curr=curr,  # type: ignore[arg-type]
            ts_ms=time.time_ns() // 1_000_000,
            transition_seq=seq,
            reason="threshold_exceeded",
            allow_rate=1.0 - seq % 2,
            value=512.5,
            rule=msgspec.to_builtins(RULE),
            agg={"avg": 512.5, "count": 3},
        )
        return Commit(
            breaker_id=self.breaker_id,
            project_id=self.project_id,
            epoch=self.epoch,
            events=(event,),
            state=event.curr,
            allow_rate=event.allow_rate,
            transition_seq=seq,
            record=RECORD,
            applied_offsets={"0" * 36: seq},
        )


@dataclass
class Told:
    """What a feed has told: the last transition of each breaker, and how many."""

    last: Counter[str] = field(default_factory=Counter)
    count: int = 0


class Bench:
    def __init__(self, environ: dict[str, str], url: str, breakers: int) -> None:
        self._environ = {k: v for k, v in os.environ.items() if not k.startswith("BREAKERS_")} | environ
        self._settings = _settings_of(environ)
        self._url = url
        self._breakers = breakers
        self._net: Any = OneNet()
        self._told = {shard: Told() for shard in SHARDS}

    async def run(self, turns: int, turn_s: float) -> dict[str, float]:
        all_of = {shard: await self._make(shard) for shard in SHARDS}
        sums: dict[int, dict[str, float]] = {1: defaultdict(float), 2: defaultdict(float)}
        async with contextlib.AsyncExitStack() as stack:
            for shard in SHARDS:
                await stack.enter_async_context(self._journal(shard))
            for n in range(turns):
                both = (ALONE, TOGETHER) if n % 2 == 0 else (TOGETHER, ALONE)
                for shards in both:
                    found = await self._turn([mine for shard in shards for mine in all_of[shard]], turn_s)
                    for name, value in found.items():
                        sums[len(shards)][name] += value
            await self._until_told(all_of)
        self._check(all_of)
        return _figures(sums)

    async def _make(self, shard: int) -> list[Mine]:
        """Projects of a Journal with breakers that are this process's."""
        store = make_store(self._settings)
        await store.open()
        try:
            org = await store.create_org(f"org {shard}", 1)
            workspace = await store.create_workspace(org, "main", "main", 1)
            found: list[Mine] = []
            while len(found) < PROJECTS * self._breakers:
                project = await store.create_project(org, workspace.id, "bench", 1)
                if project.shard != shard:
                    continue
                items = [BreakerItem(rule=RULE, name=f"b{n}") for n in range(self._breakers)]
                ids = [row.id for row in (await store.replace_breakers(project.id, items, lambda *_: None, 1)).rows]
                directory = await store.open_directory()
                epochs = await store.claim(directory, "breaker", dict.fromkeys(ids, "bench"))
                found += [Mine(shard, project.id, id_, epochs[id_]) for id_ in ids]
            return found
        finally:
            await store.close()

    @contextlib.asynccontextmanager
    async def _journal(self, shard: int) -> AsyncIterator[None]:
        """A Journal's process, its wire, and who follows its feed."""
        name = journal_name(shard)
        with _process(shard, self._environ) as process:
            assert process.stdout is not None
            async with asyncio.timeout(STARTED_S):
                line = await asyncio.to_thread(process.stdout.readline)
            self._net.wires[name] = await Wire.open(msgspec.json.decode(line, type=Address))
            following = asyncio.create_task(self._follow(shard))
            try:
                yield
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
                self._net.wires[name].close()

    async def _follow(self, shard: int) -> None:
        """Each breaker's transitions are told in order, none left out."""
        peer, told = JournalPeer(self._net, journal_name(shard)), self._told[shard]
        first = await peer.poll(0, 0, 0)
        epoch, after = first.epoch, first.position
        while True:
            page = await peer.poll(epoch, after, 0.5)
            assert not page.reset, "the feed was lost"
            after = page.position
            for entry in page.entries:
                if entry.kind == "state":
                    assert entry.transition_seq == told.last[entry.breaker_id] + 1, entry
                    told.last[entry.breaker_id] += 1
                    told.count += 1

    async def _turn(self, mine: list[Mine], turn_s: float) -> dict[str, float]:
        """What came of a turn: transitions, seconds, and CPU seconds."""
        shards = {one.shard for one in mine}
        lanes: dict[int, list[Lane[Commit, CommitResult | Paced]]] = {
            shard: [
                Lane(
                    JournalPeer(self._net, journal_name(shard)).commit,
                    weight_max=1 << 30,
                    call_weight_max=CALL_COMMITS_MAX,
                )
                for _ in range(LANES)
            ]
            for shard in shards
        }
        over, before, began = asyncio.Event(), await self._spent(shards), time.perf_counter()
        asyncio.get_running_loop().call_later(turn_s, over.set)
        counts = await asyncio.gather(
            *(_commit_on(one, lanes[one.shard][n % LANES], over) for n, one in enumerate(mine))
        )
        took_s, spent = time.perf_counter() - began, await self._spent(shards)
        return {
            "transitions": sum(counts),
            "s": took_s,
            "journals_s": spent[0] - before[0],
            "postgresql_s": spent[1] - before[1],
        }

    async def _spent(self, shards: set[int]) -> tuple[float, float]:
        """CPU seconds so far: of these Journals as they say, and of PostgreSQL."""
        journals = [await self._net.call(journal_name(shard), CPU) for shard in sorted(shards)]
        ticks = 0
        for pid, line in tree_of(os.getpid()).items():
            if "postgres" in line.split(" ")[0]:
                with contextlib.suppress(OSError):
                    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
                    ticks += int(fields[11]) + int(fields[12])
        return sum(journals), ticks / TICKS

    async def _until_told(self, all_of: dict[int, list[Mine]]) -> None:
        async with asyncio.timeout(STARTED_S):
            while any(self._told[s].count < sum(one.seq for one in mine) for s, mine in all_of.items()):
                await asyncio.sleep(0.05)

    def _check(self, all_of: dict[int, list[Mine]]) -> None:
        """What is stored is what was answered and told."""
        query = "SELECT shard, project_id, breaker_id, transition_seq FROM events ORDER BY project_id, sequence"
        with psycopg.connect(self._url) as connection:
            last: Counter[str] = Counter()
            homes: dict[str, int] = {}
            for shard, project_id, breaker_id, seq in connection.execute(query):
                assert homes.setdefault(str(project_id), shard) == shard, "a project is in two shards"
                last[str(breaker_id)] += 1
                assert last[str(breaker_id)] == seq, f"breaker {breaker_id} has {seq} out of order"
        for shard, mine in all_of.items():
            assert {homes.get(one.project_id, shard) for one in mine} == {shard}
            assert {one.breaker_id: one.seq for one in mine} == {one.breaker_id: last[one.breaker_id] for one in mine}
            assert self._told[shard].count == sum(one.seq for one in mine)


async def _commit_on(mine: Mine, lane: Lane[Commit, CommitResult | Paced], over: asyncio.Event) -> int:
    """Transitions that were stored of a breaker; what has an unknown outcome is sent again."""
    begun = mine.seq
    while not over.is_set():
        commit = mine.next()
        while (result := await _sent(lane, commit)) != "ok":
            assert result != "fenced", commit
            await asyncio.sleep(result.wait_ms / 1000 if isinstance(result, Paced) else 0.05)
        mine.seq += 1
    return mine.seq - begun


async def _sent(lane: Lane[Commit, CommitResult | Paced], commit: Commit) -> CommitResult | Paced:
    try:
        return await lane.put(commit)
    except BreakersError:
        return "failed"


def _figures(sums: dict[int, dict[str, float]]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for count, found in sums.items():
        words = f"{count} Journal{'s' * (count > 1)}"
        figures[f"transitions/s, {words}"] = found["transitions"] / found["s"]
        figures[f"transitions a CPU s of theirs, {words}"] = found["transitions"] / max(found["journals_s"], 1 / TICKS)
        figures[f"cores they used, {words}"] = found["journals_s"] / found["s"]
        figures[f"PostgreSQL ms a transition, {words}"] = 1000 * found["postgresql_s"] / max(1, found["transitions"])
    per = [figures[f"transitions a CPU s of theirs, {words}"] for words in ("1 Journal", "2 Journals")]
    figures["times, by CPU"] = 2 * per[1] / per[0]
    figures["times, by the clock"] = figures["transitions/s, 2 Journals"] / figures["transitions/s, 1 Journal"]
    return figures


def _settings_of(environ: dict[str, str]) -> Settings:
    fields = {name.removeprefix("BREAKERS_").lower(): value for name, value in environ.items()}
    return Settings(**fields)  # type: ignore[arg-type]


# -- a Journal's process


@contextlib.contextmanager
def _process(shard: int, environ: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Ends when its standard input does."""
    command = [sys.executable, "-m", "tests.bench.journal", str(shard)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ) as process:
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(30)


async def _serve(shard: int) -> None:
    """A Journal behind a listener, as its actor has it."""
    settings, told = load_settings(), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # lines of transitions
    store = make_store(settings)
    await store.open()
    host = JournalHost(shard, store, SystemClock(), settings)
    await host.start()

    async def call(method: str, *args: Any) -> Any:
        if method == CPU:
            return time.process_time()
        return await getattr(host, method)(*args)

    listener = Listener(call, host.meters)
    os.write(told, msgspec.json.encode(await listener.open("127.0.0.1")) + b"\n")
    ended, loop = asyncio.Event(), asyncio.get_running_loop()

    def wait() -> None:
        sys.stdin.buffer.read()
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=wait, daemon=True).start()
    await ended.wait()
    await listener.close()
    await host.stop()
    await store.close()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
