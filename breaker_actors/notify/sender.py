"""The one `Sender`: checks a channel's config, renders, sends over HTTP or SMTP, and says what came of it."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence

import httpx
import msgspec
import structlog

from breaker_actors.clock import Clock
from breaker_actors.notify.channels import alertmanager, apprise, pagerduty, slack, webhook
from breaker_actors.notify.channels import email as mail
from breaker_actors.notify.channels.config import check, parse_address, recipients
from breaker_actors.notify.egress.apprise import Courier
from breaker_actors.notify.egress.guarded_backend import Resolve
from breaker_actors.notify.egress.http import Poster, trusted
from breaker_actors.notify.egress.http_outcome import judge
from breaker_actors.notify.egress.smtp import Mailer
from breaker_actors.notify.model import Attempt, Destination, Message
from breaker_actors.settings import Settings

NAMES = {"pagerduty": "PagerDuty", "alertmanager": "Alertmanager"}
log = structlog.get_logger()


class ChannelSender:
    """Sends to every kind of channel; one per process, as it holds the connections."""

    def __init__(self, poster: Poster, mailer: Mailer, courier: Courier, clock: Clock, renewal_ms: int) -> None:
        self._poster = poster
        self._mailer = mailer
        self._courier = courier
        self._clock = clock
        self._renewal_ms = renewal_ms

    async def send(self, to: Destination, message: Message) -> Attempt:
        """One attempt. Never raises but for cancellation: what went wrong in here is an outcome, too."""
        return await self._tried(to, lambda: self._send(to, message))

    async def examine(self, org_id: str, many: Sequence[Destination]) -> list[str | None]:
        """What only apprise can tell of addresses of its own; nothing is sent. "" of other kinds, and of a config that
        has problems already; None of what could not be found out. Raises Overloaded."""
        asked = [n for n, to in enumerate(many) if to.kind == "apprise" and not check(to.kind, to.config)]
        found: list[str | None] = [""] * len(many)
        if asked:
            for n, problem in zip(asked, await self._courier.examine(org_id, [many[n] for n in asked]), strict=True):
                found[n] = problem
        return found

    async def renew(self, to: Destination, trips: Sequence[Message], now_ms: int) -> Attempt:
        """One attempt to say that all of these stand; as `send`."""
        return await self._tried(to, lambda: self._alert(to, trips, now_ms))

    async def _tried(self, to: Destination, attempt: Callable[[], Awaitable[Attempt]]) -> Attempt:
        try:
            if problems := check(to.kind, to.config):
                return Attempt(result="refused", error=f"{problems[0].path} {problems[0].message}")
            return await attempt()
        except Exception as error:  # an attempt must not stop the deliveries behind it
            log.error("notify_failed", channel_id=to.channel_id, kind=to.kind, error=type(error).__name__)
            return Attempt(result="retry", error=f"internal error ({type(error).__name__})")

    async def _send(self, to: Destination, message: Message) -> Attempt:
        match to.kind:
            case "slack":
                body = msgspec.json.encode(slack.render(message))
                return await self._post(to, to.config["webhook_url"], {}, body)
            case "pagerduty" | "alertmanager" if message.kind == "mute_ending":
                return Attempt(result="refused", error=f"{NAMES[to.kind]} is not warned of the end of a mute")
            case "pagerduty" | "alertmanager" if message.kind == "observed":
                return Attempt(result="refused", error=f"{NAMES[to.kind]} is not told of what callers don't see")
            case "alertmanager":
                return await self._alert(to, [message], self._clock.now_ms())
            case "pagerduty":
                body = msgspec.json.encode(pagerduty.render(message, to.config))
                return await self._post(to, to.config.get("events_url") or pagerduty.EVENTS_URL, {}, body)
            case "webhook":
                body = webhook.render(message)
                headers = webhook.headers(to.config, message, body, self._clock.now_ms())
                return await self._post(to, to.config["url"], headers, body)
            case "email":
                return await self._mail(to, message)
            case "apprise":
                return await self._courier.send(to, apprise.render(message), self._clock.now_ms())

    async def _alert(self, to: Destination, messages: Sequence[Message], now_ms: int) -> Attempt:
        alerts = [alertmanager.render(message, to.config, now_ms, self._renewal_ms) for message in messages]
        url = alertmanager.endpoint(parse_address(to.config["url"]))
        return await self._post(to, url, alertmanager.headers(to.config), msgspec.json.encode(alerts))

    async def _post(self, to: Destination, address: object, headers: Mapping[str, str], body: bytes) -> Attempt:
        url = address if isinstance(address, httpx.URL) else parse_address(address)
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
        await self._courier.close()
        await self._poster.close()


def open_sender(
    settings: Settings, clock: Clock, *, tls: ssl.SSLContext | None = None, resolve: Resolve | None = None
) -> ChannelSender:
    """The sender of this process. `tls`: whom to trust, if not `trusted()`; `resolve`: for tests."""
    context = tls or trusted()
    poster = Poster(settings.notify_timeout_ms, settings.allow_private_destinations, context, resolve)
    courier = Courier(poster, settings.notify_timeout_ms)
    return ChannelSender(poster, Mailer(settings, context), courier, clock, settings.alert_renewal_ms)
