"""What only the whole service shows of its interface: HAProxy in front, Serve around the app."""

from __future__ import annotations

import httpx
import pytest

from tests.support.live import LiveService

pytestmark = pytest.mark.e2e


def error_object(answer: httpx.Response, status: int, word: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["Content-Type"] == "application/json"
    body = answer.json()
    assert body["error"] == body["code"] == word
    assert answer.headers.get_list("X-Request-ID") == [body["request_id"]]


def test_request_ids_are_bounded_before_serve_echoes_them(live: LiveService) -> None:
    with live.client() as anybody:
        kept = anybody.get("/v1/nowhere", headers={"X-Request-ID": "mine-1"})
        error_object(kept, 404, "not_found")
        assert kept.headers["X-Request-ID"] == "mine-1"
        for odd in ("x" * 129, "<script>", "a b"):
            answer = anybody.get("/v1/nowhere", headers={"X-Request-ID": odd})
            error_object(answer, 404, "not_found")
            assert answer.headers["X-Request-ID"] != odd


def test_the_description_is_served(live: LiveService) -> None:
    with live.client() as anybody:
        assert anybody.get("/openapi.json").json()["openapi"] == "3.1.0"
        assert anybody.get("/docs").headers["Content-Type"].startswith("text/html")
