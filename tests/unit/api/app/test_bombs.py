"""Bodies made to cost much: what they cost is bound by what was sent, and a bystander is served beside them."""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc

import msgspec
import pytest

from api.admission import weight as weighing
from api.admission.inflate import INFLATED_FREE, INFLATED_RATIO, STEP_BYTES, STRUCTURE_MAX, Inflation
from api.admission.intake import Turn, Turns
from api.wire import decoding, samples
from api.wire.requests import decode_object
from api.wire.requests_bulk import bulk_items
from breaker_actors.errors import BadRequest, BreakersError, PayloadTooLarge
from breaker_actors.settings import Settings
from tests.support.bombs import KEYED, KINDS, SENT_MAX, SETS, bombs, keyed, ladders, packed, sets, unpacked
from tests.support.web_world import RULE, World

GOOD = {"router_id": "r", "metric": "m", "ts_ms": 1, "value": 1.5}
BYTES_MAX = Settings().max_inflated_bytes
NAMES = sorted(KINDS)


@pytest.mark.parametrize("head", [b"[", b'{"samples":['])
@pytest.mark.parametrize("odd", [b"", b',{"value":NaN}', b',{"metric":"\\ud800"}', b",0"])
def test_decoding_ends_at_the_sample_too_many(head: bytes, odd: bytes) -> None:
    """What follows is not even looked at: it is no JSON. With what only the slow way reads there are too many too."""
    first = b",".join([json.dumps(GOOD).encode()] * 1000)
    with pytest.raises(PayloadTooLarge):
        samples.Request(head + first + b"," + json.dumps(GOOD).encode() + b"@@@")
    if odd:
        with pytest.raises(PayloadTooLarge):
            samples.Request(head + first + odd + (b"]" if head == b"[" else b"]}"))


@pytest.mark.parametrize("name", NAMES)
def test_a_bomb_inflates_and_builds_no_more_than_was_asked(name: str) -> None:
    """16 KiB inflate to 1 MiB (and the step that goes beyond), with at most STRUCTURE_MAX values in it; what is built
    of them takes a small multiple of that."""
    bodies = ladders()[name]
    assert bodies
    for body in bodies:
        sent = packed(body)
        inflation = Inflation(sent, "gzip", BYTES_MAX)
        tracemalloc.start()
        try:
            while not inflation.done:
                inflation.step()
            samples.Request(bytes(inflation.plain)).validate(samples.ValidationContext.at(1, 9, 9, {"r": False}, None))
        except BreakersError:
            pass
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert len(sent) <= SENT_MAX
        assert len(inflation.plain) <= max(INFLATED_FREE, INFLATED_RATIO * len(sent)) + STEP_BYTES
        assert peak < 24 << 20


def test_values_are_counted_before_they_are_read() -> None:
    for unit in (b"0,", b'"",'):
        with pytest.raises(PayloadTooLarge, match="too many values"):
            unpacked(b"[" + unit * (STRUCTURE_MAX + 1), None, BYTES_MAX)
    full = {**GOOD, "ok": True, "trace_id": "t" * 36, "tags": {f"tag-{n}": "value" for n in range(32)}}
    body = json.dumps({"samples": [full] * 1000}).encode()
    assert len(samples.Request(unpacked(body, None, BYTES_MAX))) == 1000


def test_too_much_that_is_no_json_is_a_bad_request() -> None:
    body = b'[{"x":[' + b",".join([b"NaN"] * (decoding.DISGUISES_MAX + 1)) + b"]}]"
    with pytest.raises(BadRequest):
        samples.Request(body)
    assert len(samples.Request(json.dumps([GOOD | {"value": float("nan")}] * 1000).encode())) == 1000


async def between() -> None:
    """Others are served."""
    await asyncio.sleep(0)


async def test_sets_that_are_read_at_once_take_turns() -> None:
    """Eight together hold up the loop for one slice in each of its rounds."""
    body = json.dumps({"breakers": [{**RULE, "name": f"b{n}"} for n in range(500)]}).encode()
    turns, slices, most = Turns(), 0, 0

    async def read(name: str) -> None:
        async with Turn(turns, (("key", name),)) as turn:

            async def counted() -> None:
                nonlocal slices
                await turn.go_on()
                slices += 1

            assert len(await bulk_items(body, 500, counted)) == 500

    reading = asyncio.gather(*map(read, "abcdefgh"))
    await asyncio.sleep(0)  # the first slice of each takes no turn
    while not reading.done():
        before = slices
        await asyncio.sleep(0)
        most = max(most, slices - before)
    await reading
    assert slices >= 8 * 5
    assert most == 1


