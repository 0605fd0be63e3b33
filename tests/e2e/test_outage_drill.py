"""Receivers that refuse for ten minutes, ask for pauses, fail now and then; a Notifier that is killed: who has to be
told is told, of everything, in order. Real HTTP; minutes are virtual where the Notifier runs in this process.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from breaker_actors.clock import SystemClock
from breaker_actors.notify.limits import FAILURES_MAX
from breaker_actors.notify.model import Attempt, Destination, Message, Sender
from breaker_actors.notify.notifier import NotifierHost
from breaker_actors.notify.sender import open_sender
from breaker_actors.persistence import make_store
from breaker_actors.settings import Settings
from tests.contract.outbox_world import OutboxWorld
from tests.contract.store_world import World
from tests.support.fake_gateway import FakeClock
from tests.support.live import LiveService
from tests.support.notifying import ScriptedSender, VirtualNotifier
from tests.support.receivers import Reply, Request, WebReceiver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SECOND, MINUTE = 1_000, 60_000
OUTAGE_MS = 10 * MINUTE
ATTEMPTS_MAX = OUTAGE_MS // (3 * SECOND) // 10
"""A tenth of what one attempt every three seconds makes of the outage."""
BREAKERS, PAIRS_EACH, EVERY_MS = 40, 25, 720
LIMITED, FLAKY, FINE = "limited", "flaky", "fine"

HANGING, REFUSING, FLAPPING = 20, 6, 20
PAIRS, BLOCK_S, PAUSE_S, AWAY_S = 4, 4.5, 0.06, 0.02
CHANCES = 3
"""A machine that is busy with other things slows down what waits for nobody, too."""
TIMEOUT_MS = 1_000
"""Long enough to fill a quarter of a block: until the circuits open, and again when they probe."""
SLOWER_MAX = 1.2


class Receiver(WebReceiver):
    """A hook that takes everything, asks for pauses, or fails one request in twenty. `took`: what it answered 200;
    `taking`: set whenever it does."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(port=port)
        self.mode = FINE
        self.took: list[Request] = []
        self.taking = asyncio.Event()
        self.at: dict[tuple[str, int], float] = {}
        self._chance = random.Random(7)

    def answer(self, request: Request) -> Reply:
        if self.mode == LIMITED:
            return Reply(429, headers=(("Retry-After", "5"),))
        if self.mode == FLAKY and self._chance.random() < 0.05:
            return Reply(500)
        self.took.append(request)
        self.taking.set()
        self.at.setdefault((request.json["breaker_id"], request.json["transition_seq"]), time.perf_counter())
        return super().answer(request)

    async def arrival(self, breaker_id: str, seq: int) -> float:
        """When that was taken for the first time."""
        while (breaker_id, seq) not in self.at:
            self.taking.clear()
            await self.taking.wait()
        return self.at[breaker_id, seq]

    def told(self) -> dict[str, list[tuple[str, int]]]:
        """Per breaker what was taken, repetitions left out."""
        found: dict[str, list[tuple[str, int]]] = {}
        seen = set()
        for request in self.took:
            if (key := request.headers["idempotency-key"]) not in seen:
                seen.add(key)
                body = request.json
                found.setdefault(body["breaker_id"], []).append((body["event"], body["transition_seq"]))
        return found

    def times(self, key: str) -> int:
        """How often a delivery was taken."""
        return sum(request.headers["idempotency-key"] == key for request in self.took)

    @property
    def repeated(self) -> int:
        return len(self.took) - len({request.headers["idempotency-key"] for request in self.took})


class Counting(ScriptedSender):
    """The real sender, counted in virtual time."""

    def __init__(self, clock: FakeClock, sender: Sender) -> None:
        super().__init__(clock)
        self._sender = sender

    async def send(self, to: Destination, message: Message) -> Attempt:
        attempt = await self._sender.send(to, message)
        self.asked.append((self._clock.now_ms(), to, message, attempt))
        return attempt

    async def close(self) -> None:
        await self._sender.close()


@asynccontextmanager
async def opened(directory: Path, **fields: Any) -> AsyncIterator[tuple[OutboxWorld, Settings]]:
    """A project on a store of its own."""
    settings = Settings(data_dir=directory, allow_private_destinations=True, **fields)
    store = make_store(settings)
    await store.open()
    try:
        yield OutboxWorld(await World.make(store)), settings
    finally:
        await store.close()


async def killed_at_work(notifier: VirtualNotifier, receiver: Receiver) -> str:
    """Goes on until a receiver takes something, and kills the Notifier before it can note that; the id of that."""
    assert notifier.host is not None
    before = len(receiver.took)
    receiver.taking.clear()
    running = asyncio.create_task(notifier.run_for(5 * MINUTE))
    taking = asyncio.create_task(receiver.taking.wait())
    await asyncio.wait((running, taking), return_when=asyncio.FIRST_COMPLETED)
    assert not running.done(), "nothing was taken"
    await notifier.kill()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await notifier.start()
    return receiver.took[before].headers["idempotency-key"]


