"""Where files of history are kept: a folder, or what fsspec knows by a URL. Files appear whole or not at all."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from breaker_actors.errors import Invalid
from pipelines.sources.atomic_files import replacing

EXTRAS = {"s3": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}
"""Schemes of URLs with what has to be installed for them."""
ERROR_CHARS_MAX = 300


class Place(Protocol):
    """Files by names with slashes. A name that begins with a dot, in any of its parts, is a file on its way."""

    url: str

    def names(self, under: str) -> list[str]:
        """All files below a prefix of whole parts, sorted."""

    def read(self, name: str) -> bytes | None:
        """The content; None when there is no such file."""

    def write(self, name: str, content: bytes) -> None:
        """Takes the place of a file of that name in one step. Raises Invalid for a name that leads elsewhere."""

    def sweep(self, under: str, prefix: str) -> None:
        """Removes what was on its way, below `under`, to names that begin so: what killed processes left."""

    def remove(self, name: str) -> None:
        """Removes a file, if it is there."""


def _within(name: str) -> str:
    """The name itself. Raises Invalid for one that leads out of the place."""
    if name.startswith("/") or {"", ".", ".."} & set(name.split("/")):
        raise Invalid(f"{name!r} is no name of a file here")
    return name


def open_place(url: str) -> Place:
    """By a path or a URL such as s3://bucket/history. Raises Invalid for a URL that can't be used here."""
    scheme, found, rest = url.partition("://")
    if not found:
        return Folder(Path(url))
    if scheme == "file":
        return Folder(Path(rest))
    return Remote(url)


class Folder:
    """A folder of this machine, or one that its machines share."""

    def __init__(self, path: Path) -> None:
        self.url = str(path.absolute())
        self._path = path.absolute()

    def names(self, under: str) -> list[str]:
        return sorted(name for name in self._walk(under) if not name.rpartition("/")[2].startswith("."))

    def _walk(self, under: str) -> Iterator[str]:
        for folder, _, files in os.walk(self._path / under):
            at = os.path.relpath(folder, self._path)
            yield from (f"{at}/{file}" for file in files)

    def read(self, name: str) -> bytes | None:
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Invalid(f"{self._path / name} can't be read: {error.strerror}") from None

    def write(self, name: str, content: bytes) -> None:
        path = self._path / _within(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Invalid(f"{path.parent} can't be made: {error.strerror}") from None
        with replacing(path) as beside:
            beside.write_bytes(content)

    def sweep(self, under: str, prefix: str) -> None:
        for name in list(self._walk(under)):
            if name.rpartition("/")[2].startswith(f".{prefix}"):
                (self._path / name).unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        try:
            (self._path / _within(name)).unlink(missing_ok=True)
        except OSError as error:
            raise Invalid(f"{self._path / name} can't be removed: {error.strerror}") from None


class Remote:
    """A file system of fsspec's."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        try:
            fsspec = importlib.import_module("fsspec")
        except ModuleNotFoundError:
            raise Invalid(f"{url}: a URL needs the package fsspec; a path needs nothing") from None
        scheme = url.partition("://")[0]
        self._failures: tuple[type[Exception], ...] = (OSError, *_register(scheme))
        try:
            self._fs, root = fsspec.core.url_to_fs(self.url)
        except ImportError as error:
            extra = EXTRAS.get(scheme)
            raise Invalid(
                f"{url} can't be used: {error}" if extra is None else f"{url} needs breaker-actors[{extra}] installed"
            ) from None
        except Exception as error:
            if not isinstance(error, (ValueError, *self._failures)):
                raise
            raise Invalid(f"{url} can't be used: {_first_line(error)}") from None
        self._root = str(root).rstrip("/")

    def names(self, under: str) -> list[str]:
        return sorted(name for name in self._walk(under) if not name.rpartition("/")[2].startswith("."))

    def _walk(self, under: str) -> list[str]:
        found = self._if_there(self._fs.find, f"{self._root}/{under}")
        return [str(path)[len(self._root) + 1 :] for path in found or ()]

    def read(self, name: str) -> bytes | None:
        found: bytes | None = self._if_there(self._fs.cat_file, f"{self._root}/{name}")
        return found

    def write(self, name: str, content: bytes) -> None:
        folder, _, file = f"{self._root}/{_within(name)}".rpartition("/")
        beside = f"{folder}/.{file}.{uuid4().hex}"
        with self._told():
            self._fs.makedirs(folder, exist_ok=True)
            self._fs.pipe_file(beside, content)
            self._fs.mv(beside, f"{folder}/{file}")

    def sweep(self, under: str, prefix: str) -> None:
        for name in self._walk(under):
            if name.rpartition("/")[2].startswith(f".{prefix}"):
                self._if_there(self._fs.rm_file, f"{self._root}/{name}")

    def remove(self, name: str) -> None:
        self._if_there(self._fs.rm_file, f"{self._root}/{_within(name)}")

    def _if_there(self, work: Callable[[str], Any], path: str) -> Any:
        """What it gives; None when there is no such file."""
        with self._told():
            try:
                return work(path)
            except FileNotFoundError:
                return None

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except self._failures as error:
            raise Invalid(f"{self.url} does not work: {_first_line(error)}") from None


def _register(scheme: str) -> tuple[type[Exception], ...]:
    """Has fsspec reach stores of clouds by obstore, where that is installed, and else by whatever it finds itself. The
    errors that obstore raises beside OSError."""
    if scheme not in EXTRAS:
        return ()
    try:
        obstore = importlib.import_module("obstore.fsspec")
        errors = importlib.import_module("obstore.exceptions")
    except ModuleNotFoundError:
        return ()
    obstore.register(scheme)
    return (errors.BaseError,)


def _first_line(error: Exception) -> str:
    """A store's own answer may be pages of XML."""
    lines = str(error).splitlines()
    return lines[0][:ERROR_CHARS_MAX] if lines else type(error).__name__
