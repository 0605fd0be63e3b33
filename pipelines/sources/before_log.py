"""Whether history has something of before a router's log begins."""

from __future__ import annotations

from collections.abc import Sequence

from breaker_actors.messages import RouterRef
from breaker_actors.wal.base import SampleLog
from breaker_actors.wal.reader import LogReader
from pipelines.sources import history_store as history
from pipelines.sources.object_store import open_place


async def may_have_history(log: SampleLog, url: str, project_id: str, logs: Sequence[RouterRef], from_ms: int) -> bool:
    """Whether there are files of what was received from then on, before one of the logs begins. `url`: of the store."""
    reader, place = LogReader(log), open_place(url)
    for ref in logs:
        first = await anext(aiter(reader.after(ref, ref.since_offset, ref.until_offset or 0)), None)
        to_ms = None if first is None else first.received_ms
        if to_ms is not None and to_ms <= from_ms:
            continue
        if history.files(place, project_id, [ref.router_id], from_ms=from_ms, to_ms=to_ms):
            return True
    return False
