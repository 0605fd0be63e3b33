"""What is allowed and hardly meant: told beside the answer as warnings, never refused. Pure."""

from __future__ import annotations

from api.wire.unknown import FieldWarning
from breaker_actors.core.model import Rule

NEVER_MOVES, SAME_NAME = "never_moves", "same_name"
PENDING = FieldWarning("pending", "", "Stored, but not in all routers' logs yet: samples sent now may not count by it.")


def rule_remarks(rule: Rule) -> list[FieldWarning]:
    """An error rate lies between 0 and 1: a threshold beyond that says always, or never."""
    if rule.kind != "error_rate":
        return []
    lowest, highest = (_holds(rule.op, share, rule.threshold) for share in (0.0, 1.0))
    if lowest != highest:
        return []
    word = "always opens" if lowest else "never opens"
    message = f"An error rate lies between 0 and 1: with {rule.op} {rule.threshold:g} this breaker {word}."
    return [FieldWarning(NEVER_MOVES, "threshold", message)]


def name_remarks(name: str, alike: int) -> list[FieldWarning]:
    """`alike`: how many breakers of the project have the name."""
    if alike < 2:
        return []
    message = f"{alike} breakers of this project are named so; SDKs ask by name and see only one of them."
    return [FieldWarning(SAME_NAME, "name", message)]


def _holds(op: str, value: float, threshold: float) -> bool:
    return {"gt": value > threshold, "gte": value >= threshold, "lt": value < threshold, "lte": value <= threshold}[op]
