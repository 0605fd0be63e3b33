"""The one `Sender`: checks a channel's config, renders, sends over HTTP or SMTP, and says what came of it."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

import httpx
import msgspec
import structlog

from breaker_actors.clock import Clock
from breaker_actors.notify.channels import email as mail
from breaker_actors.notify.channels import pagerduty, slack, webhook
from breaker_actors.notify.channels.config import check, parse_address, recipients
from breaker_actors.notify.egress.guarded_backend import Resolve
from breaker_actors.notify.egress.http import Poster, trusted
from breaker_actors.notify.egress.http_outcome import judge
from breaker_actors.notify.egress.smtp import Mailer
from breaker_actors.notify.model import Attempt, Destination, Message
from breaker_actors.settings import Settings

log = structlog.get_logger()


class ChannelSender:
    """Sends to every kind of channel; one per process, as it holds the connections."""

    def __init__(self, poster: Poster, mailer: Mailer, clock: Clock) -> None:
        self._poster = poster
        self._mailer = mailer
        self._clock = clock

    async def send(self, to: Destination, message: Message) -> Attempt:
        """One attempt. Never raises but for cancellation: what went wrong in here is an outcome, too."""
        try:
            return await self._send(to, message)
        except Exception as error:  # an attempt must not stop the deliveries behind it
            log.error("notify_failed", channel_id=to.channel_id, kind=to.kind, error=type(error).__name__)
            return Attempt(result="retry", error=f"internal error ({type(error).__name__})")

    async def _send(self, to: Destination, message: Message) -> Attempt:
        if problems := check(to.kind, to.config):
            return Attempt(result="refused", error=f"{problems[0].path} {problems[0].message}")
        match to.kind:
            case "slack":
                body = msgspec.json.encode(slack.render(message))
                return await self._post(to, to.config["webhook_url"], {}, body)
            case "pagerduty" if message.kind == "mute_ending":
                return Attempt(result="refused", error="PagerDuty is not warned of the end of a mute")
            case "pagerduty" if message.kind == "observed":
                return Attempt(result="refused", error="PagerDuty is not told of what callers don't see")
            case "pagerduty":
                body = msgspec.json.encode(pagerduty.render(message, to.config))
                return await self._post(to, to.config.get("events_url") or pagerduty.EVENTS_URL, {}, body)
            case "webhook":
                body = webhook.render(message)
                headers = webhook.headers(to.config, message, body, self._clock.now_ms())
                return await self._post(to, to.config["url"], headers, body)
            case "email":
                return await self._mail(to, message)

    async def _post(self, to: Destination, address: str, headers: Mapping[str, str], body: bytes) -> Attempt:
        url: httpx.URL = parse_address(address)
        answer = await self._poster.post(url, headers, body, to.org_id)
        return answer if isinstance(answer, Attempt) else judge(to, answer, self._clock.now_ms())

    async def _mail(self, to: Destination, message: Message) -> Attempt:
        sender = self._mailer.sender()
        if isinstance(sender, Attempt):
            return sender
        addresses = recipients(to.config["to"])
        try:
            raw = mail.to_bytes(mail.render(message, sender, addresses))
        except ValueError:  # never again another outcome: it is not worth an hour of retries
            return Attempt(result="refused", error="the mail can't be written")
        return await self._mailer.send(sender, addresses, raw)

    async def close(self) -> None:
        await self._poster.close()


def open_sender(
    settings: Settings, clock: Clock, *, tls: ssl.SSLContext | None = None, resolve: Resolve | None = None
) -> ChannelSender:
    """The sender of this process. `tls`: whom to trust, if not `trusted()`; `resolve`: for tests."""
    context = tls or trusted()
    poster = Poster(settings.notify_timeout_ms, settings.allow_private_destinations, context, resolve)
    return ChannelSender(poster, Mailer(settings, context), clock)
