"""Attempts against real receivers on loopback: what is sent, what comes of it, and that it ends in time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trustme
from msgspec.structs import replace

from breaker_actors.clock import rfc3339
from breaker_actors.notify.egress import http
from breaker_actors.notify.egress.guarded_backend import ANSWER_BYTES_MAX, _left_s, time_limit
from breaker_actors.notify.egress.http import CONNECTIONS, IDLE_CONNECTIONS, NAME_REFUSED, REFUSED, trusted
from breaker_actors.notify.egress.resolver import RESOLVERS
from breaker_actors.notify.limits import Pace
from breaker_actors.notify.model import Attempt, Destination
from tests.support.receivers import PagerDutyReceiver, Reply, SlackReceiver, WebReceiver, problems_of
from tests.unit.notify.attempts import GROWING_MS, ROUTING_KEY, send, sender, serving, to, trusting
from tests.unit.notify.messages import AGAIN, ALL, BREAKER, HOSTILE, NOW, PROJECT, RECOVER, RESOLVE, TEST, TRIP, changed

pytestmark = pytest.mark.usefixtures("quick_refusals")

# what arrives


async def test_a_webhook_arrives_signed_with_its_key_and_headers() -> None:
    async with WebReceiver() as hook, sender() as out:
        config = {
            "url": hook.url("/a?b=c"),
            "secret": "s3cret",
            "headers": {"X-Team": "a b", "Authorization": "Bearer t"},
        }
        assert await send(out, to("webhook", **config)) == Attempt(result="sent", status=200)
        (got,) = hook.requests
        assert (got.method, got.target) == ("POST", "/a?b=c")
        assert got.is_signed_with("s3cret")
        assert not got.is_signed_with("other")
        assert got.json["transition_seq"] == 7
        assert got.headers["host"] == f"127.0.0.1:{hook.port}"
        assert got.headers["content-type"] == "application/json"
        assert got.headers["user-agent"] == "breaker-actors"
        assert got.headers["x-eb-timestamp"] == str(NOW)
        assert (got.headers["x-team"], got.headers["authorization"]) == ("a b", "Bearer t")
        assert len([name for name in got.headers if name.startswith("content-")]) == 2


async def test_a_retry_carries_the_same_key_and_body() -> None:
    async with WebReceiver() as hook, sender() as out:
        hook.script = [Reply(500)]
        assert (await send(out, to("webhook", url=hook.url()))).result == "retry"
        assert (await send(out, to("webhook", url=hook.url()))).result == "sent"
        (tries,) = hook.by_key().values()
        assert len(tries) == 2
        assert tries[0].body == tries[1].body


@pytest.mark.parametrize("case", ALL)
async def test_slack_takes_every_message(case: str) -> None:
    async with SlackReceiver() as slack, sender() as out:
        assert await send(out, to("slack", webhook_url=slack.url()), ALL[case]) == Attempt(result="sent", status=200)
        assert len(slack.texts) == 1
        assert slack.problems == []


async def test_an_alertmanager_takes_every_message_and_renewals() -> None:
    async with WebReceiver() as far, sender() as out:
        channel = to("alertmanager", url=far.url("/am"), username="u", password="p")
        for message in (TRIP, AGAIN, TEST, HOSTILE, RECOVER, RESOLVE):
            assert (await send(out, channel, message)).result == "sent"
        assert (await out.renew(channel, [TRIP, HOSTILE], NOW + 1_000)).result == "sent"
        assert {request.target for request in far.requests} == {"/am/api/v2/alerts"}
        assert {request.headers["authorization"] for request in far.requests} == {"Basic dTpw"}
        assert all(problems_of("alertmanager_alerts", request.body) == [] for request in far.requests)
        first, again = json.loads(far.requests[0].body)[0], json.loads(far.requests[-1].body)[0]
        assert first["labels"] == again["labels"]
        assert first["endsAt"] < again["endsAt"] == rfc3339(NOW + 1_000 + 4 * 60_000)
        for kind in ("mute_ending", "observed"):
            attempt = await send(out, channel, changed(kind=kind))
            assert (attempt.result, "Alertmanager is not" in str(attempt.error)) == ("refused", True)
        assert (await out.renew(to("alertmanager"), [TRIP], NOW)).error == "config.url is required"
        assert len(far.requests) == 7


async def test_pagerduty_opens_one_alert_and_closes_it() -> None:
    async with PagerDutyReceiver() as pager, sender() as out:
        channel = to("pagerduty", routing_key=ROUTING_KEY, events_url=pager.url("/v2/enqueue"), severity="warning")
        for message in (TRIP, AGAIN, TEST, HOSTILE):
            assert (await send(out, channel, message)).status == 202
        key = f"{PROJECT}:{BREAKER}"
        assert [payload["severity"] for payload in pager.alerts[key]] == ["warning"] * 3
        await send(out, channel, RECOVER)
        assert pager.resolved == [key]
        await send(out, channel, TRIP)
        await send(out, channel, RESOLVE)
        assert pager.resolved == [key, key]
        assert pager.problems == []


async def test_what_pagerduty_dislikes_is_passed_on_unless_it_repeats_the_key() -> None:
    async with PagerDutyReceiver() as pager, sender() as out:
        attempt = await send(out, to("pagerduty", routing_key="sh0rt", events_url=pager.url()))
        assert attempt == Attempt(result="refused", status=400, error="answered 400 Bad Request")
        assert pager.problems == ["$.routing_key: 'sh0rt' does not match '^[A-Za-z0-9]{32}$'"]
        pager.script = [Reply(400, b'{"errors": ["\'severity\' is unknown"]}')]
        attempt = await send(out, to("pagerduty", routing_key=ROUTING_KEY, events_url=pager.url()))
        assert attempt.error == "answered 400 Bad Request: 'severity' is unknown"


async def test_a_project_without_events_url_goes_to_pagerduty_itself() -> None:
    asked: list[tuple[str, int]] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append((host, port))
        raise OSError

    async with sender(resolve=resolve) as out:
        attempt = await send(out, to("pagerduty", routing_key=ROUTING_KEY))
        assert attempt.result == "retry"
        assert asked == [("events.pagerduty.com", 443)]


# what comes of it


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (Reply(204, b""), Attempt(result="sent", status=204)),
        (Reply(500), Attempt(result="retry", status=500, error="answered 500 Internal Server Error")),
        (
            Reply(429, headers=(("Retry-After", "7"),)),
            Attempt(result="retry", status=429, error="answered 429 Too Many Requests", retry_after_ms=7_000),
        ),
        (
            Reply(503, headers=(("retry-after", "Fri, 21 Nov 2025 11:25:39 GMT"),)),
            Attempt(result="retry", status=503, error="answered 503 Service Unavailable", retry_after_ms=29_877),
        ),
        (
            Reply(404, b'{"error": "no_such_hook"}'),
            Attempt(result="refused", status=404, error="answered 404 Not Found: no_such_hook"),
        ),
        (Reply(how="cut"), Attempt(result="retry", error="the answer was cut short or is not HTTP")),
    ],
)
async def test_outcomes(reply: Reply, expected: Attempt) -> None:
    async with WebReceiver() as hook, sender() as out:
        hook.usual = reply
        assert await send(out, to("webhook", url=hook.url())) == expected


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("kind", ["webhook", "slack", "pagerduty", "alertmanager"])
async def test_a_redirect_is_refused_and_not_followed(kind: str, status: int) -> None:
    async with WebReceiver() as elsewhere, WebReceiver() as hook, sender() as out:
        hook.usual = Reply(status, headers=(("Location", elsewhere.url()),))
        config = {"url": hook.url(), "webhook_url": hook.url(), "events_url": hook.url(), "routing_key": ROUTING_KEY}
        attempt = await send(out, to(kind, **config))
        assert (attempt.result, attempt.status) == ("refused", status)
        assert "redirects are not followed" in str(attempt.error)
        assert elsewhere.connections == 0


@pytest.mark.parametrize("how", ["hang", "drip_head"])
async def test_no_status_in_time_is_tried_again(how: Any) -> None:
    async with WebReceiver() as hook, sender(notify_timeout_ms=150) as out:
        hook.usual = Reply(how=how)
        assert await send(out, to("webhook", url=hook.url())) == Attempt(
            result="retry", error="no answer within 0.15 s"
        )


async def test_informational_answers_without_end_are_given_up() -> None:
    """Long before the time limit: reading them keeps the loop that everybody's alerts are sent from."""
    async with WebReceiver() as hook, sender(notify_timeout_ms=60_000) as out:
        hook.usual = Reply(how="early")
        attempt = await send(out, to("webhook", url=hook.url()))
        assert attempt == Attempt(result="retry", error="the answer was cut short or is not HTTP")
        hook.usual = Reply(200, b"ok")
        assert (await send(out, to("webhook", url=hook.url()))).result == "sent"


