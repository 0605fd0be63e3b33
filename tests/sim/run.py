"""Runs seeds: one in this process, or many over several processes. What a run says is a value that can be compared."""

from __future__ import annotations

import asyncio
import atexit
import gc
import os
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest.mock import patch

import msgspec
import structlog

from api.cli.verify import verified
from breaker_actors.settings import Settings
from tests.sim.faults import KINDS, Faults, excluded
from tests.sim.loop import StoppingLoop, VirtualLoop
from tests.sim.process import RUNS_IN, task_factory
from tests.sim.world import World, copy_template, make_template

T = TypeVar("T")

TOLD = 60
"""Lines of the trace that a failure shows."""


class Result(msgspec.Struct, frozen=True):
    """One seed's run. `digest` is over the whole trace; `hits`: faults that had an effect; `reached`: see
    tests/sim/reached.py."""

    seed: int
    failure: str | None
    digest: str
    hits: dict[str, int]
    reached: tuple[str, ...]
    events: int
    samples: int
    cpu_s: float
    virtual_s: float
    lines: tuple[str, ...]
    without: tuple[str, ...] = ()

    def message(self, lines: int = TOLD) -> str:
        """What a developer needs to see of a failure, with so many lines of its trace."""
        words = "".join(f" --without {','.join(self.without)}" for _ in [0] if self.without)
        again = f"python -m tests.sim --seed {self.seed} --trace{words}"
        told = "\n".join(self.lines[-lines:])
        return f"seed {self.seed} fails {self.failure}\n{told}\nfaults: {self.hits}\nagain: {again}"


def run_seed(
    seed: int, *, without: Sequence[str] = (), calls: bool = False, naive: bool = True, lines: int | None = None
) -> Result:
    """One whole run, the same every time for the same arguments. `without`: faults left out; `calls`: the trace has
    every call; `naive`: events are held against the naive model, too; `lines`: how much of the trace is kept."""
    began = time.process_time()
    directory = Path(tempfile.mkdtemp(prefix="run-", dir=_base()))
    try:
        copy_template(_template(), directory / "data")
        world = _play(seed, directory / "data", excluded(without), calls, naive)
        if world.failure is None:
            _verify(world, directory / "data")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return Result(
        seed=seed,
        failure=world.failure,
        digest=world.digest(),
        hits=dict(sorted(world.faults.hits.items())),
        reached=tuple(sorted(world.reached)),
        events=sum(map(len, world.checks.events.values())),
        samples=len(world.checks.samples),
        cpu_s=time.process_time() - began,
        virtual_s=world.loop.time(),
        lines=tuple(_line(at, what) for at, what in list(world.lines)[-(lines or TOLD) :]),
        without=tuple(without),
    )


def _play(seed: int, directory: Path, without: frozenset[str], calls: bool, naive: bool) -> World:
    faults = Faults(seed, without)

    async def play() -> World:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        world = World(seed, loop, faults, directory, calls, naive)
        loop.set_exception_handler(lambda _, context: _lost(world, context))
        with _logged_to(world):
            await world.main()
            gc.collect()
        return world

    with (
        patch("os.urandom", Random(f"{seed} urandom").randbytes),
        # nobody changes keys here: the Journal need not look for that so often
        patch("breaker_actors.journal.host.ACCESS_S", 4.0),
        patch("breaker_actors.breaker.hosted.INBOX_ROWS_MAX", faults.stream("inbox").choice([9, 90, 100_000])),
        patch("breaker_actors.breaker.background.KEPT_ROWS_MAX", faults.stream("kept").choice([9, 200_000])),
    ):
        return _in_virtual_time(play(), StoppingLoop if faults.stops else VirtualLoop)


def _verify(world: World, directory: Path) -> None:
    """What `breakers verify` says of the data directory that a run leaves. A breaker that is made again while clocks
    are set back lives in a log that knows nothing of its former life: its first event may come before the last one, and
    it may seem to have been made before that, so that nothing excuses a first event with no other behind it."""
    checks, set_back = world.checks, any(kind.startswith("clock_") for kind in world.faults.hits)
    back = {
        (breaker_id, words)
        for breaker_id, seq in (checks.made_anew if set_back else ())
        for words in (
            f"event {seq + 1} happened before event {seq}",
            f"event {seq + 1} was written behind another event {seq} than the one that is there",
        )
    }
    clock: Any = SimpleNamespace(now_ms=world.now_ms)
    for fault in asyncio.run(verified(Settings(data_dir=directory), clock=clock)).faults:
        if fault.kind != "event" or (fault.of not in checks.forgotten and (fault.of, fault.words) not in back):
            world.fail(f"verify finds {fault}")


