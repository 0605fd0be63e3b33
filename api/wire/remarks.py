"""What is allowed and hardly meant: told beside the answer as warnings, never refused. Pure."""

from __future__ import annotations

from api.wire.unknown import FieldWarning
from breaker_actors.core.model import Rule
from breaker_actors.core.rule_remarks import remarks_on

SAME_NAME = "same_name"
PENDING = FieldWarning("pending", "", "Stored, but not in all routers' logs yet: samples sent now may not count by it.")
REPEATED = FieldWarning(
    "repeated",
    "",
    "A request with this X-EB-Timestamp and this body came before and counts once. Give milliseconds there, or send an"
    " Idempotency-Key of its own.",
)
NO_MAIL_SERVER = FieldWarning(
    "no_mail_server", "channel", "No mail server is set: mails are given up until the service has BREAKERS_SMTP_HOST."
)


def rule_remarks(rule: Rule) -> list[FieldWarning]:
    """On rules that can hardly do what was meant."""
    return [FieldWarning(told.code, told.field, told.message) for told in remarks_on(rule)]


def name_remarks(name: str, alike: int) -> list[FieldWarning]:
    """`alike`: how many breakers of the project have the name."""
    if alike < 2:
        return []
    message = f"{alike} breakers of this project are named so; SDKs ask by name and see only one of them."
    return [FieldWarning(SAME_NAME, "name", message)]
