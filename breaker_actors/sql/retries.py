"""How often a transaction is done again that the database gave up for the sake of another one."""

from __future__ import annotations

AGAIN = ("40P01", "40001")
"""Deadlock, serialization failure, as PostgreSQL calls them: the transaction left no trace and may be done again."""
TRIES, AGAIN_S = 5, 0.01
TOO_LONG = ("25P03", "25P04")
"""The same of a session that was ended inside a transaction, since nothing was asked for too long, or it went on for
too long: no trace either, but the same again would take as long."""
