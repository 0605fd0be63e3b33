"""What a client of the commands asks of its key before anything is sent."""

from __future__ import annotations

import pytest

from api.cli.admin_client import ServiceClient
from api.cli.statsd_client import MetricsClient
from breaker_actors.clock import SystemClock
from breaker_actors.errors import BreakersError, Invalid

URL, KEY = "http://127.0.0.1:1", f"eb_admin_{'0' * 64}"


@pytest.mark.parametrize(
    "key", [f"{KEY}\n", f"{KEY}\r", f" {KEY}", f"{KEY}\nX: y", f"{KEY}\xe9", f"{KEY}\u200b", f"{KEY}\0"]
)
def test_a_key_that_can_be_none_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(Invalid, match="line end") as refused:
        with ServiceClient(URL, key) as client:
            client._ask("GET", "/v1/workspaces")
    assert KEY not in str(refused.value)
    with pytest.raises(Invalid, match="line end"):
        MetricsClient(URL, "p", key, SystemClock())


def test_any_other_is_left_to_the_service() -> None:
    for key in (KEY, "", "x y"):
        with ServiceClient(URL, key) as client, pytest.raises(BreakersError, match="nobody listens"):
            client._ask("GET", "/v1/workspaces")