async def test_a_connection_that_is_kept_may_bring_any_number_of_answers() -> None:
    async with WebReceiver() as hook, sender() as out:
        hook.usual = Reply(200, b"x" * 4_000)
        for _ in range(2 * ANSWER_BYTES_MAX // 4_000):
            assert (await send(out, to("webhook", url=hook.url()))).result == "sent"
        assert hook.connections <= 3


@pytest.mark.parametrize("how", ["drip", "flood"])
@pytest.mark.parametrize(("status", "result"), [(200, "sent"), (500, "retry"), (404, "refused")])
async def test_a_status_in_time_counts_whatever_its_body_does(how: Any, status: int, result: str) -> None:
    for timeout_ms in GROWING_MS:
        async with WebReceiver() as hook, sender(notify_timeout_ms=timeout_ms) as out:
            hook.usual = Reply(status, how=how)
            attempt = await send(out, to("webhook", url=hook.url()))
        if attempt.status:
            break
    assert (attempt.result, attempt.status) == (result, status)


@pytest.mark.parametrize("how", ["drip", "late"])
@pytest.mark.parametrize(("status", "result"), [(200, "sent"), (500, "retry"), (404, "refused")])
async def test_a_body_that_does_not_come_keeps_no_place(
    monkeypatch: pytest.MonkeyPatch, how: Any, status: int, result: str
) -> None:
    """It has BODY_S after the status, and is no failure of a delivery that was taken."""
    monkeypatch.setattr(http, "BODY_S", 0.05)
    async with WebReceiver() as hook, sender(notify_timeout_ms=60_000) as out:
        hook.usual = Reply(status, how=how)
        attempt = await send(out, to("webhook", url=hook.url()))
        assert (attempt.result, attempt.status) == (result, status)
        assert out._poster._pool.connections == []


async def test_the_time_of_a_body_is_none_beyond_the_whole() -> None:
    with time_limit(5.0):
        with time_limit(60.0):
            assert 0 < (_left_s(None) or 0) <= 5.0
        with time_limit(0.0):
            assert _left_s(None) == 0
        assert 0 < (_left_s(None) or 0) <= 5.0


async def test_a_name_server_that_hangs_counts_against_the_time() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return await asyncio.get_running_loop().create_future()

    async with sender(notify_timeout_ms=100, resolve=resolve) as out:
        attempt = await send(out, to("webhook", url="https://hook.example/"))
        assert attempt == Attempt(result="retry", error="no answer within 0.1 s")


async def test_many_attempts_at_once_all_get_through() -> None:
    async with WebReceiver() as hook, sender() as out:
        attempts = await asyncio.gather(*(send(out, to("webhook", url=hook.url())) for _ in range(150)))
        assert {attempt.result for attempt in attempts} == {"sent"}
        assert len(hook.requests) == 150


async def test_nobody_waits_for_receivers_that_hang() -> None:
    """The pool has as many connections as there may be deliveries at once; 150 of those here."""
    assert Pace().total_max <= CONNECTIONS
    async with WebReceiver() as dead, WebReceiver() as hook, sender(notify_timeout_ms=60_000) as out:
        dead.usual = Reply(how="hang")
        hanging = [asyncio.create_task(out.send(to("webhook", url=dead.url()), TRIP)) for _ in range(150)]
        while len(dead.requests) < len(hanging):
            await asyncio.sleep(0.01)
        assert await send(out, to("webhook", url=hook.url())) == Attempt(result="sent", status=200)
        assert not any(task.done() for task in hanging)
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)


