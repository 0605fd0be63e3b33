"""Real receivers of notifications on loopback: plain HTTP(S), Slack- and PagerDuty-shaped, and a mail server.

Each runs in the event loop it is opened in (`async with WebReceiver() as hook`), listens on a free port of 127.0.0.1
(or on `hook.port`, set before: a receiver that comes back) and keeps what it got. What an HTTP receiver answers is a
script: `hook.script = [Reply(500), Reply(200)]`; when it is used up, `hook.usual` is the answer. None of this imports
the sending side.
"""

from __future__ import annotations

import asyncio
import contextlib
import email
import email.policy
import functools
import hashlib
import hmac
import json
import ssl
import warnings
from dataclasses import dataclass, field
from email.message import EmailMessage
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import h11
import jsonschema
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

SCHEMAS = Path(__file__).with_name("schemas")
CHUNK = b"x" * 65_536


@dataclass(frozen=True)
class Reply:
    """One answer. `how`: whole; or what a bad receiver does: "hang" never answers, "cut" closes instead, "drip" sends
    its body a byte at a time without end, "late" holds it back, "drip_head" drips its headers, "flood" sends a body
    without end, "early" informational answers without end instead of its own, "echo" (after `status`) everything it
    was sent."""

    status: int = 200
    body: bytes = b"ok"
    headers: tuple[tuple[str, str], ...] = ()
    how: Literal["whole", "hang", "cut", "drip", "late", "drip_head", "flood", "early", "echo"] = "whole"


@dataclass(frozen=True)
class Request:
    """What came in; header names in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def is_signed_with(self, secret: str) -> bool:
        """Whether the signature is the one that semantics.md section 6 asks for."""
        signed = self.headers["x-eb-timestamp"].encode() + b"." + self.body
        mac = hmac.new(secret.encode("utf-8"), signed, hashlib.sha256).hexdigest()
        return hmac.compare_digest(f"v1={mac}", self.headers["x-eb-signature"])


class _Listener:
    """A server on a free port that is closed, with all its connections, at the end of the `async with`."""

    host = "127.0.0.1"
    port = 0

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None

    async def _listen(self) -> asyncio.Server:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        self._server = await self._listen()
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()


class WebReceiver(_Listener):
    """An HTTP/1.1 server, or HTTPS with a server-side `tls` context."""

    def __init__(self, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__()
        self.host, self.port = host, port
        self.script: list[Reply] = []
        self.usual = Reply()
        self.requests: list[Request] = []
        self.connections = 0
        self.arrived = asyncio.Event()
        self._tls = tls
        self._open: set[asyncio.Task[None]] = set()

    def url(self, path: str = "/hook", host: str | None = None) -> str:
        return f"{'https' if self._tls else 'http'}://{host or self.host}:{self.port}{path}"

    def by_key(self) -> dict[str, list[Request]]:
        """Requests by Idempotency-Key: how often each delivery was tried here."""
        found: dict[str, list[Request]] = {}
        for request in self.requests:
            found.setdefault(request.headers.get("idempotency-key", ""), []).append(request)
        return found

    def answer(self, request: Request) -> Reply:
        """The next line of the script."""
        return self.script.pop(0) if self.script else self.usual

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._connected, self.host, self.port, ssl=self._tls)

    async def __aexit__(self, *error: Any) -> None:
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await super().__aexit__(*error)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        self.connections += 1
        try:
            await self._converse(_Wire(reader, writer))
        except (OSError, h11.RemoteProtocolError, asyncio.CancelledError):
            pass  # the client left, or the test is over
        finally:
            self._open.discard(task)
            writer.transport.abort()

    async def _converse(self, wire: _Wire) -> None:
        while (request := await wire.request()) is not None:
            self.requests.append(request)
            self.arrived.set()
            if not await wire.reply(self.answer(request), request):
                return


class _Wire:
    """One connection of a WebReceiver."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.SERVER)

    async def request(self) -> Request | None:
        """The next whole request; None at the end of the connection."""
        head: h11.Request | None = None
        body = b""
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(65_536))
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                headers = {name.decode(): value.decode("latin-1") for name, value in head.headers}
                return Request(head.method.decode(), head.target.decode(), headers, bytes(body))
            else:
                return None

    async def reply(self, reply: Reply, request: Request) -> bool:
        """Answers; True when the connection can take another request."""
        match reply.how:
            case "whole":
                await self._send(reply, reply.body)
                self._http.start_next_cycle()
                return True
            case "echo":
                told = "\n".join([request.target, *(f"{n}: {v}" for n, v in request.headers.items())])
                sent = json.dumps({"message": f"{told} {request.body.decode()}"}).encode()
                seen = tuple((f"X-Echo-{n}", v) for n, v in request.headers.items())
                await self._send(Reply(reply.status, headers=(*seen, ("X-Echo-Target", request.target))), sent)
            case "hang":
                await self._reader.read()
            case "drip_head":
                await self._endless(b"HTTP/1.1 200 OK\r\n", b"x: y\r\n", pause_s=0.01)
            case "drip":
                head = f"HTTP/1.1 {reply.status} X\r\nContent-Type: text/plain\r\n\r\n".encode()
                await self._endless(head, b".", pause_s=0.01)
            case "late":
                self._writer.write(f"HTTP/1.1 {reply.status} X\r\nContent-Length: 10\r\n\r\n".encode())
                await self._reader.read()
            case "early":
                await self._endless(b"", b"HTTP/1.1 100 \r\n\r\n" * 1_000, pause_s=0)
            case "flood":
                await self._endless(f"HTTP/1.1 {reply.status} X\r\n\r\n".encode(), CHUNK, pause_s=0)
            case "cut":
                pass
        return False

    async def _send(self, reply: Reply, body: bytes) -> None:
        headers = [*reply.headers, ("Content-Length", str(len(body)))]
        events: list[h11.Event] = [
            h11.Response(status_code=reply.status, headers=headers),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ]
        for event in events:
            self._writer.write(self._http.send(event) or b"")
        await self._writer.drain()

    async def _endless(self, head: bytes, piece: bytes, pause_s: float) -> None:
        """Ends with an OSError when the client has gone, or with the receiver."""
        self._writer.write(head)
        while True:
            self._writer.write(piece)
            await self._writer.drain()
            await asyncio.sleep(pause_s)


