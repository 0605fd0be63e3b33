"""How often a caller may ask: a budget per key for the events list and for other requests, one per project for ingest.

quart-rate-limiter counts (GCRA: a steady rate, and a burst of one second of it); this module says what shares a budget
and bounds what is remembered. Each replica counts for itself, so each grants its share of the rate. Health probes,
streams (bounded by their number instead) and the description of the interface are free.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from quart import Quart, request
from quart_rate_limiter import RateLimit, RateLimiter
from quart_rate_limiter.store import RateLimiterStoreABC

from api.auth import bearer
from breaker_actors.meters import Meters
from breaker_actors.settings import Settings

CALLERS_MAX = 100_000
FREE = frozenset({"health", "stream", "spec"})
"""Blueprints without a budget."""


class Budgets(RateLimiter):
    """The limiter of one replica. Unlike its base, requests of all routes of a budget count together."""

    def __init__(self, settings: Settings, meters: Meters) -> None:
        callers = RecentCallers(CALLERS_MAX)
        super().__init__(store=callers)
        meters.watch(lambda: meters.total("breakers_callers_forgotten_total", callers.forgotten))
        share = settings.replicas
        self._requests = budget(settings.rate_requests_per_s, share, _key)
        self._by_blueprint = {
            "events": budget(settings.rate_events_per_s, share, _events_key),
            "ingest": budget(settings.rate_ingest_per_s, share, _project),
        } | {name: [] for name in FREE}

    def _get_limits_for_view_function(self, view_func: Any, blueprint: Any) -> list[RateLimit]:
        return self._by_blueprint.get(request.blueprint or "", self._requests)

    async def _create_key(self, endpoint: str, rate_limit: RateLimit) -> str:
        key_function = rate_limit.key_function or self.key_function
        return await key_function()

    async def _after_request(self, response: Any) -> Any:
        """No headers on what is within budget: they would cost every answer three lookups."""
        return response


def budget(per_s: int, replicas: int, key_function: Any) -> list[RateLimit]:
    """The limit of one replica: a burst of `per_s`, and `per_s` / `replicas` a second; nothing for 0."""
    return [RateLimit(per_s, timedelta(seconds=replicas), key_function)] if per_s else []


async def _key() -> str:
    """The caller: the key it presents, else where it comes from. Keys themselves are not kept."""
    key = bearer(request.headers.get("Authorization"))
    return f"key {hash(key)}" if key else f"address {request.remote_addr}"


async def _events_key() -> str:
    return f"events {await _key()}"


async def _project() -> str:
    return f"ingest {(request.view_args or {}).get('project_id')}"


class RecentCallers(RateLimiterStoreABC):
    """When each caller's budget is whole again; of too many callers the one unheard of longest is forgotten."""

    def __init__(self, callers_max: int) -> None:
        self._callers_max = callers_max
        self._whole_at: dict[str, datetime] = {}
        self.forgotten = 0

    async def get(self, key: str, default: datetime) -> datetime:
        return self._whole_at.get(key, default)

    async def set(self, key: str, tat: datetime) -> None:
        self._whole_at.pop(key, None)
        self._whole_at[key] = tat
        if len(self._whole_at) > self._callers_max:
            del self._whole_at[next(iter(self._whole_at))]
            self.forgotten += 1

    async def before_serving(self) -> None: ...

    async def after_serving(self) -> None: ...


def install(app: Quart, settings: Settings, meters: Meters) -> None:
    """Puts the budgets before every handler."""
    Budgets(settings, meters).init_app(app)