async def test_nobody_waits_for_name_servers_that_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """One look-up for all that ask for a host, and the next one gets its answer, too."""
    asked, go = list[str](), threading.Event()
    system = socket.getaddrinfo

    def look_up(host: str, *args: Any, **more: Any) -> Any:
        asked.append(host)
        if host != "127.0.0.1":
            assert go.wait(60)
            return system("127.0.0.1", *args, **more)
        return system(host, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    async with WebReceiver() as hook, sender(notify_timeout_ms=60_000) as out:
        slow = to("webhook", url=hook.url().replace("127.0.0.1", "slow.example"))
        waiting = [asyncio.create_task(out.send(slow, TRIP)) for _ in range(RESOLVERS)]
        while "slow.example" not in asked:
            await asyncio.sleep(0.01)
        waiting[0].cancel()
        assert (await send(out, to("webhook", url=hook.url()))).result == "sent"
        go.set()
        answers = await asyncio.gather(*waiting[1:])
        assert {answer.result for answer in answers} == {"sent"}
        assert asked.count("slow.example") == 1


async def test_a_bad_receiver_leaves_no_connection_behind() -> None:
    async with WebReceiver() as hook, sender(notify_timeout_ms=100) as out:
        for how in ("hang", "cut", "drip", "drip_head", "flood"):
            hook.usual = Reply(how=how)  # type: ignore[arg-type]
            await asyncio.gather(*(send(out, to("webhook", url=hook.url())) for _ in range(5)))
        assert out._poster._pool.connections == []


@pytest.mark.parametrize("timeout_ms", range(40, 70, 5))
async def test_nor_does_a_time_that_is_over_between_two_steps(timeout_ms: int) -> None:
    async with WebReceiver() as hook, sender(notify_timeout_ms=timeout_ms) as out:
        hook.usual = Reply(how="hang")
        for _ in range(3):
            await asyncio.gather(*(send(out, to("webhook", url=hook.url())) for _ in range(100)))
        assert out._poster._pool.connections == []


async def test_a_connection_is_used_again() -> None:
    async with WebReceiver() as hook, sender() as out:
        for _ in range(5):
            await send(out, to("webhook", url=hook.url()))
        assert hook.connections == 1


async def test_what_a_receiver_says_beyond_its_answer_answers_no_other_organisation() -> None:
    """The rest of an answer is read as the next one: an alert would be told as sent that nobody took."""
    targets, talks = list[str](), list[Any]()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.append(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                targets.append(head.split(b" ")[1].decode())
                good = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
                bad = good.replace(b"200 OK", b"500 Error")
                writer.write(good * 3 if targets[-1] == "/theirs" else bad)
                await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server, sender() as out:
        port = server.sockets[0].getsockname()[1]
        theirs = replace(to("webhook", url=f"http://127.0.0.1:{port}/theirs"), org_id="o-1")
        ours = replace(to("webhook", url=f"http://127.0.0.1:{port}/ours"), org_id="o-2")
        assert (await send(out, theirs)).result == "sent"
        assert (await send(out, ours)).status == 500
    await asyncio.gather(*talks)
    assert targets == ["/theirs", "/ours"]


async def test_connections_of_many_at_once_are_used_again() -> None:
    """As many as may be idle are kept, the newest; those of another receiver take their places."""
    async with WebReceiver() as hook, WebReceiver() as other, sender() as out:
        for _ in range(3):
            await asyncio.gather(*(send(out, to("webhook", url=hook.url())) for _ in range(40)))
        assert hook.connections == len(out._poster._pool.connections) == 40
        await asyncio.gather(*(send(out, to("webhook", url=other.url())) for _ in range(IDLE_CONNECTIONS)))
        assert len(out._poster._pool.connections) == IDLE_CONNECTIONS
        assert (await send(out, to("webhook", url=hook.url()))).result == "sent"
        assert hook.connections == 41


async def test_a_connection_that_its_receiver_closed_meanwhile_is_not_used() -> None:
    async with WebReceiver() as hook, sender() as out:
        await send(out, to("webhook", url=hook.url()))
        for task in list(hook._open):
            task.cancel()
            await asyncio.wait([task])
        [connection] = out._poster._pool.connections
        while not connection.has_expired():
            await asyncio.sleep(0.01)
        assert (await send(out, to("webhook", url=hook.url()))).result == "sent"
        assert hook.connections == 2


async def test_idle_connections_are_closed_when_their_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "IDLE_S", 0.0)
    async with WebReceiver() as hook, sender() as out:
        for _ in range(3):
            await send(out, to("webhook", url=hook.url()))
        assert hook.connections == 3
        assert out._poster._pool.connections == []


async def test_no_cookie_of_one_channel_reaches_another() -> None:
    async with WebReceiver() as hook, sender() as out:
        hook.usual = Reply(headers=(("Set-Cookie", "a=b"),))
        await send(out, to("webhook", url=hook.url()))
        await send(out, to("webhook", url=hook.url()))
        assert ["cookie" in got.headers for got in hook.requests] == [False, False]


async def test_an_ipv6_address_keeps_its_brackets_in_the_host_header() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        assert host == "2606:4700::1111"
        return ["127.0.0.1"]

    async with WebReceiver() as hook, sender(resolve=resolve) as out:
        url = f"http://[2606:4700::1111]:{hook.port}/x"
        assert (await send(out, to("webhook", url=url))).result == "sent"
        assert hook.requests[0].headers["host"] == f"[2606:4700::1111]:{hook.port}"


async def test_nobody_listening(unknown: list[str]) -> None:
    async with WebReceiver() as gone:
        url = gone.url()
    async with sender() as out:
        assert await send(out, to("webhook", url=url)) == Attempt(result="retry", error="the connection was refused")
        attempt = await send(out, to("webhook", url="https://nowhere.invalid/"))
        assert attempt == Attempt(result="retry", error="its name could not be resolved")
    assert unknown == ["nowhere.invalid"]


async def test_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    async with WebReceiver() as proxy, WebReceiver() as hook:
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url(""))
        async with sender() as out:
            assert (await send(out, to("webhook", url=hook.url()))).result == "sent"
        assert proxy.connections == 0


# TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


async def _loopback(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


async def test_https_is_verified_against_the_hosts_name(authority: trustme.CA) -> None:
    """The connection goes to a number, the certificate is still asked for the name."""
    async with WebReceiver(serving(authority, "hook.example")) as hook:
        async with sender(trusting(authority), _loopback) as out:
            assert (await send(out, to("webhook", url=hook.url(host="hook.example")))).result == "sent"
            assert hook.requests[0].headers["host"] == f"hook.example:{hook.port}"
            other = await send(out, to("webhook", url=hook.url(host="other.example")))
            assert other == Attempt(result="retry", error="its certificate could not be verified")
        async with sender(resolve=_loopback) as out:
            attempt = await send(out, to("webhook", url=hook.url(host="hook.example")))
            assert attempt == Attempt(result="retry", error="its certificate could not be verified")


async def test_an_authority_of_ones_own_comes_by_the_usual_variable(
    authority: trustme.CA, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    async with WebReceiver(serving(authority, "localhost")) as hook, sender(trusted()) as out:
        assert (await send(out, to("webhook", url=hook.url(host="localhost")))).result == "sent"


async def test_plain_http_where_tls_is_expected() -> None:
    async with WebReceiver() as hook, sender() as out:
        url = hook.url().replace("http:", "https:")
        assert await send(out, to("webhook", url=url)) == Attempt(result="retry", error="TLS failed")


# policy

_HIDDEN = Attempt(result="retry", error=NAME_REFUSED)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]", "0"])
async def test_private_destinations_are_refused_unless_allowed(host: str) -> None:
    async with WebReceiver() as hook:
        async with sender(allow_private_destinations=False) as out:
            for destination in (
                to("webhook", url=hook.url(host=host)),
                to("slack", webhook_url=hook.url(host=host)),
                to("pagerduty", routing_key=ROUTING_KEY, events_url=hook.url(host=host)),
                to("alertmanager", url=hook.url(host=host)),
            ):
                wanted = _HIDDEN if host == "localhost" else Attempt(result="retry", error=REFUSED)
                assert await send(out, destination) == wanted
        assert hook.connections == 0
        async with sender() as out:
            assert (await send(out, to("webhook", url=hook.url(host=host)))).result == "sent"


async def test_a_name_that_leads_inside_is_refused_like_an_unknown_one(unknown: list[str]) -> None:
    """A channel is no way to look internal names up."""
    async with WebReceiver() as hook, sender(resolve=_loopback, allow_private_destinations=False) as out:
        assert await send(out, to("webhook", url=hook.url(host="innocent.example"))) == _HIDDEN
        assert hook.connections == 0
    async with sender(allow_private_destinations=False) as out:
        assert await send(out, to("webhook", url="http://nowhere.invalid:8080/")) == _HIDDEN
    assert unknown == ["nowhere.invalid"]


# bad configs, bad messages


@pytest.mark.parametrize(
    ("destination", "error"),
    [
        (to("slack"), "config.webhook_url is required"),
        (to("webhook", url="file:///etc/passwd"), "config.url must be an http or https address"),
        (to("webhook", url="http://h/", headers={"Host": "x"}), "config.headers.Host is set by the service"),
        (to("pagerduty", routing_key=None), "config.routing_key is required"),
        (to("alertmanager", url="http://h/", labels={"kind": "x"}), "config.labels.kind is set by the service"),
        (to("email", to="nobody"), "config.to item 1 is not an e-mail address"),
    ],
)
async def test_a_bad_config_is_refused_with_its_place(destination: Destination, error: str) -> None:
    async with sender() as out:
        assert await send(out, destination) == Attempt(result="refused", error=error)


async def test_a_message_that_cannot_be_worded_is_an_outcome_too() -> None:
    async with SlackReceiver() as slack, sender() as out:
        attempt = await send(out, to("slack", webhook_url=slack.url()), changed(ts_ms=10**18))
        assert (attempt.result, attempt.error) == ("retry", "internal error (OverflowError)")
        assert slack.connections == 0


async def test_a_cancelled_attempt_is_cancelled() -> None:
    async with WebReceiver() as hook, sender() as out:
        hook.usual = Reply(how="hang")
        task = asyncio.create_task(out.send(to("webhook", url=hook.url()), TRIP))
        await hook.arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_what_crosses_processes_survives_pickling() -> None:
    for value in (TRIP, to("webhook", url="https://h/"), Attempt(result="retry", status=429, error="x")):
        assert pickle.loads(pickle.dumps(value)) == value


def test_destinations_do_not_show_their_config() -> None:
    assert "hush" not in repr(to("webhook", url="https://h/hush", secret="hush"))
    assert "hush" not in f"{to('webhook', secret='hush')}"


# secrets

TOKEN, KEY, HEADER, SECRET = (
    "tOk3n/9Qw8Er7Ty6",
    "R0UT1NGKEY0123456789abcdefghijkl",
    "Basic dXNlcjpoNHJkVG9HdWVzcw==",
    "s1gn1ngs3cr3t",
)
PLANTED = (TOKEN, "9Qw8Er7Ty6", KEY, HEADER, "dXNlcjpoNHJkVG9HdWVzcw", SECRET, "q_5eCreT_v4lue")
Config = Callable[[str], Destination]
CHANNELS: dict[str, Config] = {
    "slack": lambda url: to("slack", webhook_url=f"{url}/services/{TOKEN}"),
    "pagerduty": lambda url: to("pagerduty", routing_key=KEY, events_url=f"{url}/{TOKEN}"),
    "alertmanager": lambda url: to(
        "alertmanager", url=f"{url}/{TOKEN}?q=q_5eCreT_v4lue", username="dXNlcjpoNHJkVG9HdWVzcw", password=SECRET
    ),
    "webhook": lambda url: to(
        "webhook", url=f"{url}/{TOKEN}?q=q_5eCreT_v4lue", headers={"Authorization": HEADER}, secret=SECRET
    ),
}
TROUBLE = {
    **{f"echo{status}": Reply(status, how="echo") for status in (200, 302, 400, 429, 500)},
    **{how: Reply(how=how) for how in ("hang", "cut", "drip", "drip_head", "flood")},  # type: ignore[arg-type]
}


@pytest.mark.parametrize("trouble", TROUBLE)
@pytest.mark.parametrize("kind", CHANNELS)
async def test_no_secret_shows_in_what_went_wrong(
    kind: str, trouble: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """With every logger wide open, and receivers that repeat all they were sent."""
    caplog.set_level("DEBUG")
    for timeout_ms in GROWING_MS:
        async with WebReceiver() as hook, sender(notify_timeout_ms=timeout_ms) as out:
            hook.usual = TROUBLE[trouble]
            attempt = await send(out, CHANNELS[kind](hook.url("")))
        if hook.requests:
            break
    assert hook.requests[0].target.startswith("/services/" if kind == "slack" else f"/{TOKEN}")
    _assert_clean(attempt, caplog, capsys)


@pytest.mark.parametrize("kind", CHANNELS)
@pytest.mark.parametrize("base", ["http://nowhere.invalid", "http://127.0.0.1:1", "https://127.0.0.1:1", "gopher://x"])
async def test_no_secret_shows_when_nothing_could_be_sent(
    kind: str, base: str, unknown: list[str], caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("DEBUG")
    async with sender() as out:
        attempt = await send(out, CHANNELS[kind](base))
        assert attempt.result != "sent"
        broken = await send(out, CHANNELS[kind](base), changed(ts_ms=10**18, rule={"kind": object()}))
        assert broken.result != "sent"
    _assert_clean((attempt, broken), caplog, capsys)


def _assert_clean(shown: Any, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    printed = capsys.readouterr()
    everything = "\n".join([repr(shown), caplog.text, printed.out, printed.err]).lower()
    for secret in PLANTED:
        assert secret.lower() not in everything
        assert json.dumps(secret).strip('"').replace("/", "\\/").lower() not in everything
