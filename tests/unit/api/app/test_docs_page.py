"""The page of the description in a Chromium: search, a call that is tried with a key, and no other host."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from api.admission.outgoing import Departure
from api.openapi.document import document
from api.openapi.page import SCRIPT_PATH, packed, policy, script
from tests.support.browser import Browser
from tests.support.on_uvicorn import on_uvicorn
from tests.support.web_world import World

ROOT = "document.querySelector('rapi-doc').shadowRoot"
CALL = f"{ROOT}.querySelector('api-request').shadowRoot"
LINKS = f"[...{ROOT}.querySelectorAll('.nav-bar-path')].filter(link => link.checkVisibility())"
LIST = "get-/v1/projects/-project_id-/breakers"
SAMPLES = f"[...{ROOT}.querySelectorAll('.tab-btn')].map(tab => tab.textContent.trim())"
DEADLINE_S = 30.0


def until(page: Browser, expression: str) -> Any:
    """The value of an expression as soon as it is a true one."""
    end = time.monotonic() + DEADLINE_S
    while not (value := page.ask(expression)):
        assert time.monotonic() < end, expression
    return value


def write(page: Browser, field: str, text: str) -> None:
    """Types into an input."""
    page.ask(f"{field}.focus()")
    for letter in text:
        page.press(letter)


def searched(page: Browser, word: str) -> list[str]:
    """The operations that are left when a word is searched for."""
    write(page, f"{ROOT}.querySelector('#nav-bar-search')", word)
    page.press("Enter")
    count = len([operation for methods in document()["paths"].values() for operation in methods])
    until(page, f"{LINKS}.length < {count}")
    return [str(link) for link in page.ask(f"{LINKS}.map(link => link.dataset.contentId)")]


def tried(page: Browser, key: str, project_id: str) -> str:
    """What the page shows of the answer to a list of breakers."""
    page.ask(f"""{ROOT}.querySelector("[data-content-id='auth']").click()""")
    until(page, f"!!{ROOT}.querySelector('#http-user_key-api-key-input')")
    write(page, f"{ROOT}.querySelector('#http-user_key-api-key-input')", key)
    page.ask(f"{ROOT}.querySelector('#http-user_key-api-key-input').parentNode.querySelector('button').click()")
    page.ask(f"""{ROOT}.querySelector("[data-content-id='{LIST}']").click()""")
    until(page, f"!!{ROOT}.querySelector('api-request') && !!{CALL}.querySelector('[part~=btn-try]')")
    write(page, f"{CALL}.querySelector('#input-request-param-project_id')", project_id)
    page.ask(f"{CALL}.querySelector('[part~=btn-try]').click()")
    until(page, f"/Took [^]*breakers[^]*updated_at/.test({CALL}.textContent)")
    return str(page.ask(f"{CALL}.textContent"))


def look(folder: Path, world: World, port: int) -> tuple[Browser, list[str], str]:
    with Browser(folder, 1400, 1000) as page:
        page.open(f"http://127.0.0.1:{port}/docs")
        count = sum(map(len, document()["paths"].values()))
        until(page, f"!!document.querySelector('rapi-doc') && {LINKS}.length == {count}")
        shown = tried(page, world.keys["user"], world.project.id)
        assert page.ask(SAMPLES) == ["curl", "Python", "TypeScript"]
        page.screenshot(folder / "docs.png")
        return page, searched(page, "metadata"), shown


async def test_the_page_is_searched_and_tried_and_asks_no_other_host(world: World, tmp_path: Path) -> None:
    row = await world.breaker("checkout-latency")
    async with on_uvicorn(world) as port:
        page, left, shown = await asyncio.to_thread(look, tmp_path, world, port)
    assert {"get-/v1/projects/-project_id-/breakers/metadata"} <= set(left)
    assert all("metadata" in link for link in left)
    assert "Response Status: OK:200" in shown
    assert row.id in shown
    assert "checkout-latency" in shown
    asked = [urlsplit(address) for address in page.requests]
    assert {address.netloc for address in asked} == {f"127.0.0.1:{port}"}
    listed = f"/v1/projects/{world.project.id}/breakers"
    assert [address.path for address in asked if address.path != "/favicon.ico"] == [
        "/docs",
        SCRIPT_PATH,
        "/openapi.json",
        listed,
    ]
    assert page.complaints == []


@pytest.mark.parametrize(
    ("accepted", "zipped"), [(None, False), ("gzip, deflate, br", True), ("gzip;q=0", False), ("identity", False)]
)
async def test_the_script_is_packed_for_who_can_unpack_it(world: World, accepted: str | None, zipped: bool) -> None:
    headers = {"Accept-Encoding": accepted} if accepted else {}
    response = await world.call("GET", SCRIPT_PATH, None, headers=headers)
    assert response.status_code == 200
    assert response.headers.get("Content-Encoding") == ("gzip" if zipped else None)
    assert await response.get_data() == (packed() if zipped else script())
    assert response.headers["Vary"] == "Accept-Encoding"
    assert "immutable" in response.headers["Cache-Control"]


async def test_the_page_is_small_and_names_its_script_by_what_it_is(world: World) -> None:
    response = await world.call("GET", "/docs", None)
    text = await response.get_data(as_text=True)
    assert len(text) < 2_000
    digest = hashlib.sha256(script())
    assert f'src="{SCRIPT_PATH}?v={digest.hexdigest()[:16]}"' in text
    assert f'integrity="sha256-{base64.b64encode(digest.digest()).decode()}"' in text
    assert response.headers["Content-Security-Policy"] == policy()


async def test_the_script_counts_as_on_its_way(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers that take it slowly can't pile copies of it up beyond the part of those who show no key."""
    held: list[Any] = []
    monkeypatch.setattr(Departure, "hold", lambda self, callers, size, done: held.append((callers, size)))
    await world.call("GET", SCRIPT_PATH, None)
    ((holders, size),) = held
    assert [kind for kind, _ in holders] == ["asker", "asking"]
    assert size == len(script())
