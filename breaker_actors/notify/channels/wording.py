"""What a notification says, in words shared by Slack, PagerDuty and e-mail: rule, value, samples, durations. Pure.

Everything that came from outside passes `escaping.for_line`; the renderers add what their medium asks for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from breaker_actors.clock import rfc3339
from breaker_actors.notify.model import Message
from breaker_actors.text.escaping import for_line

OPS = {"gt": "above", "lt": "below", "gte": "at or above", "lte": "at or below"}
MEASURES = {
    "avg": "average",
    "p95": "95th percentile",
    "max": "maximum",
    "min": "minimum",
    "sum": "sum",
    "stddev": "standard deviation",
    "count": "number of samples",
    "error_rate": "error rate",
    "consecutive_failures": "consecutive failures",
}
REASONS = {
    "threshold_exceeded": "the threshold was exceeded",
    "insufficient_samples": "too few samples",
    "recovered": "the recovery was confirmed",
    "cooldown_elapsed": "the cooldown is over",
    "deleted": "the breaker was deleted",
    "forced_open": "forced open",
    "forced_closed": "forced closed",
    "throttled": "throttled",
    "override_ended": "the override was ended",
    "override_expired": "the override is over",
    "mode_observe": "it observes from now on",
    "mode_enforce": "it is enforced from now on",
}
STATES = {"half_open": "half open"}
_UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))


# figures


def figure(value: float, digits: int = 4) -> str:
    """A number for people: whole ones in full, others with that many significant digits."""
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if value == int(value) and size < 1e15:
        return f"{int(value):,}"
    if not 1e-6 <= size < 1e15:
        return f"{value:.{digits}g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(size)))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def told_apart(value: float, threshold: float) -> tuple[str, str]:
    """Both figures with as many digits as it takes to see that they differ."""
    for digits in range(4, 17):
        shown = figure(value, digits), figure(threshold, digits)
        if shown[0] != shown[1] or value == threshold:
            return shown
    return repr(value), repr(threshold)


def duration(ms: int) -> str:
    """A span in its two largest units: "4 minutes 12 seconds"."""
    if ms < 1_000:
        return _plural(figure(max(0, ms)), "millisecond")
    if ms < 60_000:
        return _plural(figure(ms / 1_000, 3), "second")
    left, parts = round(ms / 1_000), []
    for size, unit in _UNITS:
        count, left = divmod(left, size)
        if count:
            parts.append(_plural(figure(count), unit))
        elif parts:
            break
        if len(parts) == 2:
            break
    return " ".join(parts)


def _plural(count: str, unit: str) -> str:
    return f"{count} {unit}" if count == "1" else f"{count} {unit}s"


# the rule


def measure(rule: Mapping[str, Any]) -> str:
    """What is measured: "95th percentile of latency"."""
    metric = for_line(str(rule.get("metric", "")), 128)
    params = _params(rule)
    kind = str(rule.get("kind", ""))
    if kind == "delta":
        return f"change of the {_plain_measure(_delta_of(rule), metric)} against its baseline"
    if kind == "percentile" and _is_number(params.get("percentile")):
        return f"{_ordinal(params['percentile'])} percentile of {metric}"
    return _plain_measure(kind, metric)


def _plain_measure(kind: str, metric: str) -> str:
    return f"{MEASURES.get(kind) or for_line(kind, 40)} of {metric}"


def _params(rule: Mapping[str, Any]) -> Mapping[str, Any]:
    params = rule.get("kind_params")
    return params if isinstance(params, Mapping) else {}


def _delta_of(rule: Mapping[str, Any]) -> str:
    return str(_params(rule).get("delta_of") or "avg")


def _ordinal(percent: float) -> str:
    text = figure(percent, 8)
    last_two = text[-2:] if "." not in text else ""
    endings = {"1": "st", "2": "nd", "3": "rd"}
    ending = endings.get(last_two[-1:], "th") if last_two not in ("11", "12", "13") else "th"
    return text + ending


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _scaled(rule: Mapping[str, Any], *values: float) -> tuple[tuple[float, ...], str]:
    """Values as they are shown, and their unit."""
    times, words = unit(rule)
    return (values if times == 1 else tuple(v * times for v in values)), words


def unit(rule: Mapping[str, Any]) -> tuple[int, str]:
    """What the values of a rule are multiplied by to be shown, and their unit: rates are percent."""
    kind = rule.get("kind")
    if kind == "error_rate":
        return 100, " %"
    if kind == "delta" and _delta_of(rule) == "error_rate":
        return 100, " percentage points"
    return 1, ""


def _threshold(rule: Mapping[str, Any]) -> float | None:
    threshold = rule.get("threshold")
    return float(threshold) if _is_number(threshold) and threshold is not None else None


def rule_words(rule: Mapping[str, Any]) -> str:
    """ "error rate of latency above 50 % over 10 seconds, from 5 samples on"; an unknown op is not guessed."""
    threshold = _threshold(rule)
    words = measure(rule)
    if threshold is not None:
        (shown,), unit = _scaled(rule, threshold)
        words += f" {OPS.get(str(rule.get('op')), 'against')} {figure(shown)}{unit}"
    window, least = rule.get("window_ms"), rule.get("min_count")
    if rule.get("kind") != "consecutive_failures" and isinstance(window, int) and window > 0:
        words += f" over {duration(window)}"
    if isinstance(least, int) and least > 1:
        words += f", from {figure(least)} samples on"
    return words


def amount(rule: Mapping[str, Any], value: float) -> str:
    """ "63 %"."""
    (shown,), unit = _scaled(rule, value)
    return figure(shown) + unit


def value_words(message: Message) -> str:
    """ "63 % (threshold: above 50 %)"."""
    threshold = _threshold(message.rule)
    if message.value is None:
        return "none"
    if threshold is None:
        return amount(message.rule, message.value)
    (value, limit), unit = _scaled(message.rule, message.value, threshold)
    left, right = told_apart(value, limit)
    op = OPS.get(str(message.rule.get("op")))
    return f"{left}{unit} (threshold: {f'{op} ' if op else ''}{right}{unit})"


def samples_words(message: Message) -> str:
    """ "19, of which 12 failed"; of consecutive failures the longest run is known, not their sum."""
    count, errors = message.agg.get("count"), message.agg.get("error_count")
    if not isinstance(count, int):
        return "unknown"
    if not isinstance(errors, int):
        return figure(count)
    if message.rule.get("kind") == "consecutive_failures":
        return f"{figure(count)}, {figure(errors)} failures in a row"
    return f"{figure(count)}, of which {figure(errors)} failed"


# the message


def name_of(message: Message) -> str:
    return for_line(message.name) or for_line(message.breaker_id, 64)


def project_of(message: Message) -> str:
    """Like the project's name in answers: never empty."""
    return for_line(message.project_name or "") or f"project-{for_line(message.project_id[:8])}"


