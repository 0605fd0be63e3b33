"""How often a caller may ask: a budget per key for the events list, for sign-ins at the console and for other requests,
one per project for ingest and one per ingest token, one per project and per key for test notifications, and one per
source address for all that presents no key or project that is known.

A key has a budget of its own only once it was found, so that a new key for each request gains nothing; a request whose
key turns out to be valid does not count against its address. Beyond that budget answers come late: whoever asks on and
on should wait, not the service.

quart-rate-limiter counts (GCRA: a steady rate, and a burst); this module says what shares a budget and bounds what is
remembered. Each replica counts for itself, so each grants its share of the rate. Health probes, the description of the
interface and, with a known key, streams (bounded by their number instead) are free.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal

from quart import Quart, current_app, g, request
from quart_rate_limiter import RateLimit, RateLimiter, RateLimitExceeded
from quart_rate_limiter.store import RateLimiterStoreABC

from api.admission.addresses import source
from api.auth import bearer
from api.context.current import acting_key, arrival, callers, path_project, sender_token, session_token
from api.context.replica import replica
from api.lookup.caches import Caches
from api.wire.decoding import SAMPLES_MAX
from breaker_actors.errors import Overloaded
from breaker_actors.settings import Settings
from breaker_actors.store.rows import KeyRow
from breaker_actors.telemetry.meters import Meters

CALLERS_MAX = 100_000
EVENTS_BURST = 300
"""Reads of the events list that a caller may make at once: the SDKs page without a pause, and 10,000 events are 200
pages of the default size."""
FREE = frozenset({"health", "stream", "spec", "console_live", "console_assets"})
"""Blueprints without a budget."""
KEYLESS = frozenset({"health", "spec", "console_assets"})
"""Those that ask for no key either."""
CONSOLE = frozenset({"console", "console_live"})
"""Those whose callers come with a session instead of a key."""
EXTENSION = "budgets"
SIGN_INS_PER_S, SIGN_INS_BURST = 2, 20
"""Sign-ins of one key at the console: each writes a session, and people do so now and then."""
REFUSAL_S = 0.5
"""How late callers beyond the budget of their address are answered."""


class Budgets(RateLimiter):
    """The limiter of one replica. Unlike its base, requests of all routes of a budget count together."""

    def __init__(self, settings: Settings, meters: Meters, caches: Caches) -> None:
        self._callers = callers = RecentCallers(CALLERS_MAX)
        self._caches = caches
        super().__init__(store=callers)
        meters.watch(lambda: meters.total("breakers_callers_forgotten_total", callers.forgotten))
        share = settings.replicas
        requests, events = settings.rate_requests_per_s, settings.rate_events_per_s
        self._unknown = budget("BREAKERS_RATE_UNKNOWN_PER_S", settings.rate_unknown_per_s, share, _address)
        self._requests = budget("BREAKERS_RATE_REQUESTS_PER_S", requests, share, _key)
        tests = partial(budget, "BREAKERS_RATE_TESTS_PER_MINUTE", settings.rate_tests_per_minute, share, unit="minute")
        self._sign_ins = budget("", SIGN_INS_PER_S, share, _sign_in_key, SIGN_INS_BURST)
        self._tests = [*tests(_tests_key), *tests(_tests_project)]
        ingest = partial(budget, "BREAKERS_RATE_INGEST_PER_S", settings.rate_ingest_per_s, share)
        self._tokens = ingest(_token)
        self._by_blueprint = {
            "events": budget("BREAKERS_RATE_EVENTS_PER_S", events, share, _events_key, EVENTS_BURST),
            "ingest": ingest(_project),
        } | {name: [] for name in FREE}

    def _get_limits_for_view_function(self, view_func: Any, blueprint: Any) -> list[RateLimit]:
        if token := sender_token():
            return self._tokens if self._caches.knows_key(token) else self._unknown
        blueprint = request.blueprint or ""
        limits = self._by_blueprint.get(blueprint, self._requests)
        if blueprint in KEYLESS or self._is_known(blueprint):
            return limits
        return [*self._unknown, *limits] if blueprint == "ingest" else self._unknown

    async def spend_test(self) -> None:
        """Counts a test notification, which has receivers told at once: mails to all recipients of a channel, or a
        connection to any host. To be asked once the caller is known to have the right: nobody uses up another's."""
        await self._raise_on_rejection("", self._tests)
        await super()._update_limits("", self._tests)

    async def spend_sign_in(self) -> None:
        """Counts a sign-in of `g.signing_in`, a key that was found."""
        await self._raise_on_rejection("", self._sign_ins)
        await super()._update_limits("", self._sign_ins)

    async def spend_samples(self, n: int) -> None:
        """Counts a request that brings `n` samples like so many requests as it takes to bring them as JSON, also where
        nothing is left: the next ones wait for it."""
        more = (n - 1) // SAMPLES_MAX
        for each in self._tokens if sender_token() else self._by_blueprint["ingest"]:
            if more > 0:
                self._callers.spend(await self._create_key("", each), more * each.inverse)

    def _is_known(self, blueprint: str) -> bool:
        if blueprint == "ingest":
            return self._caches.knows_project(path_project())
        if acting_key() is not None:
            return True
        if blueprint in CONSOLE:
            return self._caches.knows_session(session_token())
        return self._caches.knows_key(bearer(request.headers.get("Authorization")))

    async def _raise_on_rejection(self, endpoint: str, rate_limits: Any) -> None:
        for each in rate_limits:
            try:
                await super()._raise_on_rejection(endpoint, [each])
            except RateLimitExceeded as refusal:
                if each in self._unknown:
                    await asyncio.sleep(REFUSAL_S)
                raise _refusal(each, refusal.retry_after) from None

    async def _update_limits(self, endpoint: str, rate_limits: list[RateLimit]) -> None:
        await super()._update_limits(endpoint, rate_limits)
        if self._unknown and rate_limits[:1] == self._unknown:
            g.refund = partial(self._callers.refund, await _address(), self._unknown[0].inverse)

    async def _create_key(self, endpoint: str, rate_limit: RateLimit) -> str:
        key_function = rate_limit.key_function or self.key_function
        return await key_function()

    async def _after_request(self, response: Any) -> Any:
        """No headers on what is within budget: they would cost every answer three lookups."""
        return response


