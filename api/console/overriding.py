"""What forms ask of overrides: the body that the API takes, how long one may last, and in words what callers see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from api.console.looks import share, span
from api.context.replica import replica
from breaker_actors.errors import Invalid
from breaker_actors.store.rows import ProjectRow

LONGEST, AT = "longest", "at"
SPANS_MS = (900_000, 3_600_000, 14_400_000)
DID = {"force_open": "forced open", "force_closed": "forced closed", "throttle": "throttled"}
DO = {"force_open": "Force open", "force_closed": "Force closed", "throttle": "Throttle"}
STATES = {"force_open": "open", "force_closed": "closed", "throttle": "half_open"}
RATES = {"force_open": 0.0, "force_closed": 1.0}
UNDERNEATH = {
    "open": "open, which lets 0 % of calls through",
    "half_open": "half_open, which lets a part of the calls through, more with each healthy step",
    "closed": "closed, which lets 100 % of calls through",
}
NONE_TAG = 'W/"0"'
"""What no override is known by."""


class Ending(NamedTuple):
    """An end that a form offers."""

    value: str
    words: str
    chosen: bool


def longest_ms(project: ProjectRow) -> int:
    """How long an override of a project may last."""
    return project.override_max_ms or replica().settings.override_max_ms


def endings(project: ProjectRow) -> list[Ending]:
    """The ends that a form offers: an hour is chosen, or all there may be where that is less."""
    most_ms = longest_ms(project)
    found = [Ending(str(ms), f"in {span(ms)}", ms == SPANS_MS[1]) for ms in SPANS_MS if ms < most_ms]
    found.append(Ending(LONGEST, f"in {span(most_ms)}, the most there may be", most_ms <= SPANS_MS[1]))
    return [*found, Ending(AT, "at a time", False)]


def asked(form: Mapping[str, str], project: ProjectRow) -> dict[str, Any]:
    """The override that a form asks for, as the API takes it. Raises Invalid for what is no number or no time; the rest
    is for the API to say."""
    body: dict[str, Any] = {"kind": form.get("kind", ""), "reason": form.get("reason", "")} | _end(form, project)
    if body["kind"] == "throttle":
        body["allow_rate"] = _rate(form.get("percent", ""))
    if form.get("then") == "half_open":
        body["then"] = "half_open"
    return body


def _end(form: Mapping[str, str], project: ProjectRow) -> dict[str, int]:
    lasts, until = form.get("lasts", ""), form.get("until_ms", "")
    if lasts == AT:
        if not (until.isascii() and until.isdigit() and len(until) < 16):
            raise Invalid("Choose the time at which it ends.", {"until": "is required"})
        return {"until_ms": int(until)}
    if lasts == LONGEST:
        return {"for_ms": longest_ms(project)}
    if lasts in map(str, SPANS_MS):
        return {"for_ms": int(lasts)}
    raise Invalid("Choose when it ends.", {"lasts": "is required"})


def _rate(percent: str) -> float:
    try:
        found = float(percent.replace(",", "."))
    except ValueError:
        found = -1.0
    if not 0 <= found <= 100:
        raise Invalid("Say how much of the calls is let through.", {"percent": "Expected a number, 0 to 100"})
    return round(found / 100, 6)


def again(override: Mapping[str, Any], tag: str) -> dict[str, str]:
    """The fields of a form that sets an override as it was, unless another one than `tag` is in force."""
    fields = {name: str(override[name]) for name in ("kind", "reason", "until_ms")} | {"lasts": AT, "tag": tag}
    if override["kind"] == "throttle":
        fields["percent"] = repr(100 * override["allow_rate"])
    return fields | ({"then": override["then"]} if override["then"] else {})


def seen(kind: str, rate: float) -> str:
    """What callers see of it."""
    return f"Callers see {STATES[kind]}: {share(RATES.get(kind, rate))} of calls are let through."


def underneath(state: Mapping[str, Any]) -> str:
    """What callers see of a breaker without an override: what its machine does, or that it observes."""
    machine = state["machine_state"]
    if state["mode"] == "observe":
        return f"It observes: callers see closed, which lets 100 % of calls through. Its machine is {machine}."
    return f"Its machine is {UNDERNEATH[machine]}."
