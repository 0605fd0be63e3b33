"""One e-mail over SMTP, bounded in time. The server comes from the settings, so the destination policy leaves it alone.

A connection per mail: mails are rare, and an idle connection to a mail server does not live long anyway.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Mapping, Sequence
from email.headerregistry import Address
from typing import Literal, cast

import aiosmtplib
from aiosmtplib.response import SMTPResponse

from breaker_actors.notify.channels.email import sender_of
from breaker_actors.notify.egress.excerpt import excerpt
from breaker_actors.notify.egress.network_errors import network_words
from breaker_actors.notify.model import Attempt
from breaker_actors.settings import Settings

NAMED_MAX = 3
"""Refused recipients that an error names; the rest are counted."""


NO_SERVER = "no mail server is set (a start with BREAKERS_SMTP_HOST mends it)"
NO_STARTTLS = "; BREAKERS_SMTP_TLS=none sends in the clear, tls is for a port of its own (465)"


class Mailer:
    """The way to the mail server of the settings."""

    def __init__(self, settings: Settings, tls: ssl.SSLContext) -> None:
        self._settings = settings
        self._timeout_s = settings.notify_timeout_ms / 1_000
        self._tls = tls
        password = settings.smtp_password
        self._password = password.get_secret_value() if password is not None else ""
        self._secrets = _spellings(settings.smtp_username or "", self._password)

    def sender(self) -> Address | Attempt:
        """The From address, or why nothing can be sent. What another start may mend is tried again."""
        if not self._settings.smtp_host:
            return Attempt(result="retry", error=NO_SERVER)
        try:
            return sender_of(self._settings.smtp_from)
        except ValueError:
            return Attempt(result="retry", error="the sender's address is not one (BREAKERS_SMTP_FROM)")

    async def send(self, sender: Address, to: Sequence[str], mail: bytes) -> Attempt:
        """The outcome. Once the server has taken the mail it is sent, whatever the good-bye brings."""
        try:
            return await self._talk(self._client(sender), sender, to, mail)
        except ValueError:  # a host name that can be none, say
            return Attempt(result="retry", error="the mail server's settings are not valid (BREAKERS_SMTP_HOST)")

    async def _talk(self, client: aiosmtplib.SMTP, sender: Address, to: Sequence[str], mail: bytes) -> Attempt:
        taken: Mapping[str, SMTPResponse] | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                await client.connect()
                taken, _ = await client.sendmail(sender.addr_spec, list(to), mail)
                await client.quit()
        except (OSError, aiosmtplib.SMTPException) as error:  # OSError: TimeoutError, too
            if taken is None:
                return self._failed(error)
        finally:
            _drop(client)
        return self._taken(taken or {}, len(to))

    def _client(self, sender: Address) -> aiosmtplib.SMTP:
        settings = self._settings
        return aiosmtplib.SMTP(
            hostname=settings.smtp_host,
            port=settings.smtp_port,
            username=settings.smtp_username or None,
            password=self._password if settings.smtp_username else None,
            local_hostname=sender.domain,
            timeout=self._timeout_s,
            use_tls=settings.smtp_tls == "tls",
            start_tls=settings.smtp_tls == "starttls",
            tls_context=self._tls,
        )

    def _taken(self, refused: Mapping[str, SMTPResponse], asked: int) -> Attempt:
        """Sent to some at least. The others are told about and not tried again: the some would get it twice."""
        if not refused:
            return Attempt(result="sent", status=250)
        error = _refusals([(who, reply.code) for who, reply in refused.items()], asked)
        return Attempt(result="sent", status=250, error=error)

    def _failed(self, error: OSError | aiosmtplib.SMTPException) -> Attempt:
        match error:
            case aiosmtplib.SMTPRecipientsRefused():
                replies = [(r.recipient, r.code) for r in error.recipients]
                code = min(code for _, code in replies)
                return Attempt(result=_final(code), status=_code(code), error=_refusals(replies, len(replies)))
            case aiosmtplib.SMTPResponseException():
                return Attempt(result=_final(error.code), status=_code(error.code), error=self._reply(error))
            case OSError():  # also aiosmtplib's: connect, disconnect, timeout
                return Attempt(result="retry", error=f"mail server: {network_words(error)}")
            case aiosmtplib.SMTPException():  # it lacks STARTTLS, or a login we know
                words = excerpt(error.message, self._secrets)
                hint = NO_STARTTLS if "STARTTLS" in words else ""
                return Attempt(result="refused", error=f"mail server: {words}{hint}")

    def _reply(self, error: aiosmtplib.SMTPResponseException) -> str:
        where = "refused the login" if isinstance(error, aiosmtplib.SMTPAuthenticationError) else "answered"
        words = excerpt(error.message, self._secrets)
        return f"mail server {where}: {error.code} {words}".rstrip()


def _refusals(replies: Sequence[tuple[str, int]], asked: int) -> str:
    named = ", ".join(f"{who} ({code})" for who, code in replies[:NAMED_MAX])
    more = f" and {len(replies) - NAMED_MAX} more" if len(replies) > NAMED_MAX else ""
    return f"mail server refused {len(replies)} of {asked} recipients: {named}{more}"


def _final(code: int) -> Literal["retry", "refused"]:
    """A 5xx reply is final (RFC 5321, 4.2.1)."""
    return "refused" if 500 <= code < 600 else "retry"


def _code(code: int) -> int | None:
    """aiosmtplib says -1 of what is no SMTP reply."""
    return code if code > 0 else None


def _spellings(username: str, password: str) -> list[str]:
    """The login in the forms it takes on the wire, which a server may repeat when it doesn't understand them."""
    whole = f"\0{username}\0{password}"
    plain = [text for text in (username, password) if text]
    return plain + [base64.b64encode(text.encode()).decode() for text in (*plain, whole)] if plain else []


def _drop(client: aiosmtplib.SMTP) -> None:
    """Lets go of a connection that a good-bye has not ended, without waiting for the other side."""
    transport = client.transport
    client.close()
    if transport is not None:
        cast(asyncio.WriteTransport, transport).abort()
