"""How many streams an organisation may have open in one replica: a stream keeps its connection, and with it one of
HAProxy's, for as long as its client likes, so they are shared as the connections are. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from breaker_actors.errors import Overloaded
from breaker_actors.settings import Settings
from breaker_actors.transport.turns import Shares

CONNECTIONS = "RAY_SERVE_HAPROXY_MAXCONN"
CONNECTIONS_UNKNOWN = 40_000


class OrgStreams:
    """`most`: of an organisation alone; of several each as many as it leaves free of twice that. 0: any number."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._shares = Shares(most)

    @classmethod
    def of(cls, settings: Settings, environ: Mapping[str, str]) -> OrgStreams:
        """By the setting, else half of HAProxy's connections, which all replicas share."""
        if settings.streams_per_org_max is not None:
            return cls(settings.streams_per_org_max)
        connections = int(environ.get(CONNECTIONS) or CONNECTIONS_UNKNOWN)
        return cls(max(1, connections // 2 // settings.replicas))

    def admit(self, org_id: str) -> None:
        """Raises Overloaded where there is no room for one more."""
        if self._most and not self._shares.has_room(org_id, 1):
            limit = {"limit": "BREAKERS_STREAMS_PER_ORG_MAX", "retry_after_s": 5}
            raise Overloaded("Too many open streams of this organisation.", limit)

    def opened(self, org_id: str) -> None:
        """Counts one, which was admitted."""
        self._shares.add(org_id, 1)

    def closed(self, org_id: str) -> None:
        self._shares.give_back(org_id, 1)