def pairs(row_id: str) -> list[tuple[str, int]]:
    """All that has to be told of a breaker."""
    return [one for i in range(PAIRS_EACH) for one in (("trip", 3 * i + 1), ("recover", 3 * i + 3))]


async def test_a_thousand_outages_through_ten_minutes_without_a_receiver(tmp_path: Path) -> None:
    clock = FakeClock()
    async with opened(tmp_path) as (told, settings), AsyncExitStack() as stack:
        fine = [await stack.enter_async_context(Receiver()) for _ in range(2)]
        async with Receiver() as probe:
            port = probe.port  # nobody listens there from here on
        broken = Receiver(port)
        away = await told.channel(url=broken.url())
        for one in fine:
            await told.channel(url=one.url())
        rows = [await told.breaker(f"b{i}") for i in range(BREAKERS)]
        sender = Counting(clock, open_sender(settings, clock))
        stack.push_async_callback(sender.close)
        notifier = VirtualNotifier(told.store, clock, sender, settings)
        notifier.stopped_s = 300.0
        start = clock.ms
        for i in range(BREAKERS * PAIRS_EACH):
            row, at = rows[i % BREAKERS], start + i * EVERY_MS
            notifier.at(at, lambda row=row, at=at: told.moves(row.id, "open", ts_ms=at))
            later = at + 3 * SECOND
            notifier.at(later, lambda row=row, at=later: told.moves(row.id, "half_open", "closed", ts_ms=at))

        await notifier.run_until(start + 200 * SECOND)
        first = await killed_at_work(notifier, fine[0])
        await notifier.run_until(start + OUTAGE_MS)
        attempts = sender.attempts(away.id)
        await stack.enter_async_context(broken)
        broken.mode = LIMITED
        await notifier.run_for(30 * SECOND)
        limited = sender.attempts(away.id) - attempts
        broken.mode = FLAKY
        back = clock.ms
        await notifier.run_for(61 * SECOND)
        second = await killed_at_work(notifier, broken)
        await notifier.run_until(start + BREAKERS * PAIRS_EACH * EVERY_MS + MINUTE)
        caught_up = (await told.store.waiting_channels()) == []
        await notifier.run_for(4 * MINUTE)
        await notifier.kill()

        print(f"\nattempts in the outage {attempts}, in 30 s of 429 {limited}; {len(sender.asked)} in all")
        print(f"after the receiver was back at {(back - start) / 1000:.0f} s; nothing left at the end: {caught_up}")
        print(f"repeated {[one.repeated for one in (broken, *fine)]}")
        assert attempts <= ATTEMPTS_MAX
        assert limited <= 10
        assert (fine[0].times(first), broken.times(second)) == (2, 2), "a kill came too late"
        for receiver in (broken, *fine):
            assert receiver.told() == {row.id: pairs(row.id) for row in rows}
            assert receiver.repeated <= 2 * notifier.pace.channel_max
        assert {row.state for row in await told.rows(away.id)} == {"sent"}
        assert await told.store.waiting_channels() == []


class Distant(Receiver):
    """Takes a request AWAY_S after it was sent, as one that is not on the same machine does."""

    async def _converse(self, wire: Any) -> None:
        while (request := await wire.request()) is not None:
            await asyncio.sleep(AWAY_S)
            if not await wire.reply(self.answer(request), request):
                return


async def block(directory: Path, fine: Receiver, dead: list[str]) -> tuple[list[float], list[int]]:
    """Seconds from the commit of a move to when a healthy receiver has it. Whatever it is told, dead ones are, too; how
    often each of these was tried."""
    async with opened(directory, notify_timeout_ms=TIMEOUT_MS) as (told, settings):
        await told.channel(url=fine.url())
        silent = [await told.channel(url=url) for url in dead]
        rows = [await told.breaker(f"b{i}") for i in range(FLAPPING)]
        sender = open_sender(settings, SystemClock())
        notifier = NotifierHost(told.store, sender, SystemClock(), settings)
        await notifier.start()
        begun: dict[tuple[str, int], float] = {}
        ends = time.perf_counter() + BLOCK_S
        while time.perf_counter() < ends:
            row = rows[len(begun) % FLAPPING]
            await told.moves(row.id, *(["half_open", "closed"] if told.states[row.id] == "open" else ["open"]))
            begun[row.id, told.seqs[row.id]] = time.perf_counter()
            await notifier.nudge()
            await asyncio.sleep(PAUSE_S)
        found = [await fine.arrival(*move) - at for move, at in begun.items()]
        await notifier.stop()
        await sender.close()
        return found, [sum(row.attempts for row in await told.rows(channel.id)) for channel in silent]