async def test_a_set_that_is_read_alone_lets_others_in_after_its_first_slice() -> None:
    """That one takes no turn, and the first turn is free."""
    body, others = json.dumps({"breakers": [{**RULE, "name": f"b{n}"} for n in range(100)]}).encode(), 0
    async with Turn(Turns(), (("key", "a"),)) as turn:

        async def counted() -> None:
            served = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(served.set_result, None)
            await turn.go_on()
            nonlocal others
            others += served.done()

        assert len(await bulk_items(body, 100, counted)) == 100
    assert others == 2


async def test_the_set_of_breakers_is_read_in_slices() -> None:
    """Ten thousand are, with others served between the slices; more values than they can have are refused unread."""
    body = json.dumps({"breakers": [{**RULE, "name": f"b{n}"} for n in range(10_000)]}).encode()
    reading = asyncio.create_task(bulk_items(body, 10_000, between))
    turns = 0
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    assert len(await reading) == 10_000
    assert turns >= 200
    with pytest.raises(PayloadTooLarge):
        await bulk_items(b'{"breakers":[' + b"[]," * 500_001 + b"0]}", 1_000, between)


@pytest.mark.parametrize("again", [b'"value":2,', b'"v\\u0061lue":2,', b'"va\\u006cue":2,'])
def test_of_values_again_and_again_the_last_is_read(again: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """By then the others were passed over: a decoder of typed samples would read each of them."""
    typed: list[object] = []
    monkeypatch.setattr(decoding, "_sample", typed)
    monkeypatch.setattr(decoding, "_samples", typed)
    one = b'{"router_id":"r","metric":"m","ts_ms":1,' + again * 1001 + b'"value":1.5}'
    found = samples.Request(b"[" + one + b"]").validate(samples.ValidationContext.at(1, 9, 9, {"r": False}, None))
    assert found.good.value == [1.5]


# bodies that ask for a key


@pytest.mark.parametrize("name", sorted(KEYED))
def test_what_costs_too_much_is_refused_unread(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the largest nothing is built; of the others no more than SLOW_MAX slow numbers, VALUES_MAX values and
    CONTAINERS_MAX lists and objects."""
    largest, *smaller = keyed()[name]
    with monkeypatch.context() as patch:
        patch.setattr(msgspec.json, "decode", None)
        with pytest.raises(PayloadTooLarge, match="too many values"):
            decode_object(largest)
    for body in smaller:
        try:
            decode_object(body)
        except PayloadTooLarge:
            continue
        assert body.count(b"e") <= weighing.SLOW_MAX + 20
        assert body.count(b",") <= weighing.VALUES_MAX
        assert body.count(b"[") + body.count(b"{") <= weighing.CONTAINERS_MAX


@pytest.mark.parametrize("unit", [b"[],", b"{},", b"[[]],", b'{"":[]},', b'[""],'])
@pytest.mark.parametrize("tail", [b"0]}", b"0]", b'"', b'"\\'])
def test_empty_lists_and_objects_are_counted_also_where_the_text_is_broken(
    unit: bytes, tail: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text that is no JSON in the end costs as much as one that is: it is built up to there."""
    monkeypatch.setattr(msgspec.json, "decode", None)
    with pytest.raises(PayloadTooLarge, match="too many values"):
        decode_object(b'{"x":[' + unit * (weighing.CONTAINERS_MAX + 1) + tail)


@pytest.mark.parametrize("text", ["[{" * 30_000, '\\"[' * 15_000, "\\[" * 20_000, "{{name}} " * 7_000])
def test_brackets_within_texts_are_text(text: str) -> None:
    """A template of 64 KiB in `actions` may consist of them."""
    body = json.dumps({"actions": {"a": text, "b": [[]] * 900}}).encode()
    assert decode_object(body)["actions"]["a"] == text


@pytest.mark.parametrize("unit", [b'\\"', b'"', b'"\\', b"\\", b'"\\"'])
def test_telling_texts_apart_looks_at_each_byte_once(unit: bytes) -> None:
    """Strings that never end are where a pattern could begin again and again: a second for what takes two ms."""
    text = b"[" * (weighing.CONTAINERS_MAX + 1) + b'"' + unit * (weighing.VALUES_MAX // 2 - 10)
    begun = time.thread_time()
    with pytest.raises((PayloadTooLarge, BadRequest)):
        decode_object(text)
    assert time.thread_time() - begun < 0.5


def test_ids_and_texts_are_no_numbers() -> None:
    """As many ids as a request may have, each spelled like slow numbers; and slow numbers as many as there may be."""
    ids = ["1e100000-1e10-4e55-8e10-1e5555555555"] * 10_000
    assert decode_object(json.dumps({"breaker_ids": ids, "router_ids": ids}).encode())["router_ids"] == ids
    for last, passes in ((b"1.5e-20", True), (b"1E-0320", False), (b"1e+300", False)):
        body = b'{"x":[' + b"1e-320 ," * weighing.SLOW_MAX + last + b"]}"
        if passes:
            assert len(decode_object(body)["x"]) == weighing.SLOW_MAX + 1
        else:
            with pytest.raises(PayloadTooLarge):
                decode_object(body)


@pytest.mark.parametrize("name", sorted(SETS))
async def test_a_set_of_breakers_is_bounded_as_a_whole(name: str) -> None:
    """Others are served between breakers that cost; those beyond what a project may have are not even split off."""
    tracemalloc.start()
    try:
        reading = asyncio.create_task(bulk_items(sets()[name], 10_000, between))
        turns = 0
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
        assert isinstance(reading.exception(), BreakersError)
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()
    assert turns >= (5_000 if name == "slow numbers in small breakers" else 1)


async def test_large_breakers_end_a_slice_each() -> None:
    """Twenty of 60 KiB are read in twenty slices, though fifty small ones are read in one."""
    items = [{**RULE, "name": f"b{n}", "actions": {"a": "x" * 60_000}} for n in range(20)]
    reading = asyncio.create_task(bulk_items(json.dumps({"breakers": items}).encode(), 10_000, between))
    turns = 0
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    assert len(await reading) == 20
    assert turns >= 20


async def test_a_bystander_is_served_beside_slow_numbers(world: World) -> None:
    """One with a project key asks for states, one with a user key replaces breakers; both are refused."""
    router = await world.router()
    body = json.dumps([{**GOOD, "router_id": router.id, "ts_ms": world.clock.now_ms()}]).encode()

    async def attack() -> set[int]:
        found = set()
        for one in (bodies[0] for bodies in keyed().values()):
            found.add((await world.call("POST", "breakers/state:batch", "project", data=one)).status_code)
        for one in sets().values():
            found.add((await world.call("PUT", "breakers", data=one)).status_code)
        return found

    attacks, served = asyncio.create_task(attack()), 0
    while not attacks.done():
        async with asyncio.timeout(5):
            assert (await world.call("POST", "ingest", None, data=body)).status_code == 202
            served += 1
    assert await attacks <= {413, 422}
    assert served >= len(keyed()) // 2


async def test_a_bystander_is_served_beside_bombs(world: World) -> None:
    """Four attackers send every bomb; all are refused, another project's requests are answered all along."""
    router = await world.router()
    body = json.dumps([{**GOOD, "router_id": router.id, "ts_ms": world.clock.now_ms()}]).encode()
    served, bodies = 0, [packed(one) for one in bombs().values()]

    async def attack(at: int) -> list[int]:
        headers = {"Content-Encoding": "gzip"}
        sent = bodies[at:] + bodies[:at]
        path = f"/v1/projects/{world.other.id}/ingest"
        return [(await world.call("POST", path, None, data=one, headers=headers)).status_code for one in sent]

    attacks = asyncio.gather(*(attack(at) for at in range(4)))
    while not attacks.done():
        async with asyncio.timeout(5):
            assert (await world.call("POST", "ingest", None, data=body)).status_code == 202
            served += 1
    assert {status for statuses in await attacks for status in statuses} <= {400, 413, 422, 429}
    assert served >= len(bodies) // 2
