"""A service's sign of life in a database that others reach: from the process of its Directory, the one there is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from breaker_actors.persistence import store_url
from breaker_actors.settings import Settings

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
