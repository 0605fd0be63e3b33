"""A notification as a Slack message (incoming webhook, Block Kit). Pure.

Limits are Slack's: header 150, section 3000, field 2000 characters, 10 fields. `verbatim` keeps names like "@here" from
becoming mentions; `&`, `<` and `>` are escaped, which is all that mrkdwn asks for.
"""

from __future__ import annotations

from typing import Any

from breaker_actors.clock import rfc3339
from breaker_actors.notify.channels.wording import explanation, facts, headline, summary
from breaker_actors.notify.model import Message
from breaker_actors.text.escaping import cut, for_slack, link

HEADER_MAX, FIELD_MAX, FIELDS_MAX = 150, 2000, 10
MARKS = {"trip": "🔴", "recover": "🟢", "resolve": "⚪", "test": "🔵", "observed": "👁", "mute_ending": "🔔"}

Block = dict[str, Any]


def render(message: Message) -> dict[str, Any]:
    """The JSON body for the webhook address; `text` is what notifications and screen readers show."""
    blocks: list[Block] = [
        {"type": "header", "text": _plain(f"{MARKS[message.kind]} {headline(message)}")},
        {"type": "section", "text": _mrkdwn(for_slack(explanation(message)))},
        {"type": "section", "fields": _fields(message)},
    ]
    if url := link(message.trace_url):
        blocks.append({"type": "section", "text": _mrkdwn(f"<{for_slack(url)}|Newest trace>")})
    blocks.append({"type": "context", "elements": [_mrkdwn(_footer(message))]})
    return {"text": for_slack(summary(message)), "blocks": blocks}


def _fields(message: Message) -> list[Block]:
    shown = [f"*{label}*\n{for_slack(words, FIELD_MAX - 40)}" for label, words in facts(message).items()]
    return [_mrkdwn(text) for text in shown[:FIELDS_MAX]]


def _footer(message: Message) -> str:
    """When it was, in the reader's time zone, and which breaker."""
    when = f"<!date^{message.ts_ms // 1_000}^{{date_short_pretty}} {{time_secs}}|{rfc3339(message.ts_ms)}>"
    if not message.tells_of_a_breaker:
        return when
    return f"{when} · `{for_slack(message.breaker_id, 100)}` · no. {message.transition_seq}"


def _mrkdwn(text: str) -> Block:
    return {"type": "mrkdwn", "text": text, "verbatim": True}


def _plain(text: str) -> Block:
    return {"type": "plain_text", "text": cut(text, HEADER_MAX), "emoji": False}