def is_again(message: Message) -> bool:
    """A trip out of half_open: the recovery failed, the outage goes on."""
    return message.kind == "trip" and message.prev == "half_open"


def headline(message: Message) -> str:
    """One short line: what happened to which breaker."""
    name = name_of(message)
    match message.kind:
        case "trip":
            return f"{name} is open again" if is_again(message) else f"{name} is open"
        case "recover":
            return f"{name} has recovered"
        case "observed":
            return f"{name} would be {_state(message.curr)}"
        case "resolve":
            return f"{name} was deleted while {_state(message.prev)}"
        case "test":
            return f"Test notification of {project_of(message)}"
        case "mute_ending":
            return f"A mute of {project_of(message)} ends at {_end_words(message)}"


def summary(message: Message) -> str:
    """One sentence that stands alone: a mail's subject, an alert's title, what a phone shows of a Slack message."""
    match message.kind:
        case "trip" if message.by is not None:
            return f"{headline(message)}: {_reason(message)} by {hand_words(message)}{_late_words(message)}"
        case "observed" if message.curr == "open":
            return f"{headline(message)}: {_trip_cause(message)}"
        case "trip":
            return f"{headline(message)}: {_trip_cause(message)}{_late_words(message)}"
        case "recover" if message.outage_ms is not None:
            return f"{headline(message)} after {duration(message.outage_ms)}"
        case "test":
            return f"{headline(message)}: this channel works"
        case "mute_ending":
            return f"{headline(message)}, {_waiting_words(message)} behind it"
        case _:
            return headline(message)


