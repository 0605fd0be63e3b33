"""Bodies that cost much to read for what they cost to send: each as large as 16 KiB of gzip can make it, or less."""

from __future__ import annotations

import functools
import gzip
import itertools
import json
from collections.abc import Callable

from api.admission.inflate import Inflation

SENT_MAX = 16 << 10
SLOW = b"1.79769313486231580793e308"
"""A number that takes a decoder some fifteen microseconds."""
_SIZES = (15 << 20, 4 << 20, 1 << 20, 1_000_000, 800_000, 600_000, 400_000, 250_000, 100_000, 40_000, 15_000)


def _repeat(size: int, unit: bytes, head: bytes = b"[", tail: bytes = b"]") -> bytes:
    return head + unit * (size // len(unit)) + unit.rstrip(b",") + tail


def _keys(size: int, head: bytes, value: bytes, tail: bytes) -> bytes:
    return head + b",".join(b'"%x":%b' % (n, value) for n in range(size // 11)) + tail


def _sample(**fields: object) -> bytes:
    return json.dumps({"router_id": "r", "metric": "m", "ts_ms": 1, "value": 1, **fields}).encode()


KINDS = {
    "zeros": lambda n: _repeat(n, b"0,"),
    "objects": lambda n: _repeat(n, b"{},"),
    "objects of one key": lambda n: _repeat(n, b'{"a":0},'),
    "lists": lambda n: _repeat(n, b"[],"),
    "strings": lambda n: _repeat(n, b'"",'),
    "keys": lambda n: _keys(n, b"[{", b"0", b"}]"),
    "one key again and again": lambda n: _repeat(n, b'"a":0,', b"[{", b"}]"),
    "tags": lambda n: _keys(n, b'[{"router_id":"r","metric":"m","value":1,"tags":{', b'""', b"}}]"),
    "one tag again and again": lambda n: _repeat(n, b'"a":"",', b'[{"router_id":"r","metric":"m","tags":{', b"}}]"),
    "unknown lists": lambda n: _repeat(n, b"[],", b'[{"router_id":"r","x":[', b"]}]"),
    "unknown and NaN": lambda n: _repeat(n, b"[],", b'[{"router_id":"r","value":NaN,"x":[', b"]}]"),
    "NaN": lambda n: _repeat(n, b"NaN,"),
    "NaN without commas": lambda n: _repeat(n, b"NaN"),
    "halves of characters": lambda n: _repeat(n, b"\\ud800", b'[{"metric":"', b'"}]'),
    "escaped quotes": lambda n: _repeat(n, b'\\"', b'[{"tags":{"', b'":""}}]'),
    "a long string": lambda n: _repeat(n, b"a", b'[{"router_id":"', b'"}]'),
    "a long number": lambda n: _repeat(n, b"9", b'[{"router_id":"r","metric":"m","ts_ms":1,"value":', b"}]"),
    "slow numbers": lambda n: _repeat(n, b"1e-320,", b'[{"router_id":"r","x":[', b"]}]"),
    "one value again and again": lambda n: _repeat(n, b'"value":%b,' % SLOW, b'[{"router_id":"r","metric":"m",', b"}]"),
    "the same, escaped": lambda n: _repeat(n, b'"v\\u0061lue":%b,' % SLOW, b'[{"router_id":"r","metric":"m",', b"}]"),
    "a long time": lambda n: _repeat(n, b"9", b'[{"router_id":"r","metric":"m","ts_ms":', b"}]"),
    "depth": lambda n: b"[" * n,
    "blanks": lambda n: _repeat(n, b" "),
    "blank lines in an envelope": lambda n: _repeat(n, b"\n", b'{"samples":[', b"]}"),
    "bad samples": lambda n: _repeat(min(n, 100_000), _sample(value="x") + b","),
    "bad samples of much text": lambda n: _repeat(min(n, 1_000_000), _sample(value="x", y="z" * 800) + b","),
    "bad tags": lambda n: _repeat(min(n, 400_000), _sample(tags={str(i): 1 for i in range(32)}) + b","),
}


@functools.cache
def bombs() -> dict[str, bytes]:
    """Plain bodies by what they are made of, each the largest whose gzip is within SENT_MAX bytes."""
    return {name: bodies[0] for name, bodies in ladders().items()}


@functools.cache
def ladders() -> dict[str, list[bytes]]:
    """The same in falling sizes: a smaller one may pass bounds that end a larger one early, and then cost more."""
    return {name: _ladder(make) for name, make in KINDS.items()}


def _ladder(make: Callable[[int], bytes]) -> list[bytes]:
    """From below: where one size does not fit, no larger does, and making and packing those takes seconds."""
    rungs = (make(size) for size in reversed(_SIZES))
    return list(itertools.takewhile(lambda body: len(packed(body)) <= SENT_MAX, rungs))[::-1]


def packed(body: bytes) -> bytes:
    """The body as it is sent."""
    return gzip.compress(body, mtime=0)


def unpacked(body: bytes, encoding: str | None, bytes_max: int) -> bytes:
    """The whole body without its gzip coat, at once."""
    inflation = Inflation(body, encoding, bytes_max)
    while not inflation.done:
        inflation.step()
    return bytes(inflation.plain)


_UNITS = {
    "slow numbers": b"1e-320,",
    "slow long numbers": SLOW + b",",
    "lists": b"[],",
    "strings": b'"",',
    "objects": b"{},",
    "lists in lists": b"[[[[]]]],",
    "lists in objects": b'{"a":[]},',
    "zeros": b"0,",
}
_PLACES = {
    "": (b'{"x":[', b"]}"),
    " in ids": (b'{"breaker_ids":[', b"]}"),
    " in actions": (b'{"actions":{"a":[', b"]}}"),
}
KEYED = {name + place: (unit, *ends) for name, unit in _UNITS.items() for place, ends in _PLACES.items()}


@functools.cache
def keyed() -> dict[str, list[bytes]]:
    """Bodies for what asks for a key, in falling sizes; nothing packs them."""
    return {name: [_repeat(size, *parts) for size in _SIZES if size <= 1_000_000] for name, parts in KEYED.items()}


_LARGE = b'{"x":[' + b",".join([b"1e-320"] * 36_000) + b"]}"
_SMALL = b'{"metric":"m","kind":"avg","op":"gt","threshold":%b,"actions":{"a":%b}}' % (SLOW, SLOW)
SETS = {
    "slow numbers in large breakers": (8_000_000, _LARGE + b","),
    "slow numbers in small breakers": (1_000_000, _SMALL + b","),
    "zeros": (8_000_000, b"0,"),
    "objects": (8_000_000, b"{},"),
}


@functools.cache
def sets() -> dict[str, bytes]:
    """Bodies of a PUT of breakers of 8 MB, or of 1 MB where all of its breakers are good."""
    return {name: _repeat(size, unit, b'{"breakers":[', b"]}") for name, (size, unit) in SETS.items()}
