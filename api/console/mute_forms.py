"""A mute as a form has it: rows of matchers and of windows, times of the wall of one zone; and in words. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from api.console.refusing import wrong
from breaker_actors.clock import unix_ms
from breaker_actors.store.mutes.schedule import WEEKDAYS, zone_of

OPS = {"=": "is", "!=": "is not", "glob": "is like"}
FIELDS = ("name", "metric", "kind", "id", "channel")
SPANS = {
    "1800000": "30 minutes",
    "3600000": "1 hour",
    "14400000": "4 hours",
    "28800000": "8 hours",
    "86400000": "1 day",
    "604800000": "1 week",
}
ZONES = (
    "UTC",
    "Europe/Berlin",
    "Europe/London",
    "Europe/Paris",
    "America/New_York",
    "America/Chicago",
    "America/Los_Angeles",
    "America/Sao_Paulo",
    "Asia/Kolkata",
    "Asia/Singapore",
    "Asia/Tokyo",
    "Australia/Sydney",
)
"""Offered; every other one of the IANA database may be typed."""
ROWS_MAX = 20
_WALL = "%Y-%m-%dT%H:%M"
_FIELD = re.compile(r"(field|from)-([0-9]{1,4})")


class Values(NamedTuple):
    """What a form is filled with. Times are of the wall of `zone`. `begun`: its start can't be changed any more."""

    comment: str = ""
    everything: bool = False
    matchers: tuple[Mapping[str, Any], ...] = ()
    starts: str = ""
    ends: str = ""
    windows: tuple[Mapping[str, Any], ...] = ()
    zone: str = "UTC"
    begun: bool = False
    new: bool = False


EMPTY = Values(matchers=({"field": "metadata.team", "op": "=", "value": ""},), new=True)


def filled(row: Mapping[str, Any], now_ms: int) -> Values:
    """The form of a mute that there is."""
    return Values(
        comment=row["comment"],
        everything=row["all"],
        matchers=tuple(row["matchers"]),
        starts=_wall(row["starts_ms"], row["zone"]),
        ends=_wall(row["ends_ms"], row["zone"]),
        windows=tuple(row["windows"]),
        zone=row["zone"],
        begun=row["starts_ms"] <= now_ms,
    )


def matched(given: Mapping[str, str]) -> dict[str, Any]:
    """What a form says of what is matched; rows without a value are none."""
    rows = [] if given.get("all") else _rows(given, "field")
    matchers = [{name: given.get(f"{name}-{n}", "").strip() for name in ("field", "op", "value")} for n in rows]
    return {"matchers": matchers, "all": bool(given.get("all"))}


def asked(given: Mapping[str, str], now_ms: int) -> dict[str, Any]:
    """What a form asks for, as the API takes it. Raises Refused for times that are none."""
    zone = given.get("zone", "").strip() or "UTC"
    starts_ms = _ms("starts_ms", given.get("starts", ""), zone)
    return {
        **matched(given),
        "comment": given.get("comment", "").strip(),
        "starts_ms": starts_ms,
        "ends_ms": _end(given, zone, max(now_ms, starts_ms or 0)),
        "windows": _windows(given),
        "zone": zone,
    }


def changed(given: Mapping[str, str], before: Mapping[str, Any], now_ms: int) -> dict[str, Any]:
    """The same of a mute that there is; a time that the form left as it was stays to the millisecond."""
    body, shown = asked(given, now_ms), filled(before, now_ms)
    if shown.begun or given.get("starts", "") == shown.starts:
        body.pop("starts_ms")
    elif body["starts_ms"] is None:
        body["starts_ms"] = now_ms
    if given.get("lasts") == "until" and given.get("ends") == shown.ends and body["zone"] == before["zone"]:
        body["ends_ms"] = before["ends_ms"]
    return body


