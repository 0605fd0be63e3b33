"""Notifications by apprise, the real one, against real receivers on loopback; and that nothing leaves its process but
requests that pass the policy."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from breaker_actors.errors import Overloaded
from breaker_actors.notify.channels import apprise
from breaker_actors.notify.channels.apprise import NOT_INSTALLED
from breaker_actors.notify.channels.apprise_services import LEFT_OUT, OTHERS, WITH_HOST
from breaker_actors.notify.egress import apprise as egress
from breaker_actors.notify.egress.apprise import ENDED, REQUESTS_MAX
from breaker_actors.notify.egress.apprise_process import PROGRAM, AppriseProcess
from breaker_actors.notify.egress.policy import NAME_REFUSED, REFUSED
from breaker_actors.notify.model import Attempt, Destination
from breaker_actors.notify.org_places import Places
from breaker_actors.notify.sender import ChannelSender
from tests.support.apprise_services import MODULE
from tests.support.receivers import Reply, Request, WebReceiver
from tests.unit.notify.attempts import GROWING_MS, send, sender, to
from tests.unit.notify.messages import ALL, HOSTILE

pytestmark = pytest.mark.usefixtures("quick_refusals", "loaded")

TOKEN, PASSWORD, QUERY = "tOk3n9Qw8Er7Ty6", "h4rdToGuess", "q_5eCreT_v4lue"
PLANTED = (TOKEN, PASSWORD, QUERY, "bWU6aDRyZFRvR3Vlc3M")


@pytest.fixture(scope="module")
def process() -> Iterator[AppriseProcess]:
    """One for all tests here: loading apprise takes two seconds."""
    shared = AppriseProcess()
    yield shared
    shared.stop()


@pytest.fixture
def loaded(process: AppriseProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    async def leave(self: egress.Courier) -> None:
        pass

    monkeypatch.setattr(egress, "AppriseProcess", lambda: process)
    monkeypatch.setattr(egress.Courier, "close", leave)


@asynccontextmanager
async def patient(**fields: Any) -> AsyncIterator[ChannelSender]:
    async with sender(**{"notify_timeout_ms": 19_000} | fields) as out:
        yield out


def at(hook: WebReceiver, schema: str = "json", path: str = "", login: str = "") -> Destination:
    return to("apprise", url=f"{schema}://{login}127.0.0.1:{hook.port}/{path}")


def forks_of(process: AppriseProcess) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


# what arrives

SERVICES = {
    "json": ("json", "in", "", "/in", "message"),
    "gotify": ("gotify", TOKEN, "", "/message", "message"),
    "ntfy": ("ntfy", "alerts", "me:pw@", "/", "message"),
    "mattermost": ("mmost", TOKEN, "", f"/hooks/{TOKEN}", "text"),
}


@pytest.mark.parametrize("case", SERVICES)
async def test_a_service_takes_a_notification(case: str) -> None:
    schema, path, login, target, field = SERVICES[case]
    async with WebReceiver() as hook, patient() as out:
        assert await send(out, at(hook, schema, path, login)) == Attempt(result="sent", status=200)
        (got,) = hook.requests
        assert (got.method, got.target, got.headers["host"]) == ("POST", target, f"127.0.0.1:{hook.port}")
        assert "Calls are blocked until it recovers." in got.json[field]
        assert "checkout is open" in json.dumps(got.json)
        assert got.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("case", ALL)
async def test_every_message_is_taken(case: str) -> None:
    async with WebReceiver() as hook, patient() as out:
        assert (await send(out, at(hook), ALL[case])).result == "sent"
        told = hook.requests[0].json
        assert told["type"] == apprise.TYPES[ALL[case].kind]
        assert told["title"]


async def test_a_name_calls_nobody() -> None:
    async with WebReceiver() as hook, patient() as out:
        await send(out, at(hook), HOSTILE)
        told = hook.requests[0].body.decode()
        assert not [call for call in ("@e", "@h", "<!", "<@") if call in told]


class RocketChat(WebReceiver):
    """Of Rocket.Chat what a login, a message and a logout meet; `knows`: whether it knows the user."""

    knows = True

    def answer(self, request: Request) -> Reply:
        if request.target.endswith("/login"):
            data = {"status": "success", "data": {"authToken": "t0", "userId": "u0"}}
            return Reply(body=json.dumps(data).encode()) if self.knows else Reply(401, b'{"message": "Unauthorized"}')
        return Reply(body=b'{"success": true}')


async def test_what_one_answer_says_goes_into_the_next_request() -> None:
    async with RocketChat() as chat, patient() as out:
        channel = at(chat, "rocket", "%23alerts", "me:pw@")
        assert (await send(out, channel)).result == "sent"
        login, message, *_ = chat.requests
        assert (login.target, message.target) == ("/api/v1/login", "/api/v1/chat.postMessage")
        assert (message.headers["x-auth-token"], message.headers["x-user-id"]) == ("t0", "u0")
        chat.knows = False
        attempt = await send(out, channel)
        assert attempt == Attempt(result="refused", status=401, error="answered 401 Unauthorized: Unauthorized")


# what comes of it


@pytest.mark.parametrize(
    ("reply", "attempt"),
    [
        (
            Reply(404, b'{"message": "no topic"}'),
            Attempt(result="refused", status=404, error="answered 404 Not Found: no topic"),
        ),
        (Reply(503), Attempt(result="retry", status=503, error="answered 503 Service Unavailable")),
        (
            Reply(429, headers=(("Retry-After", "7"),)),
            Attempt(result="retry", status=429, error="answered 429 Too Many Requests", retry_after_ms=7_000),
        ),
        (Reply(how="cut"), Attempt(result="retry", error="the answer was cut short or is not HTTP")),
    ],
)  # fmt: skip
async def test_the_answer_decides_as_for_other_kinds(reply: Reply, attempt: Attempt) -> None:
    async with WebReceiver() as hook, patient() as out:
        hook.usual = reply
        assert await send(out, at(hook)) == attempt


def test_an_answer_is_taken_as_it_came() -> None:
    """Whatever coats its receiver says it has: nobody asked for any, and 824 bytes took 860 MB of each fork."""
    child = runpy.run_path(str(PROGRAM))
    coats = gzip.compress(gzip.compress(bytes(1 << 20)))
    headers = [["content-Encoding", "gzip, gzip"], ["Transfer-Encoding", "gzip"], ["X-A", "b"]]
    answer = {"status": 503, "headers": headers, "body": base64.b64encode(coats).decode()}
    found = child["_response"](answer)
    assert (found.status, found.data, found.headers["X-A"]) == (503, coats, "b")


async def test_redirects_are_not_followed() -> None:
    async with WebReceiver() as hook, WebReceiver() as other, patient() as out:
        hook.usual = Reply(302, headers=(("Location", other.url()),))
        attempt = await send(out, at(hook))
        assert (attempt.result, attempt.error) == ("refused", "answered 302 Found; redirects are not followed")
        assert (len(hook.requests), other.connections) == (1, 0)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("tgram://nope/", "it can't read the address; see how its documentation writes those of the service"),
        ("bulksms://me:pw@12025550100/12025550101?batch=no", "it has several receivers; make a channel for each"),
    ],
)  # fmt: skip
async def test_an_address_that_cannot_work_is_refused(url: str, words: str) -> None:
    """When it is sent to, and before that when it is looked at."""
    async with patient() as out:
        channel = to("apprise", url=url)
        assert await send(out, channel) == Attempt(result="refused", error=f"apprise can't send to it: {words}")
        assert await out.examine("o1", [channel]) == [f"is no address for apprise: {words}"]


async def test_nothing_is_sent_to_look_at_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    async with WebReceiver() as hook, patient() as out:
        looked_at = [at(hook), to("webhook", url=hook.url()), to("apprise")]
        assert await out.examine("o1", looked_at) == ["", "", ""]
        assert hook.connections == 0
    monkeypatch.setattr("breaker_actors.notify.egress.apprise_process.PROGRAM", Path("/nonexistent"))
    monkeypatch.setattr(egress, "AppriseProcess", AppriseProcess)
    async with patient() as out:
        assert await out.examine("o1", [to("apprise", url="tgram://nope/")]) == [None]
        out._courier._process.stop()


async def test_one_process_looks_at_all_addresses_of_a_request(
    process: AppriseProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In their order; where it ends early the others are not known, and one look is no reason for a second process."""
    connected, connect = [0], process.connection

    def counted() -> Any:
        connected[0] += 1
        return connect()

    monkeypatch.setattr(process, "connection", counted)
    many = [to("apprise", url="tgram://nope/" if n % 3 == 0 else f"json://127.0.0.1:{n + 1}/") for n in range(100)]
    async with patient() as out:
        found = await out.examine("o1", many)
        assert [bool(problem) for problem in found] == [n % 3 == 0 for n in range(100)]
        assert connected == [1]
        monkeypatch.setattr("breaker_actors.notify.sender.check", lambda *_: [])
        broken = to("apprise", url="json://127.0.0.1/" + "x" * (1 << 21))
        assert await out.examine("o1", [many[0], broken, many[1]]) == [found[0], None, None]


