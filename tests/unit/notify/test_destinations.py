"""No spelling of a destination leads a notification to where only the service can go, whatever the kind of channel; and
receivers that mean harm cost a bounded time and memory."""

from __future__ import annotations

import asyncio
import socket
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpcore
import pytest

from breaker_actors.notify.egress.http import NAME_REFUSED
from tests.unit.notify.attempts import ROUTING_KEY, send, sender, to

pytestmark = pytest.mark.usefixtures("quick_refusals")

LOOPBACK = (
    "127.0.0.1", "127.0.0.1.", "127.1", "127.0.1", "127.255.255.254", "2130706433", "017700000001", "0177.0.0.1",
    "0177.1", "0x7f000001", "0x7F000001", "0x7f.0x0.0x0.0x1", "0x7f.1", "0x7f.0.1", "127.0x0.0.01", "0000127.0.0.1",
    "localhost", "LOCALHOST", "localhost.", "0", "0.0.0.0", "00000000000", "0x0", "0.0", "127%2e0.0.1",
    "%31%32%37.0.0.1", "\uff11\uff12\uff17.0.0.1", "127\u3002\u0030\u30020\u30021", "127\uff0e0\uff0e0\uff0e1",
    "\u2460\u2461\u2466.0.0.1", "\U0001d7cf\U0001d7d0\U0001d7d5.0.0.1", "\u0661\u0662\u0667.0.0.1", "127.0.0.1\u00ad",
    "loc\u00adalhost", "\u24db\u24de\u24d2\u24d0\u24db\u24d7\u24de\u24e2\u24e3", "[::1]", "[::]", "[0:0:0:0:0:0:0:1]",
    "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[0:0:0:0:0:ffff:127.0.0.1]", "[::127.0.0.1]", "[::7f00:1]",
    "[::1%25lo]", "[::1%lo]", "[::ffff:0:127.0.0.1]", "[64:ff9b::7f00:1]", "[64:ff9b::127.0.0.1]",
    "[64:ff9b:1::7f00:1]", "[2002:7f00:1::]", "[2002:7f00:0001::1]", "[2001:0:7f00:1::]",
    "[2001:0:4136:e378:8000:63bf:80ff:fffe]",
)  # fmt: skip
METADATA = (
    "169.254.169.254", "169.254.169.253", "169.254.170.2", "169.254.0.1", "2852039166", "0xa9fea9fe",
    "0xa9.0xfe.0xa9.0xfe", "0251.0376.0251.0376", "025177524776", "169.16689662", "169.254.43518",
    "[::ffff:169.254.169.254]",
    "[::ffff:a9fe:a9fe]", "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::]", "[fd00:ec2::254]", "[fe80::a9fe:a9fe]",
    "[fe80::1%25eth0]", "168.63.129.16", "100.100.100.200", "192.0.0.192", "\uff11\uff16\uff19.254.169.254",
)  # fmt: skip
PRIVATE = (
    "10.0.0.1", "10.1", "167772161", "0x0a000001", "012.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.0.1",
    "192.168.257", "3232235521", "0xc0a80001", "100.64.0.1", "198.18.0.1", "192.0.2.1", "198.51.100.7", "203.0.113.9",
    "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "4294967295", "[::ffff:10.0.0.1]",
    "[::ffff:192.168.0.1]", "[64:ff9b::a00:1]", "[2002:a00:1::]", "[2002:c0a8:1::1]", "[fc00::1]", "[fd12:3456::1]",
    "[fe80::1]", "[fec0::1]", "[ff02::1]", "[ff0e::1]", "[2001:db8::1]", "[3fff::1]", "[100::1]", "[5f00::1]",
    "[4000::1]",
)  # fmt: skip
HOSTS = [*LOOPBACK, *METADATA, *PRIVATE]
ADDRESSES = [
    "http://127.0.0.1:22/", "http://1.1.1.1:25/", "http://1.1.1.1:22/", "http://1.1.1.1:0/", "http://1.1.1.1:65536/",
    "http://1.1.1.1:-1/", "http://1.1.1.1:587/", "https://1.1.1.1:1023/", "http://user@127.0.0.1/",
    "http://user:pass@1.1.1.1/", "http://1.1.1.1@127.0.0.1/", "http://1.1.1.1:80@127.0.0.1/",
    "http://127.0.0.1#@1.1.1.1/", "http://127.0.0.1?@1.1.1.1/", "http://127.0.0.1\\@1.1.1.1/", "http:///127.0.0.1/",
    "http:127.0.0.1/", "http:/127.0.0.1/", "//127.0.0.1/", "http://127.0.0.1%00.example.com/",
    "http://127.0.0.1\r\nHost: x/", "http://1.1.1.1/\r\nX-Injected: 1", "http://1.1.1.1/\n\nGET / HTTP/1.1",
    "http://127.0.0.1\t/", " http://127.0.0.1/", "http://[::1/", "http://::1/", "http://[]/", "http://", "http://:80/",
    "file:///etc/passwd", "ftp://127.0.0.1/", "gopher://127.0.0.1:6379/_x", "dict://127.0.0.1:11211/", "ldap://127.0.0.1/",
    "unix:///run/x.sock", "http+unix://%2Frun%2Fx.sock/", "jar:http://127.0.0.1!/", "data:text/plain,x", "javascript:x",
    "ws://127.0.0.1/", "tcp://127.0.0.1:80/",
]  # fmt: skip
INSIDE = [f"http://{host}/" for host in HOSTS] + [f"https://{host}:8443/x?y=z" for host in HOSTS[::4]]


