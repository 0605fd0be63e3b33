"""Which addresses and ports notifications may go to."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address

import httpcore
import pytest

from breaker_actors.notify.egress.guarded_backend import (
    REFUSAL_S,
    DestinationRefused,
    GuardedBackend,
    NameRefused,
)
from breaker_actors.notify.egress.policy import is_public, permits_address, permits_port
from breaker_actors.notify.egress.resolver import Resolver
from tests.support.receivers import WebReceiver

PUBLIC = (
    "1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.0", "172.15.255.255", "172.32.0.0", "192.0.1.1",
    "198.17.255.255", "198.20.0.0", "223.255.255.255", "2606:4700:4700::1111", "2a00:1450:4001:80b::200e",
    "::ffff:1.1.1.1", "64:ff9b::8.8.8.8", "2002:0101:0101::1",
)  # fmt: skip
PRIVATE = (
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.255", "168.63.129.16",
    "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.1.1",
    "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "64:ff9b::127.0.0.1",
    "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "100::1", "2001::1", "2001:0:7f00:1::", "2001:db8::1", "2002:7f00:1::1",
    "2002:a9fe:a9fe::", "2002:c0a8:101::1", "3fff::1", "4000::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1",
    "fe80::1%eth0", "fec0::1", "ff02::1",
)  # fmt: skip


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses(text: str) -> None:
    assert is_public(ip_address(text))
    assert permits_address(text, allow_private=False)


@pytest.mark.parametrize("text", PRIVATE)
def test_addresses_that_only_a_setting_opens(text: str) -> None:
    assert not permits_address(text, allow_private=False)
    assert permits_address(text, allow_private=True)


def test_what_the_standard_library_calls_private_is_not_public() -> None:
    for text in PRIVATE + PUBLIC:
        address = ip_address(text)
        if address.is_private or address.is_multicast or address.is_reserved:
            assert not is_public(address) or text in ("::ffff:1.1.1.1", "64:ff9b::8.8.8.8"), text


@pytest.mark.parametrize("text", ["", "localhost", "127.1", "1.2.3.4.5", "\x00"])
def test_what_is_no_address_is_never_permitted(text: str) -> None:
    assert not permits_address(text, allow_private=True)


def test_ports() -> None:
    assert [port for port in (1, 22, 25, 80, 443, 465, 587, 1023, 1024, 8443, 65535) if permits_port(port, False)] == [
        80, 443, 1024, 8443, 65535,
    ]  # fmt: skip
    assert permits_port(25, allow_private=True)


SPELLINGS = (
    "127.0.0.1", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "017700000001", "localhost",
    "0", "0.0.0.0", "::1", "::ffff:127.0.0.1", "169.254.169.254", "2852039166", "0xa9fea9fe",
)  # fmt: skip


@pytest.mark.parametrize("host", SPELLINGS)
async def test_no_spelling_of_an_address_gets_past_the_real_resolver(host: str) -> None:
    resolver = Resolver(str.isascii)
    backend = GuardedBackend.for_policy(resolver, allow_private=False)
    with pytest.raises(NameRefused if host == "localhost" else DestinationRefused):
        await backend.connect_tcp(host, 8080)
    resolver.close()


class Flipping:
    """A name server that gives another answer each time it is asked."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked += 1
        return self.answers.pop(0)


async def test_the_address_that_was_checked_is_the_one_that_is_connected_to() -> None:
    """A name that turns to a forbidden address after the check: it is never asked again."""
    async with WebReceiver(host="127.0.0.2") as allowed, WebReceiver(host="127.0.0.1", port=allowed.port) as forbidden:
        resolve = Flipping(["127.0.0.2"], ["127.0.0.1"])
        backend = GuardedBackend(resolve, lambda address: address == "127.0.0.2", lambda port: True)
        stream = await backend.connect_tcp("rebinding.example", allowed.port)
        assert stream.get_extra_info("server_addr") == ("127.0.0.2", allowed.port)
        await stream.aclose()
        assert resolve.asked == 1
        with pytest.raises(NameRefused):
            await backend.connect_tcp("rebinding.example", allowed.port)
        assert forbidden.connections == 0


async def test_of_several_addresses_only_permitted_ones_are_tried() -> None:
    async with WebReceiver(host="127.0.0.2") as allowed, WebReceiver(host="127.0.0.1", port=allowed.port) as forbidden:
        resolve = Flipping(["127.0.0.1", "127.0.0.2"])
        backend = GuardedBackend(resolve, lambda address: address == "127.0.0.2", lambda port: True)
        await (await backend.connect_tcp("both.example", allowed.port)).aclose()
        assert forbidden.connections == 0


async def test_the_next_address_is_tried_when_one_does_not_answer() -> None:
    async with WebReceiver(host="127.0.0.2") as receiver:
        backend = GuardedBackend.for_policy(Flipping(["127.0.0.3", "127.0.0.2"]), allow_private=True)
        await (await backend.connect_tcp("two.example", receiver.port)).aclose()


async def test_a_port_is_refused_before_the_name_is_looked_up() -> None:
    resolve = Flipping()
    with pytest.raises(DestinationRefused):
        await GuardedBackend.for_policy(resolve, allow_private=False).connect_tcp("example.com", 25)
    assert resolve.asked == 0


@pytest.mark.parametrize("host", ["nowhere.invalid", "x" * 300, "localhost"])
async def test_an_unknown_name_is_refused_like_one_that_leads_inside(host: str, unknown: list[str]) -> None:
    """Neither words nor time tell them apart; with private destinations there is nothing to hide."""
    resolver = Resolver(str.isascii)
    clock = asyncio.get_running_loop().time
    begun = clock()
    with pytest.raises(NameRefused):
        await GuardedBackend.for_policy(resolver, False).connect_tcp(host, 443)
    assert clock() - begun > 0.99 * REFUSAL_S
    if host != "localhost":
        with pytest.raises(httpcore.ConnectError):
            await GuardedBackend.for_policy(resolver, True).connect_tcp(host, 443)
    assert set(unknown) <= {"nowhere.invalid"}
    resolver.close()
    await asyncio.sleep(0)
