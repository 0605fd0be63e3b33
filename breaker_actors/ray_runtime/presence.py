"""A service's sign of life: in a database that others reach, from the process of its Directory, the one there is; in a
data directory, where that is its database, from each actor."""

from __future__ import annotations

import os
from typing import IO, TYPE_CHECKING

import structlog

from breaker_actors.errors import Invalid
from breaker_actors.persistence import store_url
from breaker_actors.settings import Settings
from breaker_actors.store import holders

if TYPE_CHECKING:
    from breaker_actors.sql.presence import Presence


def show_presence(settings: Settings, session: str) -> Presence | None:
    """Begins to show it, by the token that `serve` has set or that of the Ray `session`; None where the database is
    this machine's alone, which needs no driver of PostgreSQL either."""
    if settings.database_url is None:
        return None
    from breaker_actors.sql.presence import SERVICE, Presence, token_of

    shown = Presence(store_url(settings), os.environ.get(SERVICE) or token_of(session))
    shown.start()
    return shown


def hold_data_dir(settings: Settings, session: str, address: str) -> IO[bytes] | None:
    """Holds the data directory while this process lives, for the service of the Ray `session` on the cluster at
    `address`. None: the database is elsewhere, or the process of `serve` has the directory. Where it can't be held the
    service goes on without. Raises Unavailable while a command has it alone."""
    if settings.database_url is not None or os.environ.get(holders.HELD) == str(settings.data_dir):
        return None
    try:
        return holders.hold(settings.data_dir, holders.Service(session, address))
    except (OSError, Invalid) as error:
        structlog.get_logger().warning("data_dir_not_held", error=str(error))
        return None
