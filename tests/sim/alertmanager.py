"""The Alertmanager of a run: it remembers the last that it heard of each set of labels, and lets go what has ended."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from breaker_actors.clock import rfc3339
from breaker_actors.notify.channels.alertmanager import render
from breaker_actors.notify.model import Destination, Message

STANDING = """
    SELECT DISTINCT o.breaker_id FROM outbox o JOIN channels c ON c.id = o.channel_id AND c.channel = 'alertmanager'
    JOIN records r ON r.breaker_id = o.breaker_id AND r.state != 'closed'
    WHERE o.kind = 'trip' AND o.state = 'sent' AND NOT EXISTS (
        SELECT 1 FROM events e WHERE e.breaker_id = o.breaker_id AND e.transition_seq > o.transition_seq
        AND e.prev = 'closed' AND e.hidden_by IS NULL)
"""


class FarAlertmanager:
    """`renewal_ms`: how often it hears of what stands."""

    def __init__(self, store: Path, renewal_ms: int) -> None:
        self._store = sqlite3.connect(store, isolation_level=None)
        self._renewal_ms = renewal_ms
        self._ends: dict[frozenset[tuple[str, str]], str] = {}
        self._over: dict[tuple[frozenset[tuple[str, str]], str], tuple[str, int]] = {}
        """Ends by labels and beginning: who told, of which move. Two outages may begin in one millisecond."""

    def close(self) -> None:
        self._store.close()

    def hear(self, to: Destination, messages: Sequence[Message], now_ms: int, who: str) -> str:
        """What is wrong with what arrived from a process, in words; "": nothing. One that was replaced may be late."""
        for message in messages:
            alert = render(message, to.config, now_ms, self._renewal_ms)
            labels = frozenset(alert["labels"].items())
            if message.kind != "trip" and labels not in self._ends:
                return f"the end of an alert that nobody knows by these labels: {alert['labels']}"
            process, seq = self._over.get((labels, alert["startsAt"]), ("", 0))
            if message.kind == "trip" and process == who and message.transition_seq < seq:
                return f"an alert stands again behind its end: {alert['labels']}"
            if message.kind != "trip":
                self._over[labels, alert["startsAt"]] = who, message.transition_seq
            self._ends[labels] = alert["endsAt"]
        return ""

    def different(self, now_ms: int) -> set[str]:
        """Breakers that it believes the contrary of."""
        now = rfc3339(now_ms)
        firing = {dict(labels)["breaker_id"] for labels, ends in self._ends.items() if ends > now}
        return firing ^ {breaker_id for (breaker_id,) in self._store.execute(STANDING)}
