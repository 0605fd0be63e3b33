"""A loss of power, played back: what a service's processes wrote and synced is noted while it runs, then what a disk
may hold of it at any instant is put together (CrashMonkey's method, OSDI 2018).

What was synced is there. Of what was written since, each page is there or not, the last one perhaps in part; names of
files made, renamed or removed since their folder was synced are the old or the new ones.
"""

from __future__ import annotations

import enum
import functools
import itertools
import random
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

PAGE_BYTES, SECTOR_BYTES = 4096, 512
CHANCES = (0.0, 0.5, 0.9, 1.0)
"""Of a page that was written and not synced, to be there: one of these for each cut."""
_RECORD = struct.Struct("<QQQIIII")


class Kind(enum.IntEnum):
    """As the library numbers them."""

    MAKE, WRITE, TRUNCATE, SYNC, RENAME, LINK, UNLINK, FOLDER = range(1, 9)


class Op(NamedTuple):
    """One call that succeeded. Times are CLOCK_MONOTONIC's, in ns; `second`: the new name."""

    ended: int
    begun: int
    kind: Kind
    path: str
    second: str
    offset: int
    data: bytes


@functools.cache
def shim() -> Path:
    """The library that notes calls, compiled for this machine."""
    library = Path(tempfile.mkdtemp(prefix="brk-power-")) / "shim.so"
    source = Path(__file__).with_name("power_shim.c")
    compiler = [sys.executable, "-m", "ziglang", "cc", "-shared", "-fPIC", "-O2"]
    subprocess.run([*compiler, "-o", str(library), str(source)], check=True, capture_output=True, timeout=300)
    return library


def environment(data_dir: Path, traces: Path) -> dict[str, str]:
    """For a service whose calls below its data directory are to be noted."""
    traces.mkdir()
    return {"LD_PRELOAD": str(shim()), "POWER_ROOT": str(data_dir), "POWER_TRACES": str(traces)}


class FaultyDisk:
    """Calls below a service's data directory that fail now and then."""

    def __init__(self, data_dir: Path, place: Path) -> None:
        self._file = place / "faults"
        self.environ = {"LD_PRELOAD": str(shim()), "POWER_ROOT": str(data_dir), "POWER_TRACES": "/dev/null"}
        self.environ["POWER_FAULTS"] = str(self._file)

    @contextmanager
    def failing(self, kind: Kind, error: int, among: int) -> Iterator[None]:
        """One call in so many."""
        self._file.write_text(f"{int(kind)} {error} {among}")
        try:
            yield
        finally:
            self._file.unlink()


def read_traces(folder: Path) -> list[Op]:
    """What all processes did, in the order in which the calls ended."""
    return sorted(op for path in folder.iterdir() for op in _read(path.read_bytes()))


def _read(trace: bytes) -> Iterator[Op]:
    at = 0
    while at + _RECORD.size <= len(trace):
        begun, ended, offset, kind, path, second, data = _RECORD.unpack_from(trace, at)
        ends = [at := at + size for size in (_RECORD.size, path, second, data)]
        if at > len(trace):
            return  # its process was killed meanwhile
        parts = [trace[a:b] for a, b in itertools.pairwise(ends)]
        yield Op(ended, begun, Kind(kind), parts[0].decode(), parts[1].decode(), offset, parts[2])


@dataclass(eq=False)
class _File:
    """`synced`: its bytes that are on the disk for certain; `since`: what was done to it after that."""

    synced: bytearray = field(default_factory=bytearray)
    since: list[Op] = field(default_factory=list)

    def sync(self, begun: int) -> None:
        """What had ended when the call began is on the disk."""
        for op in self.since:
            if op.ended <= begun:
                _apply(self.synced, op)
        self.since = [op for op in self.since if op.ended > begun]

    def after_cut(self, rng: random.Random, chance: float) -> bytes:
        content = bytearray(self.synced)
        for op in self.since:
            if op.kind == Kind.TRUNCATE:
                if rng.random() < chance:
                    _apply(content, op)
                continue
            for page in _pages(op):
                if rng.random() < chance:
                    torn = rng.random() < 0.02
                    _apply(content, page._replace(data=page.data[:SECTOR_BYTES]) if torn else page)
        return bytes(content)


def _pages(op: Op) -> Iterator[Op]:
    at = 0
    while at < len(op.data):
        size = PAGE_BYTES - (op.offset + at) % PAGE_BYTES
        yield op._replace(offset=op.offset + at, data=op.data[at : at + size])
        at += size


def _apply(content: bytearray, op: Op) -> None:
    if op.kind == Kind.TRUNCATE:
        del content[op.offset :]
    end = op.offset + len(op.data)
    content.extend(bytes(max(0, (end if op.kind == Kind.WRITE else op.offset) - len(content))))
    content[op.offset : end] = op.data


class Disk:
    """What lies below a folder, as calls change it."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._names: dict[str, _File | None] = {}
        self._synced_names: dict[str, _File | None] = {}

    def do(self, op: Op) -> None:
        """Folders are names without a file."""
        names = self._names
        match op.kind:
            case Kind.MAKE:
                names[op.path] = _File()
            case Kind.WRITE | Kind.TRUNCATE:
                file = names.get(op.path)
                if file is not None:  # else it is removed already
                    file.since.append(op)
            case Kind.RENAME:
                names[op.second] = names.pop(op.path)
            case Kind.LINK:
                names[op.second] = names[op.path]
            case Kind.UNLINK:
                names.pop(op.path, None)
            case Kind.FOLDER:
                names[op.path] = None
            case _:
                self._sync(op)

    def _sync(self, op: Op) -> None:
        file = self._names.get(op.path)
        if file is not None:
            file.sync(op.begun)
            return
        for names in (self._names, self._synced_names):
            for path in [path for path in names if path.rpartition("/")[0] == op.path]:
                if path in self._names:
                    self._synced_names[path] = self._names[path]
                else:
                    del self._synced_names[path]

    def after_cut(self, rng: random.Random, place: Path) -> None:
        """Writes what the power left into a new folder."""
        chance = rng.choice(CHANCES)
        place.mkdir()
        left: dict[str, _File | None] = {}
        for path in sorted(self._names.keys() | self._synced_names.keys()):
            names = self._names if rng.random() < chance else self._synced_names
            above = path.rpartition("/")[0]
            if path in names and (above == self._root or above in left):
                left[path] = names[path]
        for path, file in left.items():
            to = place / path[len(self._root) + 1 :]
            if file is None:
                to.mkdir()
            else:
                to.write_bytes(file.after_cut(rng, chance))
                to.chmod(0o600)


def cuts(ops: Sequence[Op], root: Path, instants: Sequence[int], rng: random.Random, place: Path) -> Iterator[Path]:
    """For each instant, in order, a folder with what the disk holds when the power goes then."""
    disk, done = Disk(root), 0
    for number, instant in enumerate(sorted(instants)):
        while done < len(ops) and ops[done].ended <= instant:
            disk.do(ops[done])
            done += 1
        disk.after_cut(rng, place / str(number))
        yield place / str(number)
