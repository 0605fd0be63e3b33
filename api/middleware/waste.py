"""Work that came to nothing: what a caller's bad requests cost is counted, and beyond a budget their answers come late.

Whoever sends bad bodies on and on then waits, and the service does not. Nothing good is refused or delayed for it, not
even of the same caller. A budget is one of an address and a project together, of a key, or of a project that signs (see
api/admission/shares.py), so that strangers who send nonsense to a project do not slow its own clients down.
"""

from __future__ import annotations

import asyncio

from quart import Quart, Response, request

from api.context.current import arrival, callers
from api.context.replica import replica
from breaker_actors.telemetry.meters import Meters

WASTE_CALLERS_MAX = 10_000
BURST_S = 4
"""A caller may waste at once what its budget gives in so many seconds."""
LATE_S = 0.5
"""How late answers come beyond the budget; what the request held of the bytes in flight is free by then."""
REQUEST_BYTES = 1 << 12
"""What a bad request counts as besides its bytes."""


class Waste:
    """The bytes that callers had received, inflated and read for nothing, or thrown away. When there are too many
    callers, the one unheard of longest is forgotten; its budget is whole then."""

    def __init__(self, bytes_per_s: int, callers_max: int = WASTE_CALLERS_MAX) -> None:
        self._rate = bytes_per_s
        self._callers_max = callers_max
        self._owed: dict[str, tuple[float, float]] = {}
        self.late = 0

    def charge(self, caller: str, n: int, now_s: float) -> bool:
        """Counts `n` bytes; whether the caller is beyond its budget. With a rate of 0 nobody ever is."""
        if not self._rate:
            return False
        owed, since_s = self._owed.pop(caller, (0.0, now_s))
        limit = self._rate * BURST_S
        owed = max(0.0, owed - (now_s - since_s) * self._rate) + n
        self._owed[caller] = min(owed, 2.0 * limit), now_s
        if len(self._owed) > self._callers_max:
            del self._owed[next(iter(self._owed))]
        self.late += owed > limit
        return owed > limit


def install(app: Quart, meters: Meters, waste: Waste) -> None:
    """Charges every refused request that had a body, and delays its answer beyond the budget."""
    meters.watch(lambda: meters.total("breakers_late_answers_total", waste.late))

    @app.after_request
    async def settle(response: Response) -> Response:
        if not 400 <= response.status_code < 500:
            return response
        incoming = arrival()
        # What of the body was not asked for is still received, and thrown away, after the answer: a client that writes
        # would lose the answer if its connection were closed instead.
        cost = incoming.work + incoming.left_bytes(request.content_length or 0)
        if cost and waste.charge(" ".join(callers()[0]), cost + REQUEST_BYTES, replica().clock.monotonic()):
            incoming.release_bytes()
            await asyncio.sleep(LATE_S)
        return response
