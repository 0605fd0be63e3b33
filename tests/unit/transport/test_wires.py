"""Direct connections over real sockets: what comes back, and what is known when nothing does."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from breaker_actors.errors import NotOwner, Unavailable
from breaker_actors.messages import Address, AppendResult
from breaker_actors.telemetry.meters import Meters
from breaker_actors.transport import rpc as wires
from breaker_actors.transport import strangers
from breaker_actors.transport.rpc import Listener, Wire, Wires, may_carry
from breaker_actors.transport.strangers import What
from tests.support.cluster import until


class Part:
    """What stands behind a listener."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.calls: list[tuple[Any, ...]] = []
        self.unreadable: Any = None

    async def serve(self, method: str, *args: Any) -> Any:
        self.calls.append((method, *args))
        return await getattr(self, method)(*args)

    async def echo(self, value: Any) -> Any:
        return value

    async def wait(self) -> str:
        await self.go.wait()
        return "gone on"

    async def refuse(self) -> None:
        raise NotOwner("router x is not owned here", {"router_id": "x"})

    async def fail(self) -> None:
        raise ZeroDivisionError("secret of the callee")

    async def give(self) -> Any:
        return self.unreadable

    async def odd(self) -> Any:
        return lambda: None  # can't be sent


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[Part, Listener, Address]]:
    part = Part()
    listener = Listener(part.serve, Meters("router", "router-0"))
    address = await listener.open("127.0.0.1")
    try:
        yield part, listener, address
    finally:
        part.go.set()
        await listener.close()


@pytest.mark.parametrize(
    ("address", "encrypting", "may"),
    [
        ("127.0.0.1", True, True),
        ("::1", True, True),
        ("10.0.0.7", True, False),
        ("fd00::7", True, False),
        ("10.0.0.7", False, True),
    ],
)
def test_nothing_leaves_the_machine_in_the_clear_beside_calls_that_ray_encrypts(
    address: str, encrypting: bool, may: bool
) -> None:
    assert may_carry(address, encrypting) == may


async def test_an_answer_comes_back_as_it_was() -> None:
    async with listening() as (_, _, address):
        wire = await Wire.open(address)
        assert await wire.call("echo", ([AppendResult("ok", 3)],)) == [AppendResult("ok", 3)]
        large = bytes(range(256)) * 20_000
        assert await wire.call("echo", (large,)) == large
        wire.close()


async def test_calls_do_not_wait_for_each_other() -> None:
    async with listening() as (part, _, address):
        wire = await Wire.open(address)
        waiting = asyncio.create_task(wire.call("wait", ()))
        assert await asyncio.gather(*(wire.call("echo", (i,)) for i in range(100))) == list(range(100))
        assert not waiting.done()
        part.go.set()
        assert await waiting == "gone on"
        wire.close()


async def test_the_callees_errors_pass_through_and_a_bug_is_unavailable_without_its_text() -> None:
    async with listening() as (_, _, address):
        wire = await Wire.open(address)
        with pytest.raises(NotOwner) as refused:
            await wire.call("refuse", ())
        assert refused.value.details == {"router_id": "x"}
        for method in ("fail", "odd", "no_such_method"):
            with pytest.raises(Unavailable) as failed:
                await wire.call(method, ())
            assert "secret" not in str(failed.value)
        wire.close()


async def test_a_caller_that_gives_up_does_not_disturb_the_wire() -> None:
    async with listening() as (part, _, address):
        wire = await Wire.open(address)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await wire.call("wait", ())
        part.go.set()
        assert await wire.call("echo", (1,)) == 1
        wire.close()


async def test_calls_under_way_are_unavailable_when_the_other_end_goes() -> None:
    async with listening() as (part, listener, address):
        wire = await Wire.open(address)
        calls = [asyncio.create_task(wire.call("wait", ())) for _ in range(3)]
        await until(lambda: _count(part.calls, 3))
        await listener.close()
        for call in calls:
            with pytest.raises(Unavailable):
                await call
        assert not wire.is_open
        with pytest.raises(Unavailable):
            await wire.call("echo", (1,))


async def _count(found: list[Any], wanted: int) -> bool:
    return len(found) == wanted


class Bomb:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return exploded.append, (1,)


exploded: list[int] = []