async def test_organisations_look_at_addresses_in_places_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has as many requests looked at as are left free waits, and hears of it; another one finds a place."""
    asked, go = asyncio.Semaphore(0), asyncio.Event()

    async def look(self: egress.Courier, many: Any, found: list[str | None]) -> None:
        asked.release()
        await go.wait()
        found += [""] * len(many)

    monkeypatch.setattr(egress.Courier, "_look", look)
    async with patient(notify_timeout_ms=300) as out, asyncio.TaskGroup() as tasks:
        out._courier._timeout_s = 60
        busy = [tasks.create_task(out.examine("o1", [to("apprise", url="json://a.test/")])) for _ in range(4)]
        for _ in busy:
            await asked.acquire()
        out._courier._timeout_s = 0.05
        with pytest.raises(Overloaded) as refusal:
            await out.examine("o1", [to("apprise", url="json://a.test/")])
        assert refusal.value.details == {"limit": "addresses looked at", "retry_after_s": 1}
        other = tasks.create_task(out.examine("o2", [to("apprise", url="json://a.test/")]))
        await asked.acquire()
        go.set()
    assert [task.result() for task in (*busy, other)] == [[""]] * 5


async def test_without_the_extra_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress, "installed", lambda: False)
    async with WebReceiver() as hook, patient() as out:
        assert await send(out, at(hook)) == Attempt(result="retry", error=NOT_INSTALLED)
        assert hook.connections == 0


async def test_a_notification_makes_a_bounded_number_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress, "REQUESTS_MAX", 1)
    async with RocketChat() as chat, patient() as out:
        attempt = await send(out, at(chat, "rocket", "%23alerts", "me:pw@"))
        assert (attempt.result, len(chat.requests)) == ("refused", 1)
        assert "more than" in str(attempt.error)
    assert REQUESTS_MAX == 10


# where it goes


async def test_a_private_address_is_refused() -> None:
    async with WebReceiver() as hook, patient(allow_private_destinations=False) as out:
        assert await send(out, at(hook)) == Attempt(result="retry", error=REFUSED)
        assert hook.connections == 0


async def test_a_name_that_leads_inside_is_refused() -> None:
    """Also one that nobody gave: that of the service itself."""
    asked: list[tuple[str, int]] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append((host, port))
        return ["127.0.0.1"]

    async with patient(allow_private_destinations=False, resolve=resolve) as out:
        for url in ("jsons://public.example:8443/", f"tgram://123456789:{'a' * 34}/12315544"):
            assert await send(out, to("apprise", url=url)) == Attempt(result="retry", error=NAME_REFUSED)
        assert asked == [("public.example", 8443), ("api.telegram.org", 443)]


async def test_a_service_with_connections_of_its_own_reaches_nothing() -> None:
    """Past the list of those that are taken, to see what holds where that is wrong."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as log, socket.create_server(("127.0.0.1", 0)) as mail:
        log.bind(("127.0.0.1", 0))
        log.setblocking(False)
        mail.setblocking(False)
        channels = (
            f"rsyslog://127.0.0.1:{log.getsockname()[1]}/user",
            f"mailto://me:pw@127.0.0.1:{mail.getsockname()[1]}?to=you@example.com&from=me@example.com&smtp=127.0.0.1",
            f"irc://127.0.0.1:{mail.getsockname()[1]}/%23room",
            "syslog://",
        )
        async with patient() as out:
            for url in channels:
                job = apprise.render(ALL["trip"])
                attempt = await out._courier.send(to("apprise", url=url), job, 0)
                assert attempt.result == "refused", url
        for listener in (log.recv, lambda _: mail.accept()):
            with pytest.raises(BlockingIOError):
                listener(1)


