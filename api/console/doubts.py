"""What can hardly be meant is asked once more before anything is made: a share that is written as percent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from breaker_actors.notify.channels.wording import figure

MEANT = "meant"
"""The name of the answer in a form: the threshold that was asked about, and the one that is to count."""


class Doubt(NamedTuple):
    """A question about a threshold. `instead`: what may have been meant, "" where nobody can tell."""

    threshold: str
    words: str
    instead: str
    share: str


def answered(fields: Mapping[str, Any], given: Mapping[str, str]) -> tuple[dict[str, Any], Doubt | None]:
    """The fields with the answer that the form gives to the question, and the question where it is open still."""
    doubt = doubt_of(fields)
    if doubt is None:
        return dict(fields), None
    about, _, meant = given.get(MEANT, "").partition(" ")
    if about == doubt.threshold and meant == doubt.instead != "":
        return {**fields, "threshold": float(meant)}, None
    return dict(fields), None if about == meant == doubt.threshold else doubt


def doubt_of(fields: Mapping[str, Any]) -> Doubt | None:
    """An error rate lies between 0 and 1, and its change between -1 and 1: beyond that percent are meant."""
    threshold = fields.get("threshold")
    if not isinstance(threshold, int | float) or (ends := _ends(fields)) is None or ends[0] <= threshold <= ends[1]:
        return None
    words = f"{figure(threshold)} is {figure(round(100.0 * threshold, 6))} %"
    share = threshold / 100
    if not ends[0] <= share <= ends[1]:
        what = "an error rate lies" if ends[0] == 0 else "the change of an error rate lies"
        return Doubt(str(threshold), f"{words}, and {what} between {figure(ends[0] * 100)} and 100 %.", "", "")
    meant = f"{figure(share)} ({figure(threshold)} %)"
    return Doubt(str(threshold), f"{words}. Did you mean {meant}?", str(share), figure(share))


def _ends(fields: Mapping[str, Any]) -> tuple[float, float] | None:
    """Between what the value of a rule lies; None where it has no such ends."""
    if fields.get("kind") == "error_rate":
        return 0.0, 1.0
    params = fields.get("kind_params")
    of = params.get("delta_of") if isinstance(params, dict) else None
    return (-1.0, 1.0) if fields.get("kind") == "delta" and of == "error_rate" else None
