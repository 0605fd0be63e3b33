"""What is allowed and hardly meant: told beside the answer as warnings, never refused. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from api.wire.decoding import Loose, strange_fields
from api.wire.unknown import NAME_SHOWN_MAX, UNKNOWN_FIELD, WARNINGS_MAX, FieldWarning
from breaker_actors.core.model import Rule, StateWord
from breaker_actors.core.rule_remarks import remarks_on
from breaker_actors.messages import AppendResult, Part
from breaker_actors.notify.channels.config import check, unknown_keys
from breaker_actors.notify.channels.reach import barred
from breaker_actors.store.rows import ChannelKind

SAME_NAME = "same_name"
CANNOT_WORK, UNKNOWN_KEY, CUT_OFF = "channel_cannot_work", "unknown_config_key", "channel_cut_off"
ROUTER_DISABLED, NO_BREAKER_HEARS = "router_disabled", "no_breaker_hears"
PENDING = FieldWarning("pending", "", "Stored, but not in all routers' logs yet: samples sent now may not count by it.")
REPEATED = FieldWarning(
    "repeated",
    "",
    "A request with this X-EB-Timestamp and this body came before and counts once. Give milliseconds there, or send an"
    " Idempotency-Key of its own.",
)
NO_MAIL_SERVER = FieldWarning(
    "no_mail_server",
    "channel",
    "No mail server is set: mails wait for a start with BREAKERS_SMTP_HOST, and are given up in time.",
)


def now_enforced(state: StateWord) -> FieldWarning:
    """A breaker that observed is enforced while its machine is not closed."""
    word = state.replace("_", " ")
    return FieldWarning("now_enforced", "mode", f"The machine is {word}: callers see that from now on.")


def rule_remarks(rule: Rule) -> list[FieldWarning]:
    """On rules that can hardly do what was meant."""
    return [FieldWarning(told.code, told.field, told.message) for told in remarks_on(rule)]


def heard_remarks(
    pairs: Iterable[tuple[str, str]], parts: Sequence[Part], outcomes: Sequence[AppendResult]
) -> list[FieldWarning]:
    """On samples that were taken and that no breaker hears. `pairs`: their routers and metrics; their records may hold
    samples of other requests, too."""
    if not any(outcome.disabled or outcome.unheard for outcome in outcomes):
        return []
    sent, found = set(pairs), []
    for part, outcome in zip(parts, outcomes, strict=True):
        if outcome.disabled:
            message = f"Router {part.router_id} is disabled: no breaker hears these samples."
            found.append(FieldWarning(ROUTER_DISABLED, "router_id", message))
        for metric in outcome.unheard:
            if (part.router_id, metric) in sent:
                names = ", ".join(f'"{name}"' for name in outcome.heard)
                have = f"its breakers have {names}" if names else "it has no breaker"
                message = f'No breaker of router {part.router_id} has the metric "{metric}"; {have}.'
                found.append(FieldWarning(NO_BREAKER_HEARS, "metric", message))
    return found


_SAMPLE_FIELDS = tuple(Loose.__struct_fields__)
_MEANT = dict.fromkeys(("success", "successful", "succeeded", "is_ok", "failed", "failure", "error", "status"), "ok")
_MEANT |= dict.fromkeys(("timestamp", "timestamp_ms", "time", "ts", "at"), "ts_ms")


def sample_remarks(body: bytes) -> list[FieldWarning]:
    """On fields of a body's first samples that no sample has; see `strange_fields`."""
    return [
        FieldWarning(
            UNKNOWN_FIELD, f"samples[{index}].{name[:NAME_SHOWN_MAX]}", _strange(name[:NAME_SHOWN_MAX], says_ok)
        )
        for name, (index, says_ok) in strange_fields(body).items()
    ]


def column_remarks(unknown: Sequence[str], says_ok: bool) -> list[FieldWarning]:
    """On columns that no sample has, beside an `ok` or not."""
    shown = [name[:NAME_SHOWN_MAX] for name in unknown[:WARNINGS_MAX]]
    return [FieldWarning(UNKNOWN_FIELD, name, _strange(name, says_ok)) for name in shown]


@lru_cache(256)
def _strange(name: str, says_ok: bool) -> str:
    """What to say of an unknown field, in a sample that says its `ok` or not."""
    known = _MEANT.get(name.lower()) or next(iter(get_close_matches(name.lower(), _SAMPLE_FIELDS, 1)), None)
    if known is None:
        return "is no field of a sample"
    success = " Without ok a sample counts as a success." if known == "ok" and not says_ok else ""
    return f"is no field of a sample; did you mean {known}?{success}"


def channel_remarks(kind: ChannelKind, config: Mapping[str, Any]) -> list[FieldWarning]:
    """On a channel that can send nothing, and on keys of its config that nothing reads."""
    return [
        *(FieldWarning(CANNOT_WORK, p.path, f"{p.message}; until then nothing is sent") for p in check(kind, config)),
        *(FieldWarning(UNKNOWN_KEY, p.path, p.message) for p in unknown_keys(kind, config)),
    ]


def cut_off_remarks(rows: Iterable[tuple[str, bool, ChannelKind, Mapping[str, Any]]]) -> list[FieldWarning]:
    """On enabled channels of a list (name, enabled, kind, config) to where the service may not send as it was
    started."""
    found = list[FieldWarning]()
    for index, (name, enabled, kind, config) in enumerate(rows):
        if enabled and (problem := barred(kind, config, allow_private=False)) is not None:
            message = f"{name} can't be sent to: {problem.message}"
            found.append(FieldWarning(CUT_OFF, f"channels[{index}].{problem.path}", message))
    return found


def mail_remarks(rows: Iterable[tuple[str, bool, ChannelKind]]) -> list[FieldWarning]:
    """On enabled channels of a list (name, enabled, kind) that send mails, where the service has no server for them."""
    return [
        FieldWarning(NO_MAIL_SERVER.code, f"channels[{index}].channel", f"{name}: {NO_MAIL_SERVER.message}")
        for index, (name, enabled, kind) in enumerate(rows)
        if enabled and kind == "email"
    ]


def name_remarks(name: str, alike: int) -> list[FieldWarning]:
    """`alike`: how many breakers of the project have the name."""
    if alike < 2:
        return []
    message = f"{alike} breakers of this project are named so; SDKs ask by name and see only one of them."
    return [FieldWarning(SAME_NAME, "name", message)]