@pytest.mark.parametrize("frame", [b"wrong", b"x" * 32, pickle.dumps(Bomb()), b""])
async def test_nothing_of_a_stranger_is_read(frame: bytes) -> None:
    async with listening() as (part, _, address):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        nonce = await reader.readexactly(4 + 16)
        assert nonce[:4] == b"\x10\0\0\0"
        writer.write(len(frame).to_bytes(4, "little") + frame)
        writer.write((8).to_bytes(4, "little") + pickle.dumps(Bomb())[:8])
        assert await reader.read() == b""
        assert part.calls == exploded == []
        writer.close()


async def test_what_is_too_long_for_a_frame_fails_that_call_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening() as (part, _, address):
        monkeypatch.setattr(wires, "FRAME_MAX", 1_000)
        wire = await Wire.open(address)
        with pytest.raises(Unavailable, match="too much"):
            await wire.call("echo", (b"x" * 2_000,))
        assert part.calls == []
        part.unreadable = b"x" * 2_000
        with pytest.raises(Unavailable, match="too much"):
            await wire.call("give", ())
        assert await wire.call("echo", (1,)) == 1
        wire.close()


async def test_a_frame_beyond_the_bound_ends_the_connection() -> None:
    async with listening() as (part, _, address):
        wire = await Wire.open(address)
        wire._send(b"x" * 100)
        wire._transport.write((1 << 31).to_bytes(4, "little"))  # type: ignore[union-attr]
        await until(lambda: _closed(wire))
        assert part.calls == []


async def test_who_has_no_token_is_not_answered() -> None:
    async with listening() as (_, _, address):
        with pytest.raises(OSError, match="lost"):
            await Wire.open(replace(address, token=bytes(32)))


@pytest.mark.parametrize("answer", [b"x" * 32, pickle.dumps(Bomb())])
async def test_nothing_of_a_stranger_who_listens_there_is_read(answer: bytes) -> None:
    """The port of a process that died may be another's by now."""

    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for frame in (b"n" * 16, answer):
            writer.write(len(frame).to_bytes(4, "little") + frame)
        await reader.read()
        writer.close()
        left.set()

    left = asyncio.Event()
    server = await asyncio.start_server(pretend, "127.0.0.1", 0)
    with pytest.raises(OSError, match=r"listens there|lost"):
        await Wire.open(Address("127.0.0.1", server.sockets[0].getsockname()[1], bytes(32)))
    assert exploded == []
    await left.wait()
    server.close()


async def test_who_says_nothing_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wires, "CONNECT_S", 0.05)
    async with listening() as (_, listener, address):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        await reader.readexactly(4 + 16)
        assert await reader.read() == b""
        assert not listener.ends
        assert refused(listener, "late") == 1
        writer.close()


def refused(listener: Listener, what: What) -> float:
    return listener.strangers._meters.value("breakers_wires_refused_total", what=what)


async def knock(address: Address, said: bytes) -> None:
    """Connects, says this, and waits for the end."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    await reader.readexactly(4 + 16)
    writer.write(said)
    with contextlib.suppress(ConnectionError):
        await reader.read()
    writer.close()


@pytest.mark.parametrize("said", [(48).to_bytes(4, "little") + bytes(48), b"GET / HTTP/1.1\r\n\r\n"])
async def test_strangers_can_not_wash_out_the_log(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is said at once, those after it once a minute, all are counted."""
    monkeypatch.setattr(strangers, "SAY_EACH_S", 0.4)
    async with listening() as (_, listener, address):
        with capture_logs() as lines:
            for _ in range(30):
                await knock(address, said)
            await until(lambda: _sum_of(lines, 30))
        found = [(line["event"], line["log_level"]) for line in lines]
        assert set(found) == {("strangers_refused", "warning")}
        assert lines[0]["n"] == 1
        assert len(lines) < 10
        assert lines[-1]["last"] == "unproven"
        assert refused(listener, "unproven") == 30


async def _sum_of(lines: list[Any], wanted: int) -> bool:
    return sum(line["n"] for line in lines) == wanted


async def test_connections_that_say_nothing_have_a_bound_and_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that waits longest makes room. Who has proven itself is not among them."""
    monkeypatch.setattr(strangers, "UNPROVEN_MAX", 5)
    async with listening() as (_, listener, address):
        before = await Wire.open(address)
        silent = [await asyncio.open_connection(address.host, address.port) for _ in range(20)]
        await until(lambda: _counted(listener, 15))
        assert len(listener.ends) == 5 + 1
        assert await silent[0][0].read(100) != b""  # the nonce
        assert await silent[0][0].read(100) == b""
        after = await Wire.open(address)
        assert [await wire.call("echo", (1,)) for wire in (before, after)] == [1, 1]
        assert refused(listener, "connections") == 16
        for _, writer in silent:
            writer.close()


async def _counted(listener: Listener, wanted: int) -> bool:
    return refused(listener, "connections") == wanted


class Unreadable:
    """Known at one end only."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return int, ("no number",)


