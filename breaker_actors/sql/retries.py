"""How often a transaction is done again that the database gave up for the sake of another one."""

from __future__ import annotations

AGAIN = ("40P01", "40001")
"""Deadlock, serialization failure, as PostgreSQL calls them: the transaction left no trace and may be done again."""
TRIES, AGAIN_S = 5, 0.01