OUT_OF_REACH = """
socket.create_connection(("127.0.0.1", PORT))
socket.socket().connect(("127.0.0.1", PORT))
socket.socket().connect_ex(("127.0.0.1", PORT))
socket.socket(socket.AF_UNIX).connect("/tmp/x")
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", PORT))
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendmsg([b"x"], [], 0, ("127.0.0.1", PORT))
socket.socket().bind(("127.0.0.1", 0))
socket.getaddrinfo("localhost", 80)
socket.gethostbyname("localhost")
asyncio.run(asyncio.open_connection("127.0.0.1", PORT))
urllib.request.urlopen(f"http://127.0.0.1:{PORT}/")
http.client.HTTPConnection("127.0.0.1", PORT).connect()
smtplib.SMTP("127.0.0.1", PORT)
urllib3.PoolManager().request("GET", f"http://127.0.0.1:{PORT}/", retries=False)
subprocess.run(["true"])
os.system("true")
os.posix_spawn("/bin/true", ["true"], {})
os.execv("/bin/true", ["true"])
os.fork()
os.kill(os.getppid(), 0)
open("/etc/hostname").read()
open("/proc/self/environ").read()
os.open("/etc/hostname", os.O_RDONLY)
open(os.path.join(sysconfig.get_path("purelib"), "..", "..", "..", "..", "pyvenv.cfg"))
open(os.path.join(sysconfig.get_path("purelib"), "x"), "w")
open("/tmp/x", "w")
tempfile.mkstemp(dir="/tmp")
os.remove("/tmp/x")
os.mkdir("/tmp/x")
os.symlink("/etc/hostname", os.path.join(sysconfig.get_path("purelib"), "x"))
ctypes.CDLL("libc.so.6")
syslog.syslog("x")
"""
TRIES = """
import asyncio, ctypes, http.client, importlib.util, os, smtplib, socket, subprocess, sys, sysconfig, syslog, tempfile
import urllib.request, urllib3
spec = importlib.util.spec_from_file_location("child", PROGRAM)
child = importlib.util.module_from_spec(spec)
spec.loader.exec_module(child)
codes = [(line, compile(line, "line", "exec")) for line in LINES]
open(sys.modules["apprise"].__file__).close()
names = globals()
sys.addaudithook(child.guard)
open(sys.modules["apprise"].__file__).close()
for line, code in codes:
    try:
        exec(code, names)
    except BaseException as error:
        found = error
        while found is not None and not isinstance(found, PermissionError):
            found = found.__cause__ or found.__context__ or getattr(found, "reason", None)
        if found is None or "out of reach" not in str(found):
            print(line, "->", repr(error))
    else:
        print(line, "-> worked")
"""


