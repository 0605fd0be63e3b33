"""How fast streams of one organisation are opened on a replica.

Each opening is a whole request, a millisecond or two of the loop, and has no budget of its key: thousands of clients
that come back at once are to be let in. Opened and dropped on and on, or by the thousand at once, they would take all
of the loop, and others' samples and reads would wait behind them for seconds. So beyond a burst they are spread.
"""

from __future__ import annotations

import asyncio

PER_S, AT_ONCE = 200, 200
"""Streams that an organisation may open a second, and at once; the others wait, in order. 2,000 are open after 9 s."""
ORGS_KNOWN_MAX = 10_000
"""Organisations of which is known what they opened last; of more those are forgotten that have nothing waiting."""


class Openings:
    """Those of all organisations. Nobody is refused: who waits holds no more than a stream does, and those are bounded
    by the connections there may be. Who goes away meanwhile has opened nothing."""

    def __init__(self, per_s: float = PER_S, at_once: int = AT_ONCE) -> None:
        self._each_s = 1 / per_s
        self._burst_s = at_once / per_s
        self._whole_at: dict[str, float] = {}

    async def turn(self, org_id: str) -> bool:
        """Returns when another one may be opened; whether it had to wait."""
        now_s = asyncio.get_running_loop().time()
        whole_at = max(now_s, self._whole_at.get(org_id, 0.0)) + self._each_s
        self._whole_at[org_id] = whole_at
        if len(self._whole_at) > ORGS_KNOWN_MAX:
            self._whole_at = {id_: at_s for id_, at_s in self._whole_at.items() if at_s > now_s}
        wait_s = whole_at - self._burst_s - now_s
        if wait_s <= 0:
            return False
        try:
            await asyncio.sleep(wait_s)
        except asyncio.CancelledError:
            if org_id in self._whole_at:
                self._whole_at[org_id] -= self._each_s
            raise
        return True
