"""The console in a real browser, over a real service: what an operator does in it, and how each screen looks to axe."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import browser
from tests.support.live import LiveService, serving, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

PRIVATE = {"BREAKERS_ALLOW_PRIVATE_DESTINATIONS": "true"}
SCREENS = ("", "timeline", "routers", "channels", "mutes", "overrides", "audit", "keys", "cluster", "new")
OTHERS = ("mutes/new", "channels/new?kind=webhook", "first-run")
WAIT_MS = 20_000


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    with serving(tmp_path_factory.mktemp("console") / "data", **PRIVATE) as found:
        yield found


@pytest.fixture(scope="module")
def chromium() -> Iterator[Callable[..., Any]]:
    """Makes contexts of a browser; each is somebody of their own. They end with the browser: closing one of two has
    hung for as long as a test may take. Their pages are left before, so that nobody waits for news any more."""
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox", "--disable-background-networking", "--disable-component-update"]
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=browser(), args=arguments)

        @contextmanager
        def context(**more: Any) -> Iterator[Any]:
            made = found.new_context(viewport={"width": 1280, "height": 900}, **more)
            made.set_default_timeout(WAIT_MS)
            yield made
            for page in made.pages:
                page.goto("about:blank")

        yield context
        found.close()


class Operator:
    """Somebody at a page. `complaints`: of the browser; `asked`: hosts it asked for something."""

    def __init__(self, context: Any, service: LiveService) -> None:
        self.service, self.origin = service, service.base_url
        self.page = context.new_page()
        self.complaints: list[str] = []
        self.asked: set[str] = set()
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda said: self._heard(said))
        self.page.on("request", lambda request: self.asked.add(request.url.split("/")[2]))

    def _heard(self, said: Any) -> None:
        if said.type == "error" and "status of 4" not in said.text:  # a refusal is no fault of the page
            self.complaints.append(said.text)

    def sign_in(self) -> None:
        """By the link that `breakers console` prints, whose name is the session's."""
        command = [str(Path(sys.executable).with_name("breakers")), "console", "--data-dir", str(self.service.data_dir)]
        link = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        self.origin = link.partition("/console/")[0]
        self.page.goto(link)
        self.page.wait_for_url(f"**/console/p/{self.service.project_id}")

    def go(self, path: str = "") -> None:
        root = f"{self.origin}/console/p/{self.service.project_id}"
        self.page.goto(f"{root}/{path}" if path else root)

    def sees(self, text: str) -> None:
        self.page.get_by_text(text).first.wait_for()

    def is_told(self, text: str) -> None:
        self.page.locator("#notice", has_text=text).wait_for()


def samples(service: LiveService, router_id: str, value: float, ok: bool = True) -> None:
    service.send(router_id, [value] * 5, ok=ok, metric="http.errors")


@contextmanager
def receiver() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A webhook's address, and what came there."""
    came: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            came.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/hook", came
        server.shutdown()


