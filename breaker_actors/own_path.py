"""The way to the data directory: whether another user could put something else in its place."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from breaker_actors.errors import Invalid

LINKS_MAX = 40
"""Symbolic links on a way, as the kernel has it."""


def without_links(path: Path) -> Path:
    """The absolute path without symbolic links, to be used in the place of `path` from here on: what a link says later
    counts no more. Walks `path` as it is given, part by part, as far as it is there. Raises Invalid for a link that is
    neither root's nor this user's, or that others could replace, and for what can't be walked."""
    way, place, links = _parts(path.absolute()), Path("/"), 0
    while way:
        part = way.pop()
        if part == "..":
            place = place.parent
            continue
        try:
            found = (place / part).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return Path(os.path.normpath(place.joinpath(part, *reversed(way))))
        except OSError as error:
            raise Invalid(f"data directory {path} can't be used: {error.strerror}") from None
        place /= part
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > LINKS_MAX:
                raise Invalid(f"data directory {path} can't be used: more than {LINKS_MAX} symbolic links")
            target = _target(place, found.st_uid)
            place = Path("/") if target.is_absolute() else place.parent
            way += _parts(target)
    return place


def _parts(path: Path) -> list[str]:
    """Names of a path, the last one first."""
    return [part for part in reversed(path.parts) if not part.startswith("/")]


def _target(link: Path, owner: int) -> Path:
    """Where a link leads that nobody else has made, or could replace. Raises Invalid."""
    if owner not in (0, os.geteuid()):
        raise Invalid(f"{link} is a symbolic link of another user (uid {owner})")
    check_parents(link)
    try:
        return link.readlink()
    except OSError as error:
        raise Invalid(f"{link} can't be used: {error.strerror}") from None


def check_parents(path: Path) -> None:
    """Raises Invalid when another user could put something else in the place of what has this path, or of a folder
    above it, and when one of them is a symbolic link: it may lead elsewhere later."""
    for parent in path.parents:
        found = parent.lstat()
        if stat.S_ISLNK(found.st_mode):
            raise Invalid(f"{path} leads through a symbolic link: {parent}")
        others = stat.S_IWOTH | (stat.S_IWGRP if found.st_gid not in (0, os.getegid()) else 0)
        if found.st_uid not in (0, os.geteuid()) or (found.st_mode & others and not found.st_mode & stat.S_ISVTX):
            raise Invalid(f"{path} can be replaced by others: {parent} belongs to them, or they may write to it")