def hand_words(message: Message) -> str:
    """Who moved the breaker by hand, and why."""
    return ": ".join(for_line(words, 500) for words in (message.by, message.comment) if words)


def _trip_cause(message: Message) -> str:
    if message.reason == "insufficient_samples" or message.value is None:
        return f"{_reason(message)} ({measure(message.rule)})"
    return f"{measure(message.rule)} is {value_words(message)}"


def explanation(message: Message) -> str:
    """What it means for the calls behind the breaker."""
    match message.kind:
        case "trip" if is_again(message):
            return "The recovery failed; calls are blocked again."
        case "trip":
            return "Calls are blocked until it recovers."
        case "recover" if message.outage_ms is not None:
            return f"All calls are let through again. The outage lasted {duration(message.outage_ms)}."
        case "recover":
            return "All calls are let through again."
        case "observed":
            return "It observes: callers see it closed."
        case "resolve":
            return "Nobody watches its calls any more; what was opened for it can be closed."
        case "mute_ending":
            return "What is still open then is told. To keep it quiet, make the mute longer."
        case "test":
            return "Somebody asked for it; no breaker has changed. Trips and recoveries will arrive here."


def facts(message: Message) -> dict[str, str]:
    """What is known, as labels and words, in the order to show it; nothing of a test."""
    if message.kind == "test":
        return {"Project": project_of(message)}
    if message.kind == "mute_ending":
        return {"Mute": _mute_words(message), "Waiting": _waiting_words(message), "Project": project_of(message)}
    shown = {"Rule": rule_words(message.rule)}
    if message.kind != "resolve":
        shown["Value"] = value_words(message)
        shown["Samples"] = samples_words(message)
    shown["State"] = f"{_state(message.prev)} → {_state(message.curr)}"
    shown["Reason"] = _reason(message)
    if message.by is not None:
        shown["By"] = hand_words(message)
    if message.outage_ms is not None:
        shown["Outage"] = duration(message.outage_ms)
    if message.muted_by is not None:
        shown["Muted"] = late_note(message)
    shown["Project"] = project_of(message)
    return shown


def late_note(message: Message) -> str:
    """ "open since 2026-11-21T06:29:55.980Z, was muted by ann: deploy"; "" of what no mute held."""
    if message.muted_by is None or message.muted_by.open_since_ms is None:
        return ""
    return f"open since {rfc3339(message.muted_by.open_since_ms)}, was muted by {_mute_words(message)}"


def _late_words(message: Message) -> str:
    return f" ({note})" if (note := late_note(message)) else ""


def _mute_words(message: Message) -> str:
    """Who muted, and why."""
    by = message.muted_by
    return "" if by is None else f"{for_line(by.by, 100)}: {for_line(by.comment, 300)}"


def _end_words(message: Message) -> str:
    by = message.muted_by
    return "an unknown time" if by is None or by.ends_ms is None else rfc3339(by.ends_ms)


def _waiting_words(message: Message) -> str:
    n = 0 if message.muted_by is None else message.muted_by.holding or 0
    return f"{figure(n)} notification{'s wait' if n != 1 else ' waits'}"


def _reason(message: Message) -> str:
    return for_line(REASONS.get(message.reason, message.reason), 100)


def _state(word: str) -> str:
    return for_line(STATES.get(word, word), 40)
