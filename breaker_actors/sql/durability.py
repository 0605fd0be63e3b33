"""What commits survive: a loss of power, or the end of processes only."""

from __future__ import annotations

from sqlalchemy import Connection, text

_FULL = 2


def power_loss(c: Connection) -> str:
    """Why the newest commits may be gone after a loss of power; "" when all are there (SQLite, "PRAGMA synchronous";
    PostgreSQL 17, section 19.5.1)."""
    if c.dialect.name == "sqlite":
        level = c.execute(text("PRAGMA synchronous")).scalar_one()
        return "" if level >= _FULL else "BREAKERS_DURABILITY=process"
    for name in ("fsync", "synchronous_commit"):
        if c.execute(text(f"SHOW {name}")).scalar_one() == "off":  # nosec B608 # constants
            return f"PostgreSQL runs with {name}=off"
    return ""