def backtested(service: LiveService, breaker_id: str) -> tuple[int, list[tuple[str, str]]]:
    """How often it tripped, and the moves, as the command prints them for the breaker's own samples."""
    program = str(Path(sys.executable).with_name("breakers"))
    command = [program, "backtest", "--from-service", breaker_id, "--json", "--data-dir", str(service.data_dir)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = json.loads(told)
    return found["summary"]["rules"][0]["trips"], [(move["prev"], move["curr"]) for move in found["transitions"]]


def test_what_an_operator_does(service: LiveService, chromium: Callable[..., Any]) -> None:
    with chromium() as context, receiver() as (address, came):
        ann = Operator(context, service)
        page = ann.page
        ann.sign_in()

        # a breaker by form
        ann.go("new")
        page.fill("#f-name", "checkout <b>errors</b>")
        page.fill("#f-metric", "http.errors")
        page.select_option("#f-kind", "error_rate")
        page.fill("#f-threshold", "50")
        for name, value in {"window_ms": 5_000, "min_count": 3, "cooldown_ms": 600_000}.items():
            page.fill(f"#f-{name}", str(value))
        page.fill("#f-min_state_duration_ms", "0")
        page.locator("summary", has_text="Advanced").click()
        page.fill("#f-eval_interval_ms", "500")
        page.click("button.main:has-text('Make the breaker')")
        page.get_by_text("Did you mean 0.5 (50 %)?").wait_for()
        page.click("#notice button:has-text('Use 0.5')")
        page.wait_for_url("**/b/*")
        breaker_id = page.url.rpartition("/b/")[2].partition("?")[0]
        made = service.user.get(f"{service.project_path}/breakers/{breaker_id}").json()["breaker"]
        assert (made["name"], made["threshold"]) == ("checkout <b>errors</b>", 0.5)

        # it trips, and the page says so without a reload
        ann.go()
        row = page.locator(f"#b-{breaker_id}")
        row.get_by_text("closed").wait_for()
        page.evaluate("window.notReloaded = true")
        samples(service, made["router_id"], 1.0)
        samples(service, made["router_id"], 1.0, ok=False)
        samples(service, made["router_id"], 1.0, ok=False)
        page.wait_for_selector(f"#b-{breaker_id}.open")
        assert page.evaluate("window.notReloaded")

        # forced closed with a reason, and undone
        row.get_by_role("link").first.click()
        page.click("button[data-dialog='#force_closed']")
        page.fill("#force_closed-reason", "the dependency is back")
        page.click("dialog[open] button.danger")
        ann.sees("force_closed")
        assert state(service, breaker_id) == "closed"
        page.click("#notice button:has-text('Undo')")
        wait_for(lambda: state(service, breaker_id) == "open")
        page.locator("#live .state.open").first.wait_for()

        # a rule tried over recorded samples: what it does is what the command prints
        ann.go(f"b/{breaker_id}/edit")
        page.locator("#try table.compared").wait_for()
        tripped, moves = backtested(service, breaker_id)
        assert (tripped, moves[0]) == (1, ("closed", "open"))
        trips = page.locator("#try table.compared tr", has_text="Trips").locator("td").all_inner_texts()
        assert trips == [str(tripped)] * 2
        seen = page.locator("#try tr:has(td:text-matches('^(now|both)$')) td[data-label='Move']").all_text_contents()
        assert [tuple(words(move)) for move in seen[::-1]] == moves
        page.fill("#f-threshold", "0.9")
        page.locator("#try table.compared tr", has_text="Trips").locator("td", has_text="0").wait_for()

        # a channel, its test, and a delivery
        ann.go("channels/new?kind=webhook")
        page.fill("#name", "hook")
        page.fill("[name='config.url']", address)
        page.click("button.main")
        page.wait_for_url("**/channels/*")
        page.click("button:has-text('Send a test')")
        wait_for(lambda: came)
        ann.is_told("hook")
        told = service.breaker(name="told", metric="http.errors", cooldown_ms=600_000)
        samples(service, told["router_id"], 900.0)
        wait_for(lambda: len(came) > 1)
        page.goto(page.url.partition("?")[0] + "/deliveries")
        page.locator("tr", has_text="trip of told").locator(".badge", has_text="sent").wait_for()

        # a mute, with what it matches
        ann.go("mutes/new")
        page.fill("#comment", "planned work")
        page.check("[name='all']")
        page.click("button[data-preview]")
        page.locator("#preview", has_text="2").wait_for()
        page.click("button.main:has-text('Make the mute')")
        page.wait_for_url(lambda url: "said=made" in url)
        assert service.user.get(f"{service.project_path}/mutes").json()["mutes"]

        assert ann.complaints == []
        assert ann.asked == {ann.origin.removeprefix("http://")}


def test_what_happens_before_a_page_listens_is_seen(service: LiveService, chromium: Callable[..., Any]) -> None:
    """A stream begins after its page was made, and anew when other rows come: what moved before is no news of it."""
    made = service.breaker(name="between", cooldown_ms=600_000)
    with chromium() as context:
        ann = Operator(context, service)
        ann.sign_in()
        held: list[Any] = []
        ann.page.route("**/live?*", lambda route: held.append(route))
        with ann.page.expect_request("**/live?*"):
            ann.go()
        service.send(made["router_id"], [900.0] * 5)
        wait_for(lambda: state(service, made["breaker"]["id"]) == "open")
        ann.page.wait_for_timeout(0)  # lets the held request come to us
        assert ann.page.locator(f"#b-{made['breaker']['id']}.closed").count() == 1
        held[-1].continue_()
        ann.page.wait_for_selector(f"#b-{made['breaker']['id']}.open")


def test_a_screen_that_could_not_be_refreshed_says_so_and_is(
    service: LiveService, chromium: Callable[..., Any]
) -> None:
    made = service.breaker(name="refused once", cooldown_ms=600_000)
    with chromium() as context:
        ann = Operator(context, service)
        ann.sign_in()
        ann.page.locator("#live-state", has_text="Live").wait_for()
        ann.page.locator(f"#b-{made['breaker']['id']}").wait_for()
        refused: list[str] = []

        def refuse(route: Any) -> None:
            refused.append(route.request.url)
            route.fulfill(status=503, body="busy")

        place = f"**/console/p/{service.project_id}"
        ann.page.route(place, refuse)
        service.send(made["router_id"], [900.0] * 5)
        ann.page.locator("#live-state", has_text="Can't refresh, trying again").wait_for()
        assert refused
        ann.page.unroute(place)
        ann.page.wait_for_selector(f"#b-{made['breaker']['id']}.open")
        ann.page.locator("#live-state", has_text="Live").wait_for()


def words(text: str) -> list[str]:
    """The states that a text names."""
    return re.findall("half_open|open|closed", text)


def state(service: LiveService, breaker_id: str) -> str:
    return str(service.user.get(f"{service.project_path}/breakers/{breaker_id}/state").json()["state"])


def test_a_key_is_made_and_its_tab_ends_with_it(service: LiveService, chromium: Callable[..., Any]) -> None:
    with chromium() as context, chromium() as other:
        ann = Operator(context, service)
        ann.sign_in()
        ann.go("keys")
        ann.page.fill("#name", "tablet")
        ann.page.click("button.main")
        key = ann.page.inner_text("#new-key").strip()
        assert key.startswith("eb_pk_")
        guest = Operator(other, service)
        guest.page.goto(f"{service.base_url}/console/sign-in")
        guest.page.fill("#key", key)
        guest.page.click("button.main")
        guest.page.locator("#live-state", has_text="Live").wait_for()
        assert guest.page.locator("a:has-text('Keys')").count() == 0
        made = next(row for row in keys(service) if row["name"] == "tablet")
        ann.go(f"keys/{made['id']}/revoke")
        ann.page.fill("#name", "tablet")
        ann.page.click("button.danger")
        guest.page.wait_for_url("**/console/sign-in**", timeout=3_000)
        assert ann.complaints == []


def keys(service: LiveService) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = service.user.get(f"{service.project_path}/keys").json()["keys"]
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_axe_finds_nothing(service: LiveService, chromium: Callable[..., Any], scheme: str, width: int) -> None:
    from axe_playwright_python.sync_playwright import Axe

    if not (found := service.user.get(f"{service.project_path}/breakers").json()["breakers"]):
        found = [service.breaker(name="seen by axe")]
    one = f"b/{found[0]['id']}"
    with chromium(color_scheme=scheme) as context:
        ann = Operator(context, service)
        ann.page.set_viewport_size({"width": width, "height": 800})
        ann.page.goto(f"{service.base_url}/console/sign-in")
        problems = {"sign in": Axe().run(ann.page)}
        ann.sign_in()
        for path in (*SCREENS, *OTHERS, one, f"{one}/edit"):
            ann.go(path)
            ann.page.wait_for_load_state("networkidle" if "/edit" in path else "load")
            problems[path] = Axe().run(ann.page)
            assert ann.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{path} is too wide"
        told = {path: found.generate_report() for path, found in problems.items() if found.violations_count}
        assert told == {}
        assert ann.complaints == []
