"""What one replica takes in at a time: requests, bytes of bodies and heavy work, each with a bound for all callers
together and smaller ones for each (api/admission/shares.py), so that no caller can take everything.

A body is received when its handler asks for it, after key and project were looked at, and every byte is counted as it
arrives. One that arrives too slowly makes place when others need it (api/admission/room.py). Heavy work (inflating and
reading a large body) is done for one request at a time, callers in turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from werkzeug.exceptions import RequestTimeout

from api.admission.outgoing import Outlet
from api.admission.pace import GRACE_S, credited
from api.admission.room import PATIENCE_S, Need, Room, end_at_once
from api.admission.shares import Holder, Holders, Shares, owner
from breaker_actors.clock import Clock
from breaker_actors.errors import PayloadTooLarge

REQUESTS_MAX = 4_000
WAITING_MAX = 1_024
SMALL_S = 0.002
"""Small bodies are read one after the other in one round of the loop until they have taken so long together."""
PACE_BYTES = 1 << 16
"""So much of a body has to arrive within BREAKERS_BODY_TIMEOUT_MS each time, or the rest of it."""


class Turns:
    """One at a time, organisations in turn, within one its callers, and each caller's own in order: one piece of work
    in one round of the loop, so that what takes no turn waits for one piece at most each time it comes to the loop. A
    `Turn` asks for them.

    `monotonic`, `round_s`: pieces of which nobody waits may share a round until they have taken so long together."""

    def __init__(
        self,
        waiting_max: int = WAITING_MAX,
        what: str = "bodies waiting to be read",
        monotonic: Callable[[], float] = lambda: 0.0,
        round_s: float = 0.0,
    ) -> None:
        self._waiting: dict[Holder, dict[Holder, deque[asyncio.Future[None]]]] = {}
        self._places = Shares(what, waiting_max)
        self._busy = self._sharing = False
        self._monotonic, self._round_s = monotonic, round_s
        self._begun_s = self._spent_s = 0.0

    @property
    def refused(self) -> int:
        return self._places.refused

    @asynccontextmanager
    async def turn(self, holders: Holders) -> AsyncIterator[None]:
        """Waits for the turn of the first of these. Raises Overloaded when too many are waiting."""
        async with Turn(self, holders) as turn:
            await turn.next()
            yield

    def enter(self, holders: Holders, sure: bool) -> None:
        """Counts one who wants turns until `leave`. Raises Overloaded at a bound, unless it is `sure`."""
        if sure:
            self._places.add(holders, 1)
        else:
            self._places.take(holders)

    def leave(self, holders: Holders) -> None:
        self._places.give_back(holders)

    async def take(self, holders: Holders, has_one: bool) -> None:
        """Returns when it is the turn of the first of these. `has_one`: it ends with the call, but nobody may
        have waited for it."""
        if not has_one and not self._busy:
            self._busy, self._begun_s = True, self._monotonic()
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner(holders), {}).setdefault(holders[0], deque()).append(place)
        if has_one:
            self.pass_on()
        try:
            # what is there already is no reason to wait, but others are served between two pieces of work
            await (asyncio.sleep(0) if place.done() else place)
            self._begun_s = self._monotonic()
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.pass_on()  # the turn had come already
            raise

    def pass_on(self) -> None:
        """The next turn is that of the organisation, and in it of the caller, who has waited longest for one."""
        while self._waiting:
            org, callers = next(iter(self._waiting.items()))
            caller, places = next(iter(callers.items()))
            place = places.popleft()
            del self._waiting[org], callers[caller]
            if places:
                callers[caller] = places  # behind the others
            if callers:
                self._waiting[org] = callers
            if not place.done():
                place.set_result(None)
                return
        self._spent_s += self._monotonic() - self._begun_s
        loop = asyncio.get_running_loop()
        if self._spent_s >= self._round_s:
            loop.call_soon(self._rest)
            return
        self._busy = False
        if not self._sharing:
            self._sharing = True
            loop.call_soon(self._next_round)

    def _rest(self) -> None:
        """The turn was held in the last round of the loop; who came in it has waited until now."""
        self._spent_s = 0.0
        if self._waiting:
            self.pass_on()
        else:
            self._busy = False

    def _next_round(self) -> None:
        self._sharing, self._spent_s = False, 0.0


class Turn:
    """The turns of one request, which may need many: one for each slice of its work. `sure`: it is not refused, since
    what it asked for is done. Who holds one never waits in the line of his own organisation: not for the store, but for
    what it reads in such a turn (`Database.read_in_turn`)."""

    def __init__(self, turns: Turns, holders: Holders, sure: bool = False) -> None:
        self._turns = turns
        self._holders = holders
        self._sure = sure
        self._has_place = self.is_held = False

    async def __aenter__(self) -> Turn:
        return self

    async def next(self) -> None:
        """Begins a slice, after one of each caller who waits, and in a round of the loop of its own. Raises Overloaded
        before the first one when too many are waiting."""
        if not self._has_place:
            self._turns.enter(self._holders, self._sure)
            self._has_place = True
        was_held, self.is_held = self.is_held, False
        await self._turns.take(self._holders, was_held)
        self.is_held = True

    async def go_on(self) -> None:
        """Begins the next slice, also after a first one that took no turn: others are served before it."""
        if not self.is_held:
            await asyncio.sleep(0)
        await self.next()

    async def __aexit__(self, *_: object) -> None:
        if self.is_held:
            self.is_held = False
            self._turns.pass_on()
        if self._has_place:
            self._turns.leave(self._holders)


class Intake:
    """The bounds of one replica. `bytes_max`: of all bodies in flight; a holder may always have one body of
    `body_bytes_max`."""

    def __init__(self, clock: Clock, bytes_max: int, body_bytes_max: int, timeout_ms: int) -> None:
        self.requests = Shares("requests", REQUESTS_MAX)
        self.bytes = Shares("bytes of bodies", max(bytes_max, body_bytes_max), body_bytes_max)
        self.turns = Turns()
        self.decodes = Turns(what="bodies waiting to be decoded")
        self.small = Turns(REQUESTS_MAX, "small bodies waiting to be read", clock.monotonic, SMALL_S)
        self.comparisons = Turns(what="comparisons of rules that wait")
        self.outlet = Outlet(clock.monotonic, bytes_max)
        self.room = Room(clock.monotonic)
        self.patience_s = PATIENCE_S
        self.given_up = 0
        self.timeout_s = timeout_ms / 1000
        self.monotonic = clock.monotonic

    def refusals(self) -> dict[str, int]:
        """How often what was refused, as its metric names it."""
        counted = (
            self.requests.refused,
            self.bytes.refused,
            sum(turns.refused for turns in (self.turns, self.small, self.decodes, self.comparisons)),
            self.given_up,
            self.room.evicted,
        )
        arrived = dict(zip(("requests", "bytes", "turns", "slow", "evicted"), counted, strict=True))
        return arrived | {"answers": self.outlet.bytes.refused, "unread": self.outlet.room.evicted + self.outlet.still}


class Arrival:
    """The body of one request on its way in, and whether the client is still there. A stream has one for as long as it
    lives, hence no attributes but these, and no Event (a deque of 700 bytes) where nobody waits."""

    __slots__ = (
        *("_body", "_evicted", "_gone", "_holders", "_intake", "_is_settled", "_patience_s", "_receive", "_received"),
        *("_settled", "_timeout", "held_bytes", "lags_from_s", "work"),
    )

    def __init__(self, intake: Intake, receive: Callable[[], Awaitable[Any]], is_expected: bool) -> None:
        self._intake = intake
        self._receive = receive
        self._holders: Holders | None = None
        self.held_bytes = self._received = 0
        self._body: bytes | None = None
        self.work = 0
        """Bytes received, and those made of them, so far."""
        self.lags_from_s = 0.0
        self._patience_s = intake.patience_s
        self._timeout: asyncio.Timeout | None = None
        self._evicted = False
        self._gone = False
        self._is_settled = not is_expected  # nobody reads, or will read, the body
        self._settled: asyncio.Future[None] | None = None

    async def enter(self, holders: Holders) -> None:
        """Counts the request for these until `close`, waiting for room if need be. Raises Overloaded."""
        self._patience_s -= await self._intake.room.take(self._place(holders), self._patience_s)
        self._holders = holders

    def move(self, holders: Holders) -> None:
        """Counts the request and its bytes for these from now on, if it was counted. Raises Overloaded, and then counts
        it for nobody: it ends at once."""
        if self._holders is None:
            return
        n = self.held_bytes
        self._free()
        self._intake.room.claim(self._place(holders))
        self._holders = holders
        self._intake.room.claim(self._bytes(n))
        self.held_bytes = n

    def _place(self, holders: Holders) -> Need:
        return Need(self._intake.requests, holders, 1, of_bytes=False)

    def _bytes(self, n: int) -> Need:
        return Need(self._intake.bytes, self._holders or (), n, of_bytes=True)

    def give_up(self) -> None:
        """Gives back at once what the request holds; `read` ends with RequestTimeout."""
        self._evicted = True
        self._intake.room.arriving.remove(self, self._holders or ())
        self._free()
        end_at_once(self._timeout)

    async def read(self, declared: int | None, bytes_max: int) -> bytes:
        """The whole body, also when asked for again. Its bytes count for the request's holders until `close`. Raises
        PayloadTooLarge beyond `bytes_max`, Overloaded beyond a share, RequestTimeout (408) when too little of it
        arrives in time, or when it lags and others need its place."""
        if self._body is not None:
            return self._body
        try:
            if declared is not None and declared > bytes_max:
                raise PayloadTooLarge
            self._body = await self._read(bytes_max)
            return self._body
        finally:
            self._settle()

    def _settle(self) -> None:
        self._is_settled = True
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    async def _read(self, bytes_max: int) -> bytes:
        pieces = bytearray()
        paced, more = 0, True
        deadline = self._intake.monotonic() + self._intake.timeout_s
        self.lags_from_s = self._intake.monotonic() + GRACE_S
        while more:
            message = await self._next(deadline)
            piece = message.get("body", b"")
            if len(pieces) + len(piece) > bytes_max:
                raise PayloadTooLarge
            deadline += await self._keep(len(piece))
            pieces += piece
            more = message.get("more_body", False)
            if len(pieces) - paced >= PACE_BYTES:
                paced, deadline = len(pieces), self._intake.monotonic() + self._intake.timeout_s
        return bytes(pieces)

    async def _keep(self, n: int) -> float:
        """Counts `n` bytes; returns how many seconds they waited for room, which is not the client's fault. Only small
        bodies wait: what waits keeps what it holds."""
        patience_s = self._patience_s if self.held_bytes + n <= PACE_BYTES else 0.0
        waited_s = await self._intake.room.take(self._bytes(n), patience_s)
        self._patience_s -= waited_s
        self.held_bytes += n
        self._received += n
        self.work += n
        self.lags_from_s = credited(self.lags_from_s + waited_s, self._intake.monotonic(), n)
        return waited_s

    async def _next(self, deadline: float) -> Any:
        """The next piece. Until it is there, the body can be evicted."""
        arriving, holders = self._intake.room.arriving, self._holders or ()
        arriving.add(self, holders)
        try:
            async with asyncio.timeout(max(0.0, deadline - self._intake.monotonic())) as self._timeout:
                message = await self._receive()
        except TimeoutError:
            self._intake.given_up += not self._evicted
            raise RequestTimeout from None
        finally:
            self._timeout = None
            if not self._evicted:
                arriving.remove(self, holders)
        if self._evicted:
            raise RequestTimeout  # the piece came in the same moment, but the place is another's
        if message["type"] == "http.disconnect":
            self._gone = True
            self._settle()
            await asyncio.Event().wait()  # until the request is cancelled, which `left` brings about
        return message

    async def left(self) -> None:
        """Returns when the client is gone. While the body is not settled nothing is received but what `read` asks for,
        so that what nobody wants stays outside; afterwards what still comes is dropped."""
        if not self._is_settled:
            self._settled = asyncio.get_running_loop().create_future()
            await self._settled
        while not self._gone:
            self._gone = (await self._receive())["type"] == "http.disconnect"

    def left_bytes(self, declared: int) -> int:
        """How much of a body of this length nobody has asked for."""
        return max(0, declared - self._received)

    def release_bytes(self) -> None:
        """The body is not needed any more."""
        self._intake.room.give_back(self._bytes(self.held_bytes))
        self.held_bytes, self._body = 0, None

    def close(self) -> None:
        """The request is over: what it held is free."""
        self._body = None
        self._free()

    def _free(self) -> None:
        self._intake.room.give_back(self._bytes(self.held_bytes))
        self.held_bytes = 0
        if self._holders is not None:
            self._intake.room.give_back(self._place(self._holders))
            self._holders = None
