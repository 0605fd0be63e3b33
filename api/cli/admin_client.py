"""Clients of a running service over HTTP, and that for the operator's part: how it is doing, and evening out."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from api.cli.store_access import is_named, settings_of
from api.launch.bootstrap import FILE_NAME, Credentials, read
from api.launch.listening import check_listener, is_here
from breaker_actors.errors import BreakersError, Invalid, Unavailable
from breaker_actors.settings import fits_header, secret_of_file

TIMEOUT_S = 60.0
STATUS = "/v1/admin/status"
REBALANCE = "/v1/admin/rebalance"
NO_KEY = "the key or token has characters that none has: look for a line end or a blank before or behind it"


def key_given() -> str | None:
    """The key of BREAKERS_KEY, or of the file that BREAKERS_KEY_FILE names."""
    return secret_of_file("BREAKERS_KEY") or os.environ.get("BREAKERS_KEY")


def read_or_ask(data_dir: Path | None, given: Mapping[str, str | None], with_secret: bool) -> Credentials:
    """credentials.json of the data directory, for what is not `given`, by the variables that give it. `with_secret`: a
    key or token that is not the file's is to go to the service. Raises Invalid, which names what else would do, when it
    is not there, and where its address is not to be believed."""
    path = settings_of(data_dir).data_dir / FILE_NAME
    known = read(path)
    if known is None:
        missing = " and ".join(name for name, value in given.items() if not value)
        raise Invalid(f"there is no {path}: name the data directory of the service with --data-dir, or set {missing}")
    if not given["BREAKERS_URL"]:
        _check_address(known.base_url, path, data_dir, with_secret)
    return known


def _check_address(base_url: str, path: Path, data_dir: Path | None, with_secret: bool) -> None:
    """Raises Invalid before something is sent to another machine on the word of a file alone: where nobody named its
    data directory, which may have come with a checkout, or where a secret that is not the file's would go there."""
    from api.launch.join import is_served_here

    if is_here(base_url) or is_served_here(path.parent):
        return
    where = f"{path} says that the service is at {base_url}, which is not known to be this machine"
    if with_secret:
        raise Invalid(f"{where}: a key or token of elsewhere goes nowhere on the word of a file; set BREAKERS_URL")
    if not is_named(data_dir):
        yours = f"name the data directory with --data-dir {path.parent}, if it is yours, or set BREAKERS_URL"
        raise Invalid(f"{where}: nothing goes there by itself; {yours}")


def trusted_at(base_url: str) -> ssl.SSLContext:
    """Whom a client of this address believes. Nobody over plain HTTP: reading all authorities takes 20 ms, longer than
    most requests."""
    secure = base_url.lower().startswith("https://")
    return httpx.create_ssl_context() if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class ServiceClient:
    """Speaks to one service with a key. A context manager."""

    def __init__(self, base_url: str, key: str, insecure: bool = False) -> None:
        """`insecure`: the key may go over plain HTTP to another machine. Raises Invalid for what is no URL, and for
        what can't be a key, which the HTTP client would show in its own words."""
        if not fits_header(key):
            raise Invalid(NO_KEY)
        self._insecure = insecure
        if not base_url.lower().startswith(("http://", "https://")):
            plain = "" if "://" in base_url else f": did you mean http://{base_url}?"
            raise Invalid(f"{base_url!r} does not begin with http:// or https://{plain}")
        headers = {"Authorization": f"Bearer {key}"}
        # No proxy and no ~/.netrc: the key is for the service alone. SSL_CERT_FILE and SSL_CERT_DIR count.
        try:
            self._client = httpx.Client(
                base_url=base_url,
                headers=headers,
                timeout=TIMEOUT_S,
                trust_env=False,
                verify=trusted_at(base_url),
            )
        except httpx.InvalidURL as error:
            raise Invalid(f"{base_url!r} is no URL: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._client.close()

    @property
    def address(self) -> str:
        """Where it speaks to."""
        return str(self._client.base_url)

    def unanswered(self, error: Exception) -> Unavailable:
        """What to raise where no answer came; of a certificate that is not believed with what helps."""
        text = str(error) or type(error).__name__
        if "CERTIFICATE_VERIFY_FAILED" in text:
            text += "; where it is one of your own, set SSL_CERT_FILE to its file, or to that of its authority"
        return Unavailable(f"no answer from {self._client.base_url}: {text}")

    def odd(self) -> Unavailable:
        """What to raise for an answer that is not the service's."""
        return Unavailable(f"{self._client.base_url} answers something else than this service: is it another program?")

    def check(self) -> None:
        """Raises before a key would be shown to another user's program; see `check_listener`."""
        check_listener(str(self._client.base_url), {os.geteuid()}, self._insecure)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None, **query: Any) -> dict[str, Any]:
        """The object that answers; an empty one for 204. Raises BreakersError."""
        return self._send(method, path, json=body, params=query)

    def _send(self, method: str, path: str, **body: Any) -> dict[str, Any]:
        """The same of a body as the HTTP client takes it."""
        self.check()
        try:
            answer = self._client.request(method, path, **body)
            if answer.status_code == 204:
                return {}
            found = answer.json()
        except (httpx.HTTPError, ValueError, RecursionError) as error:
            raise self.unanswered(error) from None
        if answer.status_code not in (200, 201):
            raise self.refusal(answer.status_code, found)
        if not isinstance(found, dict):
            raise self.odd()
        return found

    key_from = ""
    """Where the key came from, as words."""

    def refusal(self, status: int, body: Any) -> BreakersError:
        """What to raise for an answer that is no success."""
        told = body.get("message", "") if isinstance(body, dict) else ""
        if status == 401 and self.key_from:
            told = (
                f"{told} The key is that of {self.key_from}: it was revoked, or is of another service; `breakers keys"
                " create` makes another one, which BREAKERS_KEY gives to commands"
            ).strip()
        return BreakersError(f"{self._client.base_url} answers {status}: {told}")


class Operator(ServiceClient):
    """Speaks to one service with an admin key."""

    given = False
    """Whether the key is that of BREAKERS_KEY."""

    @classmethod
    def of(cls, data_dir: Path | None, base_url: str | None = None, insecure: bool = False) -> Operator:
        """With what is given, BREAKERS_KEY included, and for the rest with credentials.json of the data dir. Raises
        Invalid."""
        key = key_given()
        if base_url and key:
            operator = cls(base_url, key, insecure)
        else:
            known = read_or_ask(data_dir, {"BREAKERS_URL": base_url, "BREAKERS_KEY": key}, with_secret=bool(key))
            operator = cls(base_url or known.base_url, key or known.admin_key, insecure)
        operator.given = bool(key)
        return operator

    def refusal(self, status: int, body: Any) -> BreakersError:
        if status == 403 and self.given:
            words = (
                "unset BREAKERS_KEY to take that of credentials.json, or make one: `breakers keys create --kind admin`"
            )
            said = f"{self._client.base_url} answers 403: this needs an admin key, and BREAKERS_KEY is another"
            return Invalid(f"{said}; {words}")
        return super().refusal(status, body)

    def status(self) -> dict[str, Any]:
        return self._ask("GET", STATUS)

    def rebalance(self, most: int) -> dict[str, Any]:
        """One step; to be repeated while anything is `left`."""
        found = self._ask("POST", REBALANCE, {"max": most})
        if not all(isinstance(found.get(field), int) for field in ("moved", "left")):
            raise self.odd()
        return found
