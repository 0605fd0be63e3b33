"""Tables on terminals with little room: nothing that is copied or compared is broken in two. Pure but for the zone."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import datetime

ROOM = 120
"""A terminal of so many columns or more shows ids and times in full."""
ID_CHARS = 8
WORD_MAX = 18
"""A column is as wide as its longest word, up to so much: longer ones may be broken."""
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)")

Table = tuple[list[str], list[list[str]]]


def narrowed(
    titles: Sequence[str], rows: Sequence[Sequence[str]], width: int, now_ms: int, short: Collection[str] = (),
    least: Sequence[str] = (),
) -> Table:  # fmt: skip
    """What of a table is shown in `width` columns. `short`: titles of ids that commands take by their beginning;
    `least`: titles that are left out, these first, until the rest has room."""
    if width >= ROOM:
        return list(titles), [list(row) for row in rows]
    cells = [[_short(cell, title in short, now_ms) for title, cell in zip(titles, row, strict=True)] for row in rows]
    kept = list(range(len(titles)))
    for title in least:
        if sum(widths([titles[i] for i in kept], [[row[i] for i in kept] for row in cells])) + len(kept) <= width:
            break
        kept = [i for i in kept if titles[i] != title]
    return [titles[i] for i in kept], [[row[i] for i in kept] for row in cells]


def widths(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """How wide each column is at least: its longest word, or a beginning of it that still tells."""
    found = []
    for i, title in enumerate(titles):
        words = [word for row in rows for word in row[i].split()]
        head = max(map(len, title.split()), default=0)
        whole = [len(word) for word in words if _ID.fullmatch(word) or _TIME.fullmatch(word)]
        found.append(max(head, *whole, min(WORD_MAX, max(map(len, words), default=0)), 1))
    return found


def _short(cell: str, is_id: bool, now_ms: int) -> str:
    """An id by its beginning; a time as the reader's clock shows it, with the date where that is another."""
    if is_id and _ID.fullmatch(cell):
        return cell[:ID_CHARS]
    if not _TIME.fullmatch(cell):
        return cell
    at = datetime.fromisoformat(cell).astimezone()
    today = datetime.fromtimestamp(now_ms / 1_000, at.tzinfo).date()
    return f"{at:%H:%M:%S}" if at.date() == today else f"{at:%Y-%m-%d %H:%M:%S}"
