"""What `breakers doctor` finds about channels: who can't be told, and to where the service may not send."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection

from api.launch.cut_off import ALLOW
from api.launch.doctor_findings import Finding
from breaker_actors.notify.channels.config import check, unknown_keys
from breaker_actors.notify.channels.reach import cut_off
from breaker_actors.store.config.channels import enabled_configs, mail_channels
from breaker_actors.store.secrets import SecretBox
from breaker_actors.text.counting import counted

CHANNELS_TOLD, PROBLEMS_TOLD = 10, 3


def mail_server(connection: Connection, host: str | None, of_service: bool) -> Iterator[Finding]:
    """Whether channels wait for a server of mails that nobody named."""
    if host is None and (n := mail_channels(connection)):
        whose = "the running service has no mail server" if of_service else "this shell's settings name no mail server"
        message = f"{counted(n, 'e-mail channel')}, and {whose}: mails wait for one, and are given up in time"
        yield Finding("mail server", "warning", message, "set BREAKERS_SMTP_HOST where the service starts")


def channels(connection: Connection, box: SecretBox | None) -> Iterator[Finding]:
    """Enabled channels that can send nothing, or have keys that nothing reads; the first CHANNELS_TOLD."""
    found = 0
    for project_id, name, kind, config in enabled_configs(connection, box) if box else ():
        problems = [*check(kind, config), *unknown_keys(kind, config)]
        found += bool(problems)
        if problems and found <= CHANNELS_TOLD:
            said = "; ".join(f"{problem.path} {problem.message}" for problem in problems[:PROBLEMS_TOLD])
            remedy = f"PATCH /v1/projects/{project_id}/notification-channels/..., then POST its /test"
            yield Finding("channel", "warning", f"{kind} channel {name}: {said}", remedy)
    if (more := found - CHANNELS_TOLD) > 0:
        words = f"{counted(more, 'more channel')} {'is' if more == 1 else 'are'} like that"
        yield Finding("channel", "warning", words, "test them, too")


def refused_channels(connection: Connection, box: SecretBox | None, of_service: bool) -> Iterator[Finding]:
    """Enabled channels to where the service may not send; the first CHANNELS_TOLD."""
    found = list(cut_off(enabled_configs(connection, box), allow_private=False)) if box else []
    whose = "" if of_service else " by this shell's settings"
    for _, name, kind, problem in found[:CHANNELS_TOLD]:
        message = f"{kind} channel {name} can't be sent to{whose}: {problem.message}; its alerts are given up in time"
        yield Finding("channel", "warning", message, ALLOW)
    if (more := len(found) - CHANNELS_TOLD) > 0:
        yield Finding("channel", "warning", f"{more} more can't be sent to either", ALLOW)
