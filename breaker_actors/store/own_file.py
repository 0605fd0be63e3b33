"""Files of this process' user alone. What a path leads to is judged by its kind, owner and mode on the open descriptor,
never by its name; no symbolic link is followed at its end, and nothing waits for the other end of a pipe."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from breaker_actors.errors import Invalid

OTHERS, OTHERS_WRITE = 0o077, 0o022
READ_BYTES_MAX = 64 << 10
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def read_own(path: Path, forbidden: int = OTHERS_WRITE) -> bytes:
    """The content of a file of this user, in a folder of this user: 64 KiB at most. `forbidden`: bits of its mode.

    Raises Invalid when somebody else may have written it, OSError when it can't be read."""
    with opened(path.parent, os.O_RDONLY | os.O_DIRECTORY) as folder:
        check_owner(folder, path.parent, OTHERS_WRITE)
        with opened(path, os.O_RDONLY, folder) as descriptor:
            check_owner(descriptor, path, forbidden)
            check_regular(descriptor, path)
            content = os.read(descriptor, READ_BYTES_MAX + 1)
    if len(content) > READ_BYTES_MAX:
        raise Invalid(f"{path} is larger than {READ_BYTES_MAX} bytes")
    return content


@contextlib.contextmanager
def opened(path: Path, flags: int, folder: int | None = None) -> Iterator[int]:
    """As `open_itself`; closed at the end."""
    descriptor = open_itself(path, flags, folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_itself(path: Path, flags: int, folder: int | None = None) -> int:
    """A descriptor of the path itself, or of its name in the open folder; never of what a symbolic link leads to."""
    try:
        return os.open(path if folder is None else path.name, flags | _FLAGS, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            wanted = "folder" if flags & os.O_DIRECTORY else "file"
            raise Invalid(f"{path} is a symbolic link, or no {wanted}") from None
        raise


def open_own(path: Path, flags: int) -> int:
    """A descriptor of a regular file of this user that others can't write; no symbolic link is followed at its end.

    Made with mode 600 where `flags` say so. Raises Invalid for another kind of file, owner or mode."""
    descriptor = open_itself(path, flags)
    try:
        check_owner(descriptor, path, OTHERS_WRITE)
        check_regular(descriptor, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_regular(descriptor: int, path: Path) -> None:
    """Raises Invalid for a folder, a pipe, a socket or a device."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise Invalid(f"{path} is no regular file")


def check_owner(descriptor: int, path: Path, forbidden: int) -> None:
    """Raises Invalid when it is another user's, or its mode has one of the forbidden bits."""
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid():
        raise Invalid(f"{path} belongs to another user (uid {found.st_uid}), not to the service's (uid {os.geteuid()})")
    if found.st_mode & forbidden:
        mode = stat.S_IMODE(found.st_mode)
        raise Invalid(f"{path} is open to other users (mode {mode:03o}); if all in it is yours: chmod go-rwx {path}")