def test_nothing_is_in_reach_behind_the_hook() -> None:
    lines = OUT_OF_REACH.strip().splitlines()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        values = f"PROGRAM = {str(PROGRAM)!r}\nPORT = {listener.getsockname()[1]}\nLINES = {lines!r}\n"
        done = subprocess.run([sys.executable, "-I", "-c", values + TRIES], capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


# that it ends


async def test_a_receiver_that_hangs_costs_its_time_and_leaves_nothing(process: AppriseProcess) -> None:
    async with WebReceiver() as hook:
        hook.usual = Reply(how="hang")
        async with patient() as out:
            under_way = asyncio.create_task(send(out, at(hook)))
            await hook.arrived.wait()
            (fork,) = forks_of(process)
            os.kill(fork, signal.SIGKILL)  # its requests are ours: the answer is waited for all the same
            under_way.cancel()
            await asyncio.gather(under_way, return_exceptions=True)
        for timeout_ms in GROWING_MS:
            seen = len(hook.requests)
            async with sender(notify_timeout_ms=timeout_ms) as out:
                attempt = await send(out, at(hook))
            if len(hook.requests) > seen:
                break
        assert attempt == Attempt(result="retry", error=f"no answer within {timeout_ms / 1000:g} s")
        await _until(lambda: forks_of(process) == [])


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.01)


async def test_a_killed_process_is_started_again(process: AppriseProcess) -> None:
    async with WebReceiver() as hook, patient() as out:
        assert (await send(out, at(hook))).result == "sent"
        before = process.pid
        assert before is not None
        os.kill(before, signal.SIGKILL)
        os.waitid(os.P_PID, before, os.WEXITED | os.WNOWAIT)
        assert (await send(out, at(hook))).result == "sent"
        assert process.pid != before