async def beside(directory: Path, fine: Receiver, dead: list[str]) -> tuple[float, float, float]:
    """How much slower a healthy channel is beside dead ones, its 95th percentile there in seconds, and how often each
    dead one was tried: blocks with and without them in turns, the medians over all pairs."""
    ratios: list[float] = []
    late: list[float] = []
    tries: list[int] = []
    for turn in range(PAIRS):
        found: dict[bool, list[float]] = {}
        for outage in (turn % 2 == 0, turn % 2 == 1):
            found[outage], tried = await block(directory / f"{turn}-{outage}", fine, dead if outage else [])
            tries += tried
        usual = statistics.median(found[False])
        ratios.append(statistics.median(found[True]) / usual)
        late.append(statistics.quantiles(found[True], n=20)[-1])
        print(f"\nusually {usual * 1e3:.2f} ms, in the outage {ratios[-1]:.3f} x, 95 % in {late[-1] * 1e3:.0f} ms")
    assert max(tries) < 10, f"not all circuits opened: {tries}"
    return statistics.median(ratios), statistics.median(late), statistics.median(tries)


async def test_healthy_channels_do_not_wait_for_dead_ones(tmp_path: Path) -> None:
    """Some refuse, more never answer: through their time limits and probes."""
    async with Distant() as fine, Receiver() as silent, Receiver() as gone:
        silent.usual = Reply(how="hang")
        refusing = gone.url()
        await gone.__aexit__(None, None, None)
        dead = [silent.url()] * HANGING + [refusing] * REFUSING
        for chance in range(CHANCES):
            ratio, late, tries = await beside(tmp_path / str(chance), fine, dead)
            print(f"{ratio:.3f} x, 95 % in {late * 1e3:.0f} ms, {tries:.0f} tries")
            good = ratio <= SLOWER_MAX and late * 1e3 < TIMEOUT_MS / 2 and tries >= FAILURES_MAX
            if good:
                break
        assert good
        await gone.__aenter__()


# on a real service


async def until(check: Any, timeout_s: float = 60.0) -> Any:
    """The first true answer; `check` blocks, so it runs on a thread."""
    deadline = time.monotonic() + timeout_s
    while not (answer := await asyncio.to_thread(check)):
        assert time.monotonic() < deadline, "not true in time"
        await asyncio.sleep(0.1)
    return answer


def outage(live: LiveService, made: dict[str, Any]) -> None:
    """The breaker opens and closes again."""
    breaker_id = made["breaker"]["id"]
    live.trip(made, "half_open")
    deadline = time.monotonic() + 60
    while live.state(breaker_id)["state"] != "closed":
        assert time.monotonic() < deadline
        live.send(made["router_id"], [1.0])


def deliveries(live: LiveService, channel_id: str, state: str = "") -> list[dict[str, Any]]:
    path = f"{live.project_path}/notification-channels/{channel_id}/deliveries"
    answer = live.user.get(path, params={"limit": 200, "state": state})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["deliveries"]
    return found


def channel(live: LiveService, url: str) -> str:
    body = {"channel": "webhook", "config": {"url": url}}
    answer = live.user.post(f"{live.project_path}/notification-channels", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["channel"]["id"])


@pytest.mark.e2e
async def test_a_notifier_killed_on_a_real_service(tmp_path: Path) -> None:
    """kill -9 of the Notifier loses nothing of what flapping breakers have to tell; a dead letter is redriven."""
    options = {"BREAKERS_ALLOW_PRIVATE_DESTINATIONS": "true", "BREAKERS_NOTIFY_TIMEOUT_MS": "2000"}
    live = await asyncio.to_thread(lambda: LiveService(tmp_path / "data", **options))
    try:
        async with Receiver() as hook, Receiver() as strict:
            hook.mode = FLAKY
            told, refused = channel(live, hook.url()), channel(live, strict.url())
            strict.usual = Reply(404)
            rule = {"cooldown_ms": 100, "recovery_allow_rate_ramp_steps": 1, "window_ms": 300}
            rows = [await asyncio.to_thread(lambda: live.breaker(**rule)) for _ in range(3)]
            for turn in range(4):
                if turn in (1, 2):
                    await until(lambda: live.kill("NotifierActor"))
                for made in rows:
                    await asyncio.to_thread(outage, live, made)
            wanted = {
                made["breaker"]["id"]: [
                    ("trip" if e["curr"] == "open" else "recover", e["transition_seq"])
                    for e in await asyncio.to_thread(live.events, made["breaker"]["id"])
                    if e["curr"] != "half_open"
                ]
                for made in rows
            }
            await until(lambda: {d["state"] for d in deliveries(live, told)} == {"sent"})
            assert hook.told() == wanted
            assert hook.repeated <= 2 * 4
            assert all(len(events) >= 8 for events in wanted.values())

            await until(lambda: {d["state"] for d in deliveries(live, refused)} == {"dead"})
            strict.usual = Reply(200)
            strict.took.clear()
            trip = deliveries(live, refused, "dead")[-1]
            path = f"{live.project_path}/notification-channels/{refused}/deliveries/{trip['id']}/redrive"
            answer = await asyncio.to_thread(live.user.post, path)
            assert answer.status_code == 202, answer.text
            pair = {d["id"] for d in answer.json()["deliveries"]}
            await until(lambda: {d["state"] for d in deliveries(live, refused) if d["id"] in pair} == {"sent"})
            assert [r.json["event"] for r in strict.took] == ["trip", "recover"]
    finally:
        await asyncio.to_thread(live.stop)