def problems_of(schema_name: str, body: bytes) -> list[str]:
    """What a body breaks of a schema in tests/support/schemas."""
    try:
        value = json.loads(body)
    except ValueError:
        return ["not JSON"]
    return [f"{error.json_path}: {error.message}" for error in _validator(schema_name).iter_errors(value)]


@functools.cache
def _validator(schema_name: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((SCHEMAS / f"{schema_name}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


class SlackReceiver(WebReceiver):
    """Answers like an incoming webhook: `ok`, or 400 `invalid_payload` for what Slack would not show.

    Texts that were shown are in `texts`; what was wrong, in `problems`.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(tls)
        self.problems: list[str] = []
        self.texts: list[str] = []

    def answer(self, request: Request) -> Reply:
        if self.script:
            return self.script.pop(0)
        if found := problems_of("slack_message", request.body):
            self.problems += found
            return Reply(400, b"invalid_payload")
        self.texts.append(request.json["text"])
        return Reply(200, b"ok")


class PagerDutyReceiver(WebReceiver):
    """Answers like the Events API v2 and keeps the state of each alert: `alerts` holds the open ones by dedup_key."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(tls)
        self.problems: list[str] = []
        self.alerts: dict[str, list[dict[str, Any]]] = {}
        self.resolved: list[str] = []

    def answer(self, request: Request) -> Reply:
        if self.script:
            return self.script.pop(0)
        if found := problems_of("pagerduty_event", request.body):
            self.problems += found
            return _json(400, status="invalid event", message="Event object is invalid", errors=found)
        event = request.json
        key = event["dedup_key"]
        if event["event_action"] == "trigger":
            self.alerts.setdefault(key, []).append(event["payload"])
        elif self.alerts.pop(key, None) is not None:
            self.resolved.append(key)
        return _json(202, status="success", message="Event processed", dedup_key=key)


def _json(code: int, **body: Any) -> Reply:
    return Reply(code, json.dumps(body).encode(), (("Content-Type", "application/json"),))


@dataclass
class Mail:
    """One accepted mail, with the envelope it came in."""

    sender: str
    to: list[str]
    raw: bytes

    @property
    def message(self) -> EmailMessage:
        return email.message_from_bytes(self.raw, policy=email.policy.default)


@dataclass
class MailReceiver(_Listener):
    """An SMTP server. `replies`: what it says to a recipient, or, under "DATA", to a mail, instead of taking it.

    `mode`: "none", "starttls" (refuses mail before it) or "tls"; `login` asks for that user and password. `how`: "hang"
    says nothing at all, not even a greeting. Without `quits` it never answers a good-bye.
    """

    mode: Literal["none", "starttls", "tls"] = "none"
    tls: ssl.SSLContext | None = None
    login: tuple[str, str] | None = None
    replies: dict[str, str] = field(default_factory=dict)
    how: Literal["whole", "hang"] = "whole"
    quits: bool = True
    mails: list[Mail] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._sessions: list[SMTP] = []
        self._idle: set[asyncio.StreamWriter] = set()

    async def _listen(self) -> asyncio.Server:
        if self.how == "hang":
            return await asyncio.start_server(self._say_nothing, self.host, self.port)
        tls = self.tls if self.mode == "tls" else None
        return await asyncio.get_running_loop().create_server(self._session, self.host, self.port, ssl=tls)

    async def _say_nothing(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._idle.add(writer)
        with contextlib.suppress(OSError):
            await reader.read()
        writer.transport.abort()

    async def __aexit__(self, *error: Any) -> None:
        for session in self._sessions:
            if session.transport is not None:
                session.transport.abort()  # type: ignore[attr-defined]
        for writer in self._idle:
            writer.transport.abort()
        await asyncio.sleep(0)
        await super().__aexit__(*error)

    def _session(self) -> SMTP:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a login without TLS is what one of the tests is about
            session = SMTP(
                self,
                hostname="mail.test",
                tls_context=self.tls if self.mode == "starttls" else None,
                require_starttls=self.mode == "starttls",
                auth_required=self.login is not None,
                auth_require_tls=self.mode == "starttls",
                authenticator=self._authenticate,
                loop=asyncio.get_running_loop(),
            )
        self._sessions.append(session)
        return session

    def _authenticate(
        self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any
    ) -> AuthResult:
        assert isinstance(data, LoginPassword)
        known = self.login is not None and (data.login, data.password) == tuple(part.encode() for part in self.login)
        return AuthResult(success=known, handled=False)

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if refusal := self.replies.get(address):
            return refusal
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_QUIT(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        if not self.quits:
            await asyncio.Event().wait()
        return "221 Bye"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        if refusal := self.replies.get("DATA"):
            return refusal
        assert isinstance(envelope.content, bytes)
        self.mails.append(Mail(str(envelope.mail_from), list(envelope.rcpt_tos), envelope.content))
        return "250 OK"
