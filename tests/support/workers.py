"""How the suite uses a machine: three workers, bytecode that is kept, and folders of tests in memory.

Workers run whole modules, so that what a module shares is made once. End-to-end tests, which share a service and mostly
wait for its processes, are in one of them; the others compute meanwhile, at the lowest priority, and take what is left
of two cores. Who measures time is marked `alone`: nothing runs in the other workers then. `-n 0` runs all in one
process, as do one file, `-m slow`, `--pdb` and `-p no:xdist`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import gc
import os
import shutil
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

WORKERS = 3
NICE = 19
"""Of what computes beside end-to-end tests. Ray gives its actors 15."""
E2E = "tests/e2e/"
FIRST = (E2E, "tests/conformance", "tests/contract", "tests/sim", "tests/unit/engine", "tests/unit/api/app")
"""What takes longest begins first: short modules at the end fill both workers."""
GRACE_S = 120.0
_IN_MEMORY, _ROOM = Path("/dev/shm"), 4 << 30


def keep_bytecode() -> None:
    """The tests start hundreds of processes. Each would compile what it imports, a second or two of work, and each
    worker would rewrite every test module."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def _is_slow(config: pytest.Config) -> bool:
    words = str(config.option.markexpr)
    return "slow" in words and "not slow" not in words


def _is_one_file(config: pytest.Config) -> bool:
    files = {argument.split("::")[0] for argument in config.args}
    return len(files) == 1 and files.pop().endswith(".py")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Before xdist looks at its options."""
    if _is_slow(config):
        return
    with contextlib.suppress(OSError):
        if shutil.disk_usage(_IN_MEMORY).free > _ROOM:
            # A thousand tests make a database each, and each waits for the disk at every commit.
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_IN_MEMORY))
    option = config.option
    if not config.pluginmanager.hasplugin("xdist") or hasattr(config, "workerinput"):
        return
    wanted = option.numprocesses is None and option.dist == "no" and not option.tx
    if wanted and not (option.usepdb or option.collectonly or _is_one_file(config)):
        option.numprocesses, option.dist, option.loadscopereorder = WORKERS, "loadfile", False


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Modules one by one, but all end-to-end tests in one worker: they share a service."""
    if config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return E2E if nodeid.startswith(E2E) else str(super()._split_scope(nodeid))

    return Scheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Modules and tests are there to stay: half a million objects, through which the garbage collector would look again
    and again while they are collected, and with every few apps that a test leaves behind."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: next((n for n, at in enumerate(FIRST) if item.nodeid.startswith(at)), len(FIRST)))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Around all of a test, outside its time limit."""
    marked = item.get_closest_marker("timeout")
    with _ended_anyhow(float(marked.args[0] if marked and marked.args else item.config.getini("timeout"))):
        return (yield from _placed(item))


@contextlib.contextmanager
def _ended_anyhow(limit_s: float) -> Iterator[None]:
    """The time limit of a test is an exception, which a task in the background may take: then its process ends a while
    later, and says where it was."""
    faulthandler.dump_traceback_later(limit_s + GRACE_S, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _placed(item: pytest.Item) -> Generator[None, Any, Any]:
    if not hasattr(item.config, "workerinput"):
        return (yield)
    if not item.nodeid.startswith(E2E):
        os.nice(max(0, NICE - os.nice(0)))  # for good: end-to-end tests come first
    alone = item.get_closest_marker("alone") is not None
    with _beside_others(Path(item.config.option.basetemp).parent, alone):
        return (yield)


@contextlib.contextmanager
def _beside_others(folder: Path, alone: bool) -> Iterator[None]:
    """A room for many, or for one. All come through a gate, which one who wants to be alone keeps until the room is
    empty: others do not pass by."""
    with (folder / "room.lock").open("w") as room:
        with (folder / "gate.lock").open("w") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        try:
            yield
        finally:
            fcntl.flock(room, fcntl.LOCK_UN)  # also where a process that a test has forked still has the file
