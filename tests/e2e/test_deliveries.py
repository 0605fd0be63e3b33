"""What a running service says of a notification that it must not send."""

from __future__ import annotations

import pytest

from tests.support.live import LiveService

pytestmark = pytest.mark.e2e

REFUSED = "its host or port is not one that notifications may go to"


def test_a_channel_to_a_destination_inside_is_not_made(live: LiveService) -> None:
    channels = f"{live.project_path}/notification-channels"
    body = {"channel": "webhook", "config": {"url": "http://127.0.0.1:9/hook"}}
    answer = live.user.post(channels, json=body)
    assert (answer.status_code, answer.json()["error"]) == (422, "validation_failed"), answer.text
    assert REFUSED in answer.json()["details"]["config.url"]
    assert live.user.get(channels).json()["channels"] == []
