"""One POST over HTTP, bounded in time and in what is read.

On httpcore, the engine below httpx: it takes a network of our own, which is where the destination policy lives; and a
client above it would log every address, keep cookies of one channel for another, and look for proxies.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import cast

import httpcore
import httpx

from breaker_actors.notify.egress.connections import Connections
from breaker_actors.notify.egress.guarded_backend import (
    BoundedStream,
    DestinationRefused,
    GuardedBackend,
    NameRefused,
    Resolve,
    time_limit,
)
from breaker_actors.notify.egress.http_outcome import BODY_MAX, Answer
from breaker_actors.notify.egress.network_errors import network_words
from breaker_actors.notify.egress.policy import NAME_REFUSED, REFUSED, permits_address
from breaker_actors.notify.egress.resolver import Resolver, asked_by
from breaker_actors.notify.limits import Pace
from breaker_actors.notify.model import Attempt

CONNECTIONS = Pace().total_max
"""As many as there may be deliveries, or tests in a replica: a pool with fewer would make those to healthy receivers
wait for hanging ones."""
BODY_S = 1.0
"""What an answer says beside its status has to come within this time after it; the status counts in any case. Whoever
holds a body back for longer would keep a place that other deliveries wait for."""
IDLE_CONNECTIONS, IDLE_S = 128, 15.0
"""Connections kept for the next request, and for how long: of 32 channels as many as each may use at a time."""
AGENT = {"User-Agent": "breaker-actors", "Accept-Encoding": "identity", "Content-Type": "application/json"}


def trusted() -> ssl.SSLContext:
    """Certificates are held against the bundled authorities and the system's (SSL_CERT_FILE adds one's own)."""
    context = httpx.create_ssl_context(trust_env=False)
    context.load_default_certs()
    return context


class Poster:
    """The process's HTTP connections for notifications. `resolve` is for tests; the system's resolver otherwise."""

    def __init__(
        self, timeout_ms: int, allow_private: bool, tls: ssl.SSLContext | None = None, resolve: Resolve | None = None
    ) -> None:
        self._timeout_s = timeout_ms / 1_000
        self._resolver = Resolver(lambda address: permits_address(address, allow_private))
        backend = GuardedBackend.for_policy(resolve or self._resolver, allow_private)
        self._pool = Connections(
            tls or trusted(), backend, total_max=CONNECTIONS, idle_max=IDLE_CONNECTIONS, idle_s=IDLE_S
        )
        # At debug level it writes the headers of answers, in which a receiver may repeat what it was sent.
        logging.getLogger("httpcore").setLevel(logging.INFO)

    async def post(self, url: httpx.URL, headers: Mapping[str, str], body: bytes, org_id: str = "") -> Answer | Attempt:
        """As `request`, of one that we made."""
        return await self.request("POST", url, AGENT | dict(headers), body, org_id)

    async def request(
        self,
        method: str,
        url: httpx.URL,
        headers: Mapping[str, str],
        body: bytes,
        org_id: str = "",
        *,
        body_max: int = BODY_MAX,
    ) -> Answer | Attempt:
        """The answer, or the attempt's outcome when there was none. The time limit is over all of it. `org_id`: whose
        look-up of a name, and whose connection it is.

        A status that came in time counts, even when the rest of its answer did not, for which there are BODY_S.
        """
        answer = Answer(body_max=body_max)
        try:
            with time_limit(self._timeout_s), asked_by(org_id):
                await self._exchange(method, url, dict(headers), body, answer, org_id)
        except DestinationRefused:  # by a setting of this service: the next start may have another
            return Attempt(result="retry", error=REFUSED)
        except NameRefused:
            return Attempt(result="retry", error=NAME_REFUSED)
        except httpcore.LocalProtocolError:
            return Attempt(result="refused", error="its headers can't be sent")
        except httpcore.TimeoutException:
            if not answer.status:
                return Attempt(result="retry", error=f"no answer within {self._timeout_s:g} s")
        except httpcore.RemoteProtocolError:
            if not answer.status:
                return Attempt(result="retry", error="the answer was cut short or is not HTTP")
        except (httpcore.NetworkError, OSError) as error:
            if not answer.status:
                return Attempt(result="retry", error=network_words(error))
        return answer

    async def _exchange(
        self, method: str, url: httpx.URL, headers: dict[str, str], body: bytes, answer: Answer, org_id: str
    ) -> None:
        # httpcore would leave the brackets of an IPv6 address out
        headers = {"Host": url.netloc.decode("ascii")} | headers
        target = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        # no limit on the wait for a place: there are as many as deliveries or tests, which organisations share
        sent = self._pool.stream(method, target, headers=_encoded(headers), content=body, org_id=org_id)
        async with sent as response:
            answer.status = response.status
            answer.headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers]
            answer.retry_after = _header(response.headers, b"retry-after")
            if isinstance(stream := response.extensions["network_stream"], BoundedStream):
                stream.end_head(answer.body_max)
            with time_limit(BODY_S):
                await _read_body(response, answer)

    async def close(self) -> None:
        await self._pool.close()
        self._resolver.close()


async def _read_body(response: httpcore.Response, answer: Answer) -> None:
    async with aclosing(cast(AsyncGenerator[bytes], response.aiter_stream())) as chunks:
        async for chunk in chunks:
            answer.body = (answer.body + chunk)[: answer.body_max]
            if len(answer.body) >= answer.body_max:
                break


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """As they go on the wire. Raises httpcore.LocalProtocolError of what can't."""
    try:
        return [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers.items()]
    except UnicodeEncodeError:
        raise httpcore.LocalProtocolError from None


def _header(headers: list[tuple[bytes, bytes]], name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in headers if key.lower() == name), None)
