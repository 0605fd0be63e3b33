"""What belongs to the service's user alone: folders and files nobody else may write or enter, and reading only such.

What other processes wrote decides whom we connect to and whom we give the token, so it is judged by its owner and mode
on the open descriptor, never by its name.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from breaker_actors.errors import Invalid
from breaker_actors.own_path import check_parents
from breaker_actors.sql.sqlite import sync_folder
from breaker_actors.store.own_file import (
    OTHERS,
    OTHERS_WRITE,
    check_owner,
    check_regular,
    open_own,
    opened,
    read_own,
)

__all__ = ["OTHERS", "check_parents", "open_own", "opened", "read_own"]

# By one of these a data directory is known as ours; from such a one, or an empty one, others can be shut out.
_KNOWN = frozenset({"lock", "ray.token", "credentials.json", "secret.key", "breakers.sqlite"})


def keep_private() -> None:
    """From here on, what this process and all below it make is this user's alone."""
    os.umask(OTHERS)


def make_data_dir(path: Path) -> None:
    """Makes the data directory if needed, and sees that nobody else may enter it. Raises Invalid if that can't be, and
    for a path with a symbolic link: settings have none."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    with opened(path, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        check_owner(descriptor, path, OTHERS_WRITE)
        if os.fstat(descriptor).st_mode & OTHERS:
            names = set(os.listdir(descriptor))
            if names and not names & _KNOWN:
                raise Invalid(f"{path} is open to other users and holds other things: chmod 700 {path}")
            os.fchmod(descriptor, 0o700)
    check_parents(path)


def check_data_dir(path: Path, names: Iterable[str], whole: bool, found: bool = False) -> None:
    """Sees, without a change, that a data directory is this user's and nobody else may write to it or replace it, nor
    to what of these names is in it; to all in its folders, too, if `whole`. One that was `found`, as nobody named it,
    has to be closed as a service leaves it. Raises Invalid. One that is not there passes."""
    try:
        with opened(path, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
            check_owner(descriptor, path, OTHERS_WRITE)
        check_parents(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise Invalid(f"data directory {path} can't be used: {error.strerror}") from None
    check_entries(path, names, close=False, whole=whole)
    if found:
        _check_closed(path)


def _check_closed(path: Path) -> None:
    """Raises Invalid for a data directory with anything in it that others may enter, or read keys of: a service makes
    it with mode 700, its files with 600, and a checkout has other modes under the usual umask."""
    names = os.listdir(path)
    for one in (path, *(path / name for name in sorted(_KNOWN & {*names}))):
        mode = stat.S_IMODE(one.lstat().st_mode)
        if names and mode & OTHERS:
            raise Invalid(
                f"{one} is open to other users (mode {mode:03o}), as no service leaves it: if {path} came with what you"
                f" cloned or unpacked, move it away; if all in it is yours: chmod -R go-rwx {path}"
            )


def check_entries(data_dir: Path, names: Iterable[str], close: bool = True, whole: bool = True) -> None:
    """Looks at what of these names lies in the data directory, and at all in folders: somebody may have put it there
    before others were shut out. Raises Invalid for a symbolic link, a file with a second name, and what another user
    owns or may write; what others may only read is closed to them, if `close`."""
    for path in map(data_dir.joinpath, names):
        if os.path.lexists(path):
            _check_entry(path, close)
            if whole and path.is_dir():  # no link: that was looked at
                for folder, folders, files in os.walk(path):
                    for name in (*folders, *files):
                        _check_entry(Path(folder, name), close)


def _check_entry(path: Path, close: bool) -> None:
    try:
        _look_at(path, close)
    except FileNotFoundError:
        return  # SQLite's side files come and go
    except OSError as error:
        raise Invalid(f"{path} can't be used: {error.strerror}") from None


def _look_at(path: Path, close: bool) -> None:
    with opened(path, os.O_RDONLY) as descriptor:
        check_owner(descriptor, path, OTHERS_WRITE)
        found = os.fstat(descriptor)
        if not stat.S_ISDIR(found.st_mode):
            check_regular(descriptor, path)
            if found.st_nlink != 1:
                raise Invalid(
                    f"{path} has a second name (hard link) by which others may reach it: put a copy in its place"
                )
        if close and found.st_mode & OTHERS:
            os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & ~OTHERS)


def check_link(path: Path) -> None:
    """Raises Invalid unless there is nothing, or a symbolic link of this user."""
    with contextlib.suppress(FileNotFoundError):
        found = path.lstat()
        if not stat.S_ISLNK(found.st_mode) or found.st_uid != os.geteuid():
            raise Invalid(f"{path} is not the link that the service makes: move it away")


def check_folder(path: Path) -> None:
    """Raises Invalid when the folder is not this user's alone, OSError when there is none."""
    with opened(path, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        check_owner(descriptor, path, OTHERS)


def replace_own(path: Path, content: str) -> None:
    """Replaces the file in one step: it is never there half, nor readable for others."""
    with _draft(path, content) as draft:
        draft.replace(path)
    sync_folder(path.parent)


def make_own(path: Path, content: str) -> None:
    """Makes the file as a whole, unless it is there: of several processes that start together one makes it."""
    with _draft(path, content) as draft, contextlib.suppress(FileExistsError):
        os.link(draft, path)
    sync_folder(path.parent)


@contextlib.contextmanager
def _draft(path: Path, content: str) -> Iterator[Path]:
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield draft
    finally:
        draft.unlink(missing_ok=True)
