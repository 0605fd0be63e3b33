"""A notification as an e-mail: plain text with an HTML alternative. Pure.

Names get no header of their own: text passes `escaping.for_header`, addresses with encoded words are refused
(`checks.mailbox`), and `to_bytes` holds what leaves against the headers that were set. The whole message is 7-bit, so
no server needs an extension for it. Retries are the same message to the byte.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from email.errors import MessageError
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, parseaddr

from breaker_actors.clock import moment, rfc3339
from breaker_actors.notify.channels.config import mailbox
from breaker_actors.notify.channels.wording import explanation, facts, headline, project_of, summary
from breaker_actors.notify.model import Message
from breaker_actors.text.escaping import for_header, for_html, for_line, for_token, link

SUBJECT_MAX = 200
_POLICY = SMTP.clone(cte_type="7bit")


def sender_of(smtp_from: str) -> Address:
    """The From address of the settings, "Name <a@b>" or "a@b". Raises ValueError when it is none."""
    name, address = parseaddr(smtp_from)
    plain = mailbox(address)
    if plain is None or smtp_from != for_header(smtp_from):
        raise ValueError("smtp_from is not an e-mail address")
    user, _, domain = plain.rpartition("@")
    return Address(name, username=user, domain=domain)


def render(message: Message, sender: Address, to: Sequence[str]) -> EmailMessage:
    """The message; `to` are checked addresses (`checks.recipients`)."""
    mail = EmailMessage(_POLICY)
    mail["From"] = sender
    mail["To"] = ", ".join(to)
    mail["Subject"] = _subject(message)
    mail["Date"] = format_datetime(moment(message.ts_ms))
    mail["Message-ID"] = f"<{for_token(message.delivery_id)}@{sender.domain}>"
    if root := thread_of(message):
        mail["In-Reply-To"] = mail["References"] = f"<{root}@{sender.domain}>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(_text(message), cte="quoted-printable")
    mail.add_alternative(_html(message), subtype="html", cte="quoted-printable")
    mail.set_boundary(hashlib.sha256(message.delivery_id.encode("utf-8", "replace")).hexdigest()[:32])
    return mail


def to_bytes(mail: EmailMessage) -> bytes:
    """Return the mail as it is sent. Raises ValueError when its head has other lines than the headers that were set."""
    try:
        raw = mail.as_bytes()
    except MessageError as error:  # newer Pythons notice by themselves
        raise ValueError("a header can't be written") from error
    head = raw.partition(b"\r\n\r\n")[0]
    lines = [line for line in re.split(rb"\r\n|\r|\n", head) if not line.startswith((b" ", b"\t"))]
    if [line.partition(b":")[0] for line in lines] != [name.encode() for name in mail.keys()]:
        raise ValueError("the head is not what was set")
    return raw


def thread_of(message: Message) -> str | None:
    """What all mails of one outage refer to, its trip included; None when its beginning isn't known.

    Nobody ever sends the message of that name: each mail can be worded without a look at the earlier ones.
    """
    if not message.tells_of_a_breaker:
        return None
    if message.outage_ms is not None:
        return f"outage.{for_token(message.breaker_id)}.{message.ts_ms - message.outage_ms}"
    if message.prev == "closed":
        return f"outage.{for_token(message.breaker_id)}.{message.ts_ms}"
    return None


def _subject(message: Message) -> str:
    return for_header(f"[{project_of(message)}] {summary(message)}", SUBJECT_MAX)


def _rows(message: Message) -> list[tuple[str, str]]:
    rows = [*facts(message).items(), ("Time", rfc3339(message.ts_ms))]
    if message.tells_of_a_breaker:
        rows += [("Breaker", for_line(message.breaker_id, 64)), ("Transition", str(message.transition_seq))]
    return rows


def _text(message: Message) -> str:
    lines = [headline(message), "", explanation(message), ""]
    lines += [f"{label + ':':<12}{words}" for label, words in _rows(message)]
    if url := link(message.trace_url):
        lines += ["", f"Newest trace: {url}"]
    return "\n".join(lines) + "\n"


def _html(message: Message) -> str:
    rows = "\n".join(
        f'<tr><th align="left">{for_html(label)}</th><td>{for_html(words)}</td></tr>' for label, words in _rows(message)
    )
    url = link(message.trace_url)
    trace = f'<p><a href="{for_html(url)}">Newest trace</a></p>\n' if url else ""
    return (
        f"<!DOCTYPE html>\n<html><body>\n<h3>{for_html(headline(message))}</h3>\n"
        f"<p>{for_html(explanation(message))}</p>\n"
        f'<table cellpadding="4">\n'
        f"{rows}\n</table>\n{trace}</body></html>\n"
    )