Unit = Literal["second", "minute"]
_UNIT_S: dict[Unit, int] = {"second": 1, "minute": 60}


@dataclass
class Budget(RateLimit):
    """So many requests a unit of time, by the setting that says so; "": sign-ins."""

    setting: str = ""
    rate: int = 0
    unit: Unit = "second"


def budget(
    setting: str, rate: int, replicas: int, key_function: Any, burst: int = 0, unit: Unit = "second"
) -> list[RateLimit]:
    """The limit of one replica: `rate` / `replicas` a unit, and at once `burst`, or `rate` if that is more; nothing
    for 0."""
    if not rate:
        return []
    at_once = max(burst, rate)
    period = timedelta(seconds=replicas * at_once * _UNIT_S[unit] / rate)
    return [Budget(at_once, period, key_function, setting=setting, rate=rate, unit=unit)]


def _refusal(limit: Budget, retry_after_s: Any) -> Overloaded:
    if not limit.setting:
        words = f"More than {limit.rate} sign-ins a {limit.unit} with this key. Try again in a moment."
        return Overloaded(words, {"limit": "sign-ins of a key", "retry_after_s": retry_after_s})
    words = f"More than {limit.rate} requests a {limit.unit}: this is what {limit.setting} allows."
    return Overloaded(words, {"limit": limit.setting, "retry_after_s": retry_after_s})


async def _sign_in_key() -> str:
    return f"sign-ins {g.signing_in}"


async def _key() -> str:
    """The caller: the key it presents, or that of its session, however many it has. Neither is kept."""
    if key := acting_key():
        return f"key {key.id}"
    if request.blueprint in CONSOLE:
        known = replica().caches.remembered_session(session_token())
        return f"session {hash(session_token())}" if known is None else f"sessions {known.id}"
    return f"key {hash(bearer(request.headers.get('Authorization')))}"


async def _token() -> str:
    return f"token {hash(sender_token())}"


async def _address() -> str:
    return f"address {source(request.remote_addr)}"


async def _events_key() -> str:
    return f"events {await _key()}"


async def _tests_key() -> str:
    return f"tests {await _key()}"


async def _tests_project() -> str:
    return f"tests {path_project()}"


async def _project() -> str:
    return f"ingest {path_project()}"


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

    def refund(self, key: str, seconds: float) -> None:
        """Takes back what one request cost."""
        if key in self._whole_at:
            self._whole_at[key] -= timedelta(seconds=seconds)

    def spend(self, key: str, seconds: float) -> None:
        """Adds to what the last request cost."""
        self.refund(key, -seconds)

    async def before_serving(self) -> None: ...

    async def after_serving(self) -> None: ...


def install(app: Quart, settings: Settings, meters: Meters, caches: Caches) -> None:
    """Puts the budgets, and the bound on requests in flight, before every handler."""
    app.extensions[EXTENSION] = budgets = Budgets(settings, meters, caches)
    budgets.init_app(app)
    app.before_request(enter)


async def enter() -> None:
    """Counts the request as in flight; probes, which must get through, and streams, which stay, are not."""
    if request.blueprint not in FREE:
        await arrival().enter(callers())


async def spend_test() -> None:
    """Counts a test notification of the current request's key and project. Raises Overloaded."""
    await current_app.extensions[EXTENSION].spend_test()


async def spend_sign_in(key: KeyRow) -> None:
    """Counts a sign-in with this key, whichever session or address it comes from. Raises Overloaded."""
    g.signing_in = key.id
    await current_app.extensions[EXTENSION].spend_sign_in()


async def spend_samples(n: int) -> None:
    """Counts the samples of the current request, which came as one, in the budget of its project or token."""
    await current_app.extensions[EXTENSION].spend_samples(n)
