"""The console of a project with many breakers: its first screen, its search, a trip on the screen, and pages that wait.

python -m tests.bench console [--json FILE] [--smoke] [--breakers 10000] [--pages 200] [--turns 40]

A screen and a search are timed at the client, over one connection; the trip from the begin of its POST to the word in a
real browser's page, which was loaded before; idle pages in CPU of the whole service, beside the same time without them.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx

from tests.support.figures import options_of, show
from tests.support.live import LiveService, serving
from tests.support.usage import cpu_s, cpu_used

QUERIES = ("?q=b0042", "?q=team%3D7", "?state=open", "?metric=m3", "?q=nothing", "?page=100", "?q=b&special=observed")
IDLE_S = 20.0
FREE = {"BREAKERS_RATE_REQUESTS_PER_S": "0", "BREAKERS_RATE_UNKNOWN_PER_S": "0"}


def main(argv: list[str]) -> int:
    parser = options_of("console")
    parser.add_argument("--breakers", type=int, default=10_000)
    parser.add_argument("--pages", type=int, default=200)
    parser.add_argument("--turns", type=int, default=40)
    options = parser.parse_args(argv)
    breakers, pages, turns = (200, 10, 5) if options.smoke else (options.breakers, options.pages, options.turns)
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), **FREE) as live:
        _make(live, breakers - turns)
        with httpx.Client(base_url=live.base_url, timeout=60) as client:
            sign_in(live, client)
            figures = _screens(live, client)
            figures |= _idle(live, client, 2.0 if options.smoke else IDLE_S, pages)
        figures |= _trips(live, turns)
    show(figures, options.json)
    return 0


def sign_in(live: LiveService, client: httpx.Client) -> None:
    """With the admin key."""
    answer = client.post("/console/sign-in", data={"key": live.credentials["admin_key"]})
    assert answer.status_code == 303, answer.text


def _make(live: LiveService, count: int) -> None:
    rule = {"kind": "avg", "op": "gt", "threshold": 100, "window_ms": 60_000}
    breakers = [
        {"name": f"b{n:05}", "metric": f"m{n % 10}", "metadata": {"team": str(n % 20)}, **rule} for n in range(count)
    ]
    answer = live.user.put(f"{live.project_path}/breakers", json={"breakers": breakers}, timeout=300)
    assert answer.status_code == 200, answer.text


def _screens(live: LiveService, client: httpx.Client) -> dict[str, float]:
    page = f"/console/p/{live.project_id}"
    first, text = _timed(client, page)
    again = statistics.median(_timed(client, page)[0] for _ in range(9))
    searches = [_timed(client, page + query, part=True)[0] for query in QUERIES for _ in range(5)]
    assert text.count("<tr ") <= 200
    return {
        "first screen, ms": first,
        "screen again, ms (median)": again,
        "search, ms (median)": statistics.median(searches),
        "search, ms (slowest)": max(searches),
    }


def _timed(client: httpx.Client, path: str, part: bool = False) -> tuple[float, str]:
    begun = time.perf_counter()
    answer = client.get(path, headers={"HX-Request": "true"} if part else {})
    assert answer.status_code == 200, answer.text
    return (time.perf_counter() - begun) * 1000, answer.text


def _idle(live: LiveService, client: httpx.Client, seconds: float, pages: int) -> dict[str, float]:
    """Shares of a core."""

    def used(during: Any) -> float:
        before = cpu_used(live)
        during()
        return sum(cpu_s(before, cpu_used(live)).values()) / seconds

    bare = used(lambda: time.sleep(seconds))
    opened = asyncio.run(_held_open(live, pages, seconds, used))
    return {"idle, share of a core": bare, f"{pages} pages more": opened - bare}


async def _held_open(live: LiveService, pages: int, seconds: float, used: Any) -> float:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            httpx.AsyncClient(base_url=live.base_url, timeout=None, limits=httpx.Limits(max_connections=pages + 5))
        )
        page = f"/console/p/{live.project_id}"
        for number in range(pages):
            if number % 10 == 0:  # a session has twenty pages at most
                client.cookies.clear()
                await client.post("/console/sign-in", data={"key": live.credentials["admin_key"]})
                text = (await client.get(page, headers={"HX-Request": "true"})).text
                ids = text.partition('data-ids="')[2].partition('"')[0]
            answer = await stack.enter_async_context(client.stream("GET", f"{page}/live?ids={ids}"))
            assert answer.status_code == 200, (number, answer.status_code, answer.headers)
        await asyncio.sleep(2)
        return await asyncio.to_thread(used, lambda: time.sleep(seconds))


def _trips(live: LiveService, turns: int) -> dict[str, float]:
    from playwright.sync_api import sync_playwright

    found: list[float] = []
    made = [live.breaker(name=f"trips {turn}", cooldown_ms=3_600_000) for turn in range(turns)]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"{live.base_url}/console/sign-in")
        page.fill("#key", live.credentials["admin_key"])
        page.click("button.main")
        page.locator("#live-state", has_text="Live").wait_for()
        for one in made:
            time.sleep(0.5)
            begun = time.perf_counter()
            live.send(one["router_id"], [900.0] * 5)
            page.wait_for_selector(f"#b-{one['id']}.open", timeout=20_000)
            found.append((time.perf_counter() - begun) * 1000)
        browser.close()
    found.sort()
    return {
        "trip on the screen, ms (median)": statistics.median(found),
        "trip on the screen, ms (p95)": found[math.ceil(0.95 * len(found)) - 1],
    }
