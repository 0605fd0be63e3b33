"""Every endpoint with every status it promises; and that nothing of the interface is without a row."""

from __future__ import annotations

import re

import pytest

from api.middleware.rate_limits import EVENTS_BURST
from tests.conformance.calls_breakers import BREAKERS, EVENTS, METADATA, STATES
from tests.conformance.calls_common import ALL, bodies, methods, refusals, wrong_types
from tests.conformance.calls_limits import LIMITS
from tests.conformance.calls_mappings import MAPPINGS
from tests.conformance.calls_mutes import MUTES
from tests.conformance.calls_overrides import OVERRIDES
from tests.conformance.calls_projects import ADMIN, AUDIT, HEALTH, KEYS, PROJECTS, WORKSPACES
from tests.conformance.calls_routers import CHANNELS, INGEST, ROUTERS
from tests.conformance.calls_rules import RULES
from tests.conformance.conftest import EVENTS_PER_S
from tests.conformance.interface import LIMITS as PROMISED_LIMITS
from tests.conformance.interface import full
from tests.conformance.rows import Row, table
from tests.conformance.service_harness import DESCRIBED, House, Scope

in_session = pytest.mark.asyncio(loop_scope="session")

OWN = (
    *(PROJECTS + WORKSPACES + KEYS + AUDIT + ADMIN + HEALTH),
    *(BREAKERS + STATES + METADATA + EVENTS),
    *(ROUTERS + CHANNELS + MUTES + MAPPINGS + OVERRIDES + RULES + INGEST),
)
COMMON = (*refusals(), *bodies(), *wrong_types(), *methods())
ALONE = {("GET", full("P/breakers/state:stream"), 200), ("GET", full("P/events"), 429)}
"""Checked by the tests below, which need more than one request."""
ANYWHERE = {429, 500, 503}
"""Statuses that any operation can have and that no request alone brings about."""


def covered() -> set[tuple[str, str, int]]:
    rows = (*OWN, *COMMON, *LIMITS)
    return ALONE | {(row.line.split()[0], full(row.line.split()[1]), row.status) for row in rows}


@in_session
@table(OWN)
async def test_endpoint(scope: Scope, row: Row) -> None:
    await row.run(scope)


@in_session
@table(COMMON)
async def test_every_endpoint(scope: Scope, row: Row) -> None:
    await row.run(scope)


@in_session
@table(LIMITS)
async def test_limit(scope: Scope, row: Row) -> None:
    await row.run(scope)


@in_session
async def test_events_are_rate_limited(scope: Scope) -> None:
    for _ in range(EVENTS_BURST + 10 * EVENTS_PER_S):
        response, found = await scope.call("GET P/events?limit=1", key="eager")
        if response.status_code == 429:
            break
    assert (response.status_code, found["error"]) == (429, "rate_limited")
    assert int(response.headers["Retry-After"]) >= 1


@in_session
async def test_stream(house: House) -> None:
    path = f"/v1/projects/{house.fixed['project_id']}/breakers/state:stream"
    client = house.apps["main"].test_client()
    headers = {"Authorization": f"Bearer {house.keys['project']}"}
    async with client.request(path, headers=headers) as stream:
        await stream.send_complete()
        first = (await stream.receive()).decode()
        assert stream.headers is not None
        assert stream.headers["Content-Type"] == "text/event-stream"
        assert stream.headers["Cache-Control"] == "no-cache"
        assert stream.headers["Connection"] == "keep-alive"
        await stream.disconnect()
    for message in first.removesuffix("\n\n").split("\n\n"):
        assert re.fullmatch(
            r'event: state\ndata: {"breaker":".+","state":"(closed|open|half_open)","allow_rate":.+}', message
        )


def test_every_promised_status_has_a_row() -> None:
    promised = {(method, path, status) for method, path, _, statuses in ALL for status in statuses}
    assert promised - covered() == set()


def test_rows_and_operations_are_the_same() -> None:
    rows = {(method, path) for method, path, _ in covered() if method != "OPTIONS" and path not in ("/", "/v1/nowhere")}
    assert rows == set(DESCRIBED)


def test_every_described_status_has_a_row() -> None:
    described = {(*key, status) for key, one in DESCRIBED.items() for status in one.statuses if status not in ANYWHERE}
    assert described - covered() == set()


def test_every_limit_has_rows_on_both_sides() -> None:
    notes = [row.note for row in LIMITS]
    for limit in PROMISED_LIMITS:
        assert any(note.startswith(limit) for note in notes), limit