def placed(details: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    """What is wrong, under the numbers that rows have in the form."""
    numbers = {"matchers": _rows(given, "field"), "windows": _rows(given, "from")}

    def there(path: str) -> str:
        found = re.match(r"(matchers|windows)\[([0-9]{1,3})\]", path)
        if found is None or int(found[2]) >= len(numbers[found[1]]):
            return path
        return f"{found[1]}[{numbers[found[1]][int(found[2])]}]{path[found.end() :]}"

    return {there(path): words for path, words in details.items()}


def places(given: Mapping[str, str]) -> list[str]:
    """The fields of a form at which something may be wrong."""
    rows = [f"matchers[{n}]" for n in _numbers(given, "field")] + [f"windows[{n}]" for n in _numbers(given, "from")]
    return ["comment", "matchers", "all", "starts_ms", "ends_ms", "windows", "zone", *rows]


def matcher_words(matcher: Mapping[str, Any]) -> str:
    """A matcher in words."""
    kind, _, key = matcher["field"].partition(".")
    what = {"metadata": f"label {key}", "router": f"its router's label {key}"}.get(kind, kind)
    return f"{what} {OPS[matcher['op']]} {matcher['value'] or 'empty'}"


def window_words(window: Mapping[str, Any]) -> str:
    """A window in words: days that follow each other as a span."""
    days = sorted(WEEKDAYS.index(day) for day in window["weekdays"])
    runs: list[list[int]] = []
    for day in days:
        if runs and runs[-1][-1] == day - 1:
            runs[-1].append(day)
        else:
            runs.append([day])
    names = [day.capitalize() for day in WEEKDAYS]
    told = [
        f"{names[run[0]]}–{names[run[-1]]}" if len(run) > 2 else ", ".join(names[day] for day in run) for run in runs
    ]
    days_words = "every day" if len(set(days)) == 7 else ", ".join(told)
    next_day = "" if window["to"] > window["from"] else " of the next day"
    return f"{days_words} from {window['from']} to {window['to']}{next_day}"


def _windows(given: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {
            "weekdays": [day for day in WEEKDAYS if given.get(f"{day}-{n}")],
            "from": given.get(f"from-{n}", "").strip(),
            "to": given.get(f"to-{n}", "").strip(),
        }
        for n in _rows(given, "from")
    ]


def _end(given: Mapping[str, str], zone: str, from_ms: int) -> int | None:
    lasts = given.get("lasts", "")
    if lasts == "ever":
        return None
    if lasts in SPANS:
        return from_ms + int(lasts)
    ends_ms = _ms("ends_ms", given.get("ends", ""), zone)
    if ends_ms is None:
        raise wrong("ends_ms", "say until when")
    return ends_ms


def _ms(field: str, text: str, zone: str) -> int | None:
    """The instant of a time of a zone's wall; None: no time is given."""
    found = zone_of(zone)
    if found is None:
        raise wrong("zone", "is no zone of the IANA database, as Europe/Berlin is")
    if not text.strip():
        return None
    try:
        return unix_ms(datetime.fromisoformat(text.strip()).replace(tzinfo=found))
    except (ValueError, OverflowError):
        raise wrong(field, "is no time, as 2030-01-31T09:30 is") from None


def _wall(ms: int | None, zone: str) -> str:
    """A time as the zone's wall shows it, to the minute."""
    if ms is None:
        return ""
    return datetime.fromtimestamp(ms / 1_000, UTC).astimezone(zone_of(zone) or UTC).strftime(_WALL)


def _numbers(given: Mapping[str, str], kind: str) -> list[int]:
    """The numbers of a form's rows of a kind, ROWS_MAX and one at most: what is too much the API shall say."""
    found: Iterable[int] = (int(n[2]) for name in given if (n := _FIELD.fullmatch(name)) and n[1] == kind)
    return sorted(found)[: ROWS_MAX + 1]


def _rows(given: Mapping[str, str], kind: str) -> list[int]:
    """Those of them that say something."""
    names = ("value",) if kind == "field" else ("from", "to", *WEEKDAYS)
    return [n for n in _numbers(given, kind) if any(given.get(f"{name}-{n}", "").strip() for name in names)]