class Dialled(list[tuple[str, int]]):
    """Addresses that somebody wanted to connect to; nobody gets through."""

    async def connect_tcp(self, host: str, port: int, *_: Any, **__: Any) -> Any:
        self.append((host, port))
        raise httpcore.ConnectError("refused by the test")


@pytest.fixture
def dialled(monkeypatch: pytest.MonkeyPatch) -> Dialled:
    """What leaves. The system's resolver reads numbers and knows localhost; it asks nobody for other names."""
    found, real = Dialled(), socket.getaddrinfo

    def look_up(host: Any, port: Any, *args: Any, **more: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else str(host)
        flags = 0 if name.rstrip(".").lower() == "localhost" else socket.AI_NUMERICHOST
        return real(host, port, type=socket.SOCK_STREAM, flags=flags)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", lambda self, *a, **k: found.connect_tcp(*a, **k))
    return found


def channels(address: str) -> list[Any]:
    return [
        to("webhook", url=address),
        to("slack", webhook_url=address),
        to("pagerduty", routing_key=ROUTING_KEY, events_url=address),
        to("alertmanager", url=address),
    ]


async def test_nothing_leaves_for_an_address_inside(dialled: Dialled) -> None:
    """In any spelling, through any kind of channel. It is a refusal, or a name nobody knows."""
    async with sender(allow_private_destinations=False) as out:
        for address in INSIDE + ADDRESSES:
            for channel in channels(address):
                attempt = await send(out, channel)
                assert dialled == [], (address, attempt)
                assert attempt.result in ("refused", "retry"), (address, attempt)
                assert attempt.status is None
    assert len(INSIDE + ADDRESSES) > 121


@pytest.mark.parametrize(
    ("address", "reached"),
    [
        ("http://1.1.1.1/", ("1.1.1.1", 80)),
        ("https://16843009/", ("1.1.1.1", 443)),
        ("http://0x01.1:8080/", ("1.0.0.1", 8080)),
        ("https://[2606:4700::1]/", ("2606:4700::1", 443)),
        ("https://[2002:101:101::1]/", ("2002:101:101::1", 443)),
    ],
)
async def test_the_same_spellings_of_a_public_address_are_dialled(
    dialled: Dialled, address: str, reached: tuple[str, int]
) -> None:
    """The test above would notice a connection."""
    async with sender(allow_private_destinations=False) as out:
        for channel in channels(address):
            assert (await send(out, channel)).result == "retry"
    assert dialled == [reached] * 4


async def test_each_look_up_is_judged_anew(dialled: Dialled) -> None:
    """A name that turns inside between two attempts, or has one address inside among others."""
    answers = [["1.1.1.1"], ["127.0.0.1"], ["::ffff:10.0.0.1", "1.1.1.1", "fe80::1%eth0"], ["169.254.169.254"], []]

    async def resolve(host: str, port: int) -> list[str]:
        return answers.pop(0)

    async with sender(resolve=resolve, allow_private_destinations=False) as out:
        attempts = [await send(out, to("webhook", url="http://turns.example/")) for _ in range(5)]
    assert [one.error == NAME_REFUSED for one in attempts] == [False, True, False, True, True]
    assert dialled == [("1.1.1.1", 80)] * 2


@pytest.mark.parametrize(
    ("recipient", "result"),
    [
        ("a@127.0.0.1", "refused"),
        ("a@[169.254.169.254]", "refused"),
        ("a@localhost", "retry"),
        ("a@[IPv6:::1]", "refused"),
    ],
)
async def test_mail_goes_to_the_operators_server_or_nowhere(dialled: Dialled, recipient: str, result: str) -> None:
    """There is no server here, which another start may mend."""
    async with sender(allow_private_destinations=False) as out:
        attempt = await send(out, to("email", to=recipient))
    assert attempt.result == result
    assert dialled == []


# receivers that mean harm

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
HARM: dict[str, tuple[bytes, bytes]] = {
    "a header without end": (b"HTTP/1.1 200 OK\r\nX: ", b"x" * 65_536),
    "headers without end": (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 4_096),
    "a status line without end": (b"HTTP/1.1 200 ", b"x" * 65_536),
    "interim answers without end": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1_024),
    "chunks without end": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"4000\r\n" + b"x" * 16_384 + b"\r\n"),
    "empty chunk extensions": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1", b";a=b" * 16_384),
    "a length of terabytes": (HEAD + b"Content-Length: 9999999999999\r\n\r\n", b"x" * 65_536),
    "what says it is gzip": (HEAD + b"Content-Encoding: gzip\r\n\r\n", b"\x1f\x8b" * 32_768),
    "no HTTP": (b"", b"\x00\xff" * 32_768),
}
TIME_MS, MORE_S, MEMORY_BYTES = 1_000, 6.0, 8 << 20


@asynccontextmanager
async def harmful(first: bytes, piece: bytes) -> AsyncIterator[str]:
    """Says `first`, then `piece` for as long as it is listened to."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(first)
            while True:
                writer.write(piece)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    server.close()
    await server.wait_closed()


@pytest.mark.alone
@pytest.mark.parametrize("harm", HARM)
async def test_a_harmful_receiver_costs_a_bounded_time_and_memory(harm: str) -> None:
    async with harmful(*HARM[harm]) as address, sender(notify_timeout_ms=TIME_MS) as out:
        tracemalloc.start()
        began = time.monotonic()
        attempt = await send(out, to("webhook", url=address))
        took, (_, peak) = time.monotonic() - began, tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert attempt.result in ("sent", "retry")
    assert took < TIME_MS / 1_000 + MORE_S
    assert peak < MEMORY_BYTES, peak