async def test_a_fork_that_dies_is_tried_again(process: AppriseProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    class Deadly(WebReceiver):
        def answer(self, request: Request) -> Reply:
            for fork in forks_of(process):
                os.kill(fork, signal.SIGKILL)
            return Reply()

    async with Deadly() as hook, patient() as out:
        assert await send(out, at(hook)) == ENDED
    async with WebReceiver() as hook, patient() as out:
        assert (await send(out, at(hook))).result == "sent"


async def test_an_unused_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("breaker_actors.notify.egress.apprise_process.IDLE_S", 0.01)
    alone = AppriseProcess()
    async with alone.connection():
        assert alone.pid is not None
    await _until(lambda: alone.pid is None)


async def test_the_process_has_nothing_of_the_service(process: AppriseProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BREAKERS_DATABASE_URL", "postgresql://u:hush@h/d")
    process.stop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        os.set_inheritable(listener.fileno(), True)
        async with WebReceiver() as hook, patient() as out:
            assert (await send(out, at(hook))).result == "sent"
        kept = {os.readlink(path).partition(":")[0] for path in Path(f"/proc/{process.pid}/fd").iterdir()}
        assert len(list(Path(f"/proc/{process.pid}/fd").iterdir())) == 3
        assert kept == {"socket", "/dev/null"}
    names = {pair.partition("=")[0] for pair in Path(f"/proc/{process.pid}/environ").read_text().split("\0") if pair}
    assert names <= {"LANG", "PATH", "LD_LIBRARY_PATH", "TZ"}


async def test_an_organisation_leaves_a_place_for_whoever_comes() -> None:
    places, got = Places(6), asyncio.Queue[str]()

    async def hold(org_id: str, until: asyncio.Event) -> None:
        async with places.place(org_id):
            got.put_nowait(org_id)
            await until.wait()

    over = asyncio.Event()
    tasks = [asyncio.create_task(hold("a", over)) for _ in range(9)]
    for _ in range(3):
        assert await got.get() == "a"
    tasks += [asyncio.create_task(hold("b", over)) for _ in range(9)]
    for _ in range(2):
        assert await got.get() == "b"
    tasks += [asyncio.create_task(hold("c", over))]
    assert await got.get() == "c"
    over.set()
    await asyncio.gather(*tasks)
    assert (got.qsize(), places._free, places._taken) == (13, 6, {})


# secrets


@pytest.mark.parametrize("status", [200, 302, 400, 429, 500])
async def test_no_secret_shows_in_what_went_wrong(
    status: int, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """With every logger wide open, and a receiver that repeats all it was sent."""
    caplog.set_level("DEBUG")
    shown = []
    async with WebReceiver() as hook, patient() as out:
        hook.usual = Reply(status, how="echo")
        for schema in ("json", "gotify", "rocket", "ntfy"):
            channel = at(hook, schema, f"{TOKEN}?to={QUERY}&-q={QUERY}", f"me:{PASSWORD}@")
            shown += [await send(out, channel), repr(channel)]
        assert hook.requests
        shown.append(await send(out, to("apprise", url=f"tgram://{TOKEN}/{PASSWORD}?x={QUERY}")))
        shown.append(await send(out, to("apprise", url=f"jsons://127.0.0.1:1/{TOKEN}?-q={QUERY}")))
    printed = capsys.readouterr()
    everything = "\n".join([repr(shown), caplog.text, printed.out, printed.err]).lower()
    assert not [secret for secret in PLANTED if secret.lower() in everything]


# which services


def test_the_table_is_what_the_sources_of_apprise_say() -> None:
    """`uv run python -m tests.support.apprise_services` writes it anew."""
    command = [sys.executable, "-m", "tests.support.apprise_services", "--print"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == MODULE.read_text()
    assert not WITH_HOST & OTHERS
    assert not LEFT_OUT & (WITH_HOST | OTHERS)
    assert {"discord", "tgram", "ntfys", "matrix", "gotify", "msteams", "workflow"} - WITH_HOST - OTHERS <= {"msteams"}
    assert {"mailto", "mqtt", "xmpp", "irc", "syslog", "rsyslog", "smpp", "dbus", "windows", "amqp"} <= LEFT_OUT


def test_the_page_names_what_is_left_out() -> None:
    page = Path("docs/guides/notifications.md").read_text()
    assert [schema for schema in sorted(LEFT_OUT) if f"`{schema}://`" not in page] == []
