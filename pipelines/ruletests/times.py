"""Times in a test: an offset from its start, or an instant."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from breaker_actors.clock import moment
from breaker_actors.errors import Invalid
from pipelines.candidates import duration_ms
from pipelines.sources.files import LATEST_MS

FORMS = "an offset (1500, 500ms, 90s, 1m30s) or an instant (2026-11-18T03:12:04.5Z)"
DEFAULT_START_MS = 1_767_225_600_000
"""2026-01-01 00:00 UTC: when a test begins that says nothing of it."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))


def span_ms(value: object) -> int:
    """Milliseconds of a duration: a whole number of them, or text with units. Raises Invalid."""
    text = str(value).removeprefix("+")
    found = int(text) if re.fullmatch(r"\d{1,15}", text) else duration_ms(text)
    if found is None or isinstance(value, bool) or found > LATEST_MS:
        raise Invalid(f"{value!r} is no duration: 1500, 500ms, 90s, 1m30s")
    return found


def instant_ms(value: object) -> int:
    """Unix milliseconds of an instant in ISO 8601, UTC where it names no zone, or of a whole number. Raises Invalid."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LATEST_MS:
        return value
    try:
        parsed = datetime.fromisoformat(value if isinstance(value, str) else "")
    except ValueError:
        raise Invalid(f"{value!r} is no instant: 2026-11-18T03:12:04.5Z, or Unix milliseconds") from None
    zoned = parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)
    return (zoned - _EPOCH) // timedelta(milliseconds=1)


def time_ms(value: object, start_ms: int) -> int:
    """Unix milliseconds of an offset from the start, or of an instant. Raises Invalid."""
    if isinstance(value, str) and re.match(r"\d{4}-\d\d-\d\d", value):
        return instant_ms(value)
    try:
        return start_ms + span_ms(value)
    except Invalid:
        raise Invalid(f"{value!r} is no time: {FORMS}") from None


def offset(ms: int) -> str:
    """An offset in words that `span_ms` reads: 1m30.5s."""
    if ms < 0:
        return f"-{offset(-ms)}"
    whole, parts = ms, []
    for unit, size in _UNITS[:3]:
        count, whole = divmod(whole, size)
        parts += [f"{count}{unit}"] if count else []
    if whole or not parts:
        parts.append(f"{whole / 1000:.3f}".rstrip("0").rstrip(".") + "s")
    return "".join(parts)


def written(ms: int) -> str:
    """An instant as `instant_ms` reads it, to the millisecond."""
    return moment(ms).isoformat("T", "milliseconds").removesuffix("+00:00") + "Z"