def _in_virtual_time(work: Coroutine[Any, Any, T], kind: type[VirtualLoop] = VirtualLoop) -> T:
    """Garbage is collected when a run is over, so that what nobody took of a lost task is told of at one moment."""
    loop = kind()
    loop.set_task_factory(task_factory)
    asyncio.set_event_loop(loop)
    gc.disable()
    try:
        return loop.run_until_complete(work)
    finally:
        gc.enable()
        asyncio.set_event_loop(None)
        loop.close()


def _lost(world: World, context: dict[str, Any]) -> None:
    """A task ended with an exception that nobody took, or a callback of the simulation itself failed."""
    error = context.get("exception")
    world.fail(f"{context['message']}: {error!r}", error)


@contextmanager
def _logged_to(world: World) -> Iterator[None]:
    """The service's log goes into the trace; an error in it that no fault explains is a failure."""

    def take(_: Any, method: str, event: dict[str, Any]) -> dict[str, Any]:
        process = RUNS_IN.get()
        if process is not None and process.alive:
            shown = {key: value for key, value in event.items() if key not in ("trace", "traceback")}
            world.trace(process.label, "logs", shown)
            world.reach(f"{process.kind} says {event['event']}")
            if method == "error" and not world.damage.explains(event) and not _explained(event):
                world.fail(f"{process.label} logs {shown}\n{event.get('trace') or event.get('traceback')}")
        raise structlog.DropEvent

    with _logs_to(take):
        yield


@contextmanager
def _logs_to(take: Callable[[Any, str, dict[str, Any]], dict[str, Any]]) -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(processors=[take], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**before)


def _explained(event: dict[str, Any]) -> bool:
    """An error of ours that crossed a round: a part that did not answer, an owner that was fenced."""
    trace = str(event.get("trace") or event.get("traceback") or "").rstrip()
    return trace.rpartition("\n")[2].startswith("breaker_actors.errors.")


def _line(at: float, what: tuple[Any, ...]) -> str:
    return f"{at:9.4f}  " + "  ".join(map(str, what))


_made: dict[str, Path] = {}


def _base() -> Path:
    """A folder for this process's runs, in memory where there is such a place."""
    key = f"base {os.getpid()}"
    if key not in _made:
        memory = Path("/dev/shm")
        place = tempfile.mkdtemp(prefix="breakers-sim-", dir=memory if os.access(memory, os.W_OK) else None)
        _made[key] = Path(place)
        atexit.register(shutil.rmtree, place, ignore_errors=True)
    return _made[key]


def _template() -> Path:
    """Made once per process, with the same ids every time."""
    key = f"template {os.getpid()}"
    if key not in _made:
        place = _base() / "template"
        with _logs_to(_drop):
            # What is made or imported once in a process draws bytes, too: here, and not from those of the template.
            _in_virtual_time(_make(_base() / "first"))
            with patch("os.urandom", Random("template").randbytes):
                _in_virtual_time(_make(place))
        gc.collect()
        gc.freeze()  # what is there by now stays: runs need not look at it
        _made[key] = place
    return _made[key]


def _drop(_: Any, method: str, event: dict[str, Any]) -> dict[str, Any]:
    raise structlog.DropEvent


async def _make(place: Path) -> None:
    make_template(place)


def run_safely(seed: int, **options: Any) -> Result:
    """A run whose own collapse is a failure of its seed, too."""
    try:
        return run_seed(seed, **options)
    except Exception:
        text = "collapsed:\n" + traceback.format_exc(limit=-8)
        return Result(seed, text, "", {}, (), 0, 0, 0.0, 0.0, (), tuple(options.get("without", ())))


def shrink(failed: Result, **options: Any) -> Result:
    """The failure with as few kinds of faults as it needs: each is left out if the seed fails without it, too."""
    for kind in KINDS:
        if kind in failed.without:
            continue
        smaller = run_safely(failed.seed, **{**options, "without": (*failed.without, kind)})
        if smaller.failure is not None:
            failed = smaller
    return failed