async def test_what_can_not_be_read_fails_that_call_alone() -> None:
    async with listening() as (part, _, address):
        wire = await Wire.open(address)
        waiting = asyncio.create_task(wire.call("wait", ()))
        with pytest.raises(Unavailable, match="ValueError"):
            await wire.call("echo", (Unreadable(),))
        part.unreadable = Unreadable()
        with pytest.raises(Unavailable, match="can't be read"):
            await wire.call("give", ())
        part.go.set()
        assert await waiting == "gone on"
        wire.close()


async def test_a_call_that_is_given_up_over_there_is_answered() -> None:
    async with listening() as (part, listener, address):
        wire = await Wire.open(address)
        waiting = asyncio.create_task(wire.call("wait", ()))
        await until(lambda: _count(part.calls, 1))
        for task in listener.running:
            task.cancel()
        with pytest.raises(Unavailable, match="given up"):
            await waiting
        wire.close()


def test_a_token_is_not_shown() -> None:
    assert repr(Address("127.0.0.1", 1, b"secret")) == "Address(127.0.0.1:1)"


class Book:
    """Where actors are, as Ray would say."""

    def __init__(self) -> None:
        self.known: dict[str, Address | None] = {}
        self.asked = 0

    async def find(self, actor: str) -> Address | None:
        self.asked += 1
        if actor not in self.known:
            raise Unavailable(f"{actor} does not answer")
        return self.known[actor]


def opened(found: Wires, actor: str) -> Callable[[], Awaitable[Wire | None]]:
    async def look() -> Wire | None:
        return found.get(actor)

    return look


async def test_a_wire_is_made_in_the_background_and_made_anew_when_it_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wires, "VOUCH_S", 0.05)
    book = Book()
    async with listening() as (_, first, address):
        book.known["a"] = address
        found = Wires(book.find)
        assert found.get("a") is None
        wire = await until(opened(found, "a"))
        assert await wire.call("echo", (1,)) == 1
        await first.close()
        await until(lambda: _closed(wire))
        async with listening() as (_, _, moved):
            book.known["a"] = moved
            again = await until(opened(found, "a"))
            assert again.address == moved
            assert await again.call("echo", (2,)) == 2


async def _closed(wire: Wire) -> bool:
    return not wire.is_open


async def test_a_wire_ends_when_ray_does_not_vouch_for_its_other_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process may live on while another one has taken its name."""
    monkeypatch.setattr(wires, "VOUCH_S", 0.05)
    book = Book()
    async with listening() as (_, _, old), listening() as (part, _, new):
        book.known["a"] = old
        found = Wires(book.find)
        wire = await until(opened(found, "a"))
        book.known["a"] = new
        await until(lambda: _moved(found, new))
        assert not wire.is_open
        del book.known["a"]
        await until(lambda: _none(found))
        assert part.calls == []


async def _moved(found: Wires, address: Address) -> bool:
    wire = found.get("a")
    return wire is not None and wire.address == address


async def _none(found: Wires) -> bool:
    return found.get("a") is None


async def test_a_wire_that_nobody_vouched_for_lately_waits_until_somebody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was not used for a while; its process may not be the actor any more."""
    monkeypatch.setattr(wires, "VOUCH_S", 0.02)
    book = Book()
    async with listening() as (_, _, address):
        book.known["a"] = address
        found = Wires(book.find)
        wire = await until(opened(found, "a"))
        await asyncio.sleep(0.1)
        assert found.get("a") is None
        assert await until(opened(found, "a")) is wire


async def test_a_call_that_hangs_has_ray_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wires, "OVERDUE_S", 0.02)
    book = Book()
    async with listening() as (_, _, address):
        book.known["a"] = address
        found = Wires(book.find)
        wire = await until(opened(found, "a"))
        del book.known["a"]
        with pytest.raises(Unavailable):
            await found.call("a", wire, "wait", ())
        assert not wire.is_open


async def test_who_is_not_there_is_not_asked_for_all_the_time() -> None:
    book = Book()
    found = Wires(book.find)
    for _ in range(50):
        assert found.get("a") is None
        await asyncio.sleep(0)
    assert book.asked == 1
    book.known["b"] = None  # it does not listen
    for _ in range(50):
        assert found.get("b") is None
        await asyncio.sleep(0)
    assert book.asked == 2
