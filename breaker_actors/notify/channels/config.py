"""What a channel's config must hold before anything is sent: the problems /test shows, and why an attempt is refused.

Pure: no look-up, no connection. A problem's text never repeats a value. Keys that a kind does not know hinder nothing,
and are told (semantics.md section 9: other kinds' configs accept any object).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

import httpx
import msgspec

from breaker_actors.notify.channels import alertmanager, apprise
from breaker_actors.notify.channels.address import address_text
from breaker_actors.notify.channels.pagerduty import EVENTS_URL
from breaker_actors.notify.channels.webhook import HOP_BY_HOP, OURS
from breaker_actors.store.rows import ChannelKind

HEADERS_MAX, HEADER_MAX, KEY_MAX, SECRET_MAX, RECIPIENTS_MAX = 32, 4096, 255, 1024, 50
LABELS_MAX, TOKEN_MAX = 32, 4096
PARSED_MAX = 512
"""Addresses whose parts are remembered: as many as deliveries are under way at once."""
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_VALUE = re.compile(r"[\x20-\x7e]*")
_KEY = re.compile(r"[\x21-\x7e]+")
_USER = re.compile(r"[^:\x00-\x1f\x7f]+")
"""RFC 7617: a colon ends the user's name."""
_PASSWORD = re.compile(r"[^\x00-\x1f\x7f]+")
_LOCAL = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*")
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")


WEB_PORTS = {"http": 80, "https": 443}
ADDRESS_KEYS: dict[ChannelKind, str] = {
    "slack": "webhook_url",
    "pagerduty": "events_url",
    "alertmanager": "url",
    "email": "to",
    "webhook": "url",
    "apprise": "url",
}


CONFIG_KEYS: dict[ChannelKind, tuple[str, ...]] = {
    "slack": ("webhook_url",),
    "pagerduty": ("routing_key", "severity", "events_url"),
    "alertmanager": ("url", "username", "password", "bearer_token", "labels", "generator_url"),
    "email": ("to",),
    "webhook": ("url", "secret", "headers"),
    "apprise": ("url",),
}
"""All that is read of a config; a key that is wanted comes first."""
NAME_SHOWN_MAX = 64


class Problem(msgspec.Struct, frozen=True, array_like=True):
    """`path` names the place ("config.headers.X-Team"), `message` says what is wrong with it."""

    path: str
    message: str


def check(kind: ChannelKind, config: Mapping[str, Any]) -> list[Problem]:
    """Everything that keeps this config from working, as far as it can be seen without sending."""
    return _CHECKS[kind](config)


def unknown_keys(kind: ChannelKind, config: Mapping[str, Any]) -> list[Problem]:
    """The keys of a config that nothing reads, each with the one that may be meant."""
    known = CONFIG_KEYS[kind]
    strange = [name[:NAME_SHOWN_MAX] for name in config if name not in known]
    return [Problem(f"config.{name}", f"is not read of a {kind} channel{_guess(name, known)}") for name in strange]


def _guess(name: str, known: Sequence[str]) -> str:
    """The known key that is like a name, or is part of it, or the other way round."""
    alike = get_close_matches(name.lower(), known, 1) or [key for key in known if name.lower() in key or key in name]
    return f"; did you mean {alike[0]}?" if alike else ""


def recipients(to: object) -> list[str]:
    """The addresses of an email channel, in ASCII, each once: a list, or text with commas between them.

    Raises ValueError, whose text says what is wrong and repeats no address.
    """
    if isinstance(to, str):
        to = [part for part in to.split(",") if part.strip()]
    if to is None or to == []:
        raise ValueError("is required")
    if not isinstance(to, list | tuple) or not all(isinstance(address, str) for address in to):
        raise ValueError("must be an e-mail address or a list of them")
    if len(to) > RECIPIENTS_MAX:
        raise ValueError(f"must be at most {RECIPIENTS_MAX} addresses")
    found = [mailbox(address.strip()) for address in to]
    if None in found:
        raise ValueError(f"item {found.index(None) + 1} is not an e-mail address")
    return list(dict.fromkeys(address for address in found if address is not None))


def mailbox(address: str) -> str | None:
    """local@domain with the domain in its ASCII form, or None."""
    local, _, domain = address.rpartition("@")
    if "=?" in local:  # `email` would decode it as an encoded word, line ends included
        return None
    if not _LOCAL.fullmatch(local) or len(local) > 64 or not all(c.isalnum() or c in "-." for c in domain):
        return None
    try:
        plain = httpx.URL(f"http://{domain}/").raw_host.decode()
    except (httpx.InvalidURL, ValueError):
        return None
    labels = plain.split(".")
    fits = len(plain) <= 253 and all(_LABEL.fullmatch(label) for label in labels) and not labels[-1].isdigit()
    return f"{local}@{plain}" if fits else None


def parse_address(text: object) -> httpx.URL:
    """An http(s) address. Raises ValueError saying what is wrong with it."""
    return _parsed(address_text(text))


@lru_cache(PARSED_MAX)
def _parsed(plain: str) -> httpx.URL:
    try:
        url = httpx.URL(plain)
    except (httpx.InvalidURL, ValueError, TypeError):
        raise ValueError("is not a valid address") from None
    if url.scheme not in ("http", "https"):
        raise ValueError("must be an http or https address")
    if not url.host or not (url.port is None or 0 < url.port < 65_536):
        raise ValueError("has no host, or no port that can be")
    if url.userinfo:
        raise ValueError("must not hold a user or password")
    return url


def stays(kind: ChannelKind, config: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Whether a config sends to where the one before sent, so that its secrets may be kept unseen: the same scheme,
    host and port of its address, whatever the path; no new domain among the recipients of mails."""
    key = ADDRESS_KEYS[kind]
    if config.get(key) == before.get(key):
        return True
    now, then = _destinations(kind, config), _destinations(kind, before)
    return now is not None and then is not None and now <= then


def _destinations(kind: ChannelKind, config: Mapping[str, Any]) -> frozenset[object] | None:
    """Where a config sends to; None where that can't be told."""
    try:
        if kind == "email":
            return frozenset(address.rpartition("@")[2].lower() for address in recipients(config.get("to")))
        address = config.get(ADDRESS_KEYS[kind])
        url = parse_address(address or EVENTS_URL if kind == "pagerduty" else address)
    except ValueError:
        return None
    return frozenset([(url.scheme, url.raw_host, url.port or WEB_PORTS[url.scheme])])


def _address(config: Mapping[str, Any], key: str) -> list[Problem]:
    try:
        parse_address(config.get(key))
    except ValueError as error:
        return [Problem(f"config.{key}", str(error))]
    return []


def _slack(config: Mapping[str, Any]) -> list[Problem]:
    return _address(config, "webhook_url")


def _pagerduty(config: Mapping[str, Any]) -> list[Problem]:
    problems = _text(config, "routing_key", KEY_MAX, _KEY, required=True)
    return problems + (_address(config, "events_url") if config.get("events_url") else [])


def _alertmanager(config: Mapping[str, Any]) -> list[Problem]:
    problems = _address(config, "url") + _text(config, "username", KEY_MAX, _USER)
    problems += _text(config, "password", SECRET_MAX, _PASSWORD) + _text(config, "bearer_token", TOKEN_MAX, _KEY)
    if config.get("password") and not config.get("username"):
        problems.append(Problem("config.username", "is required with a password"))
    if config.get("username") and config.get("bearer_token"):
        problems.append(Problem("config.bearer_token", "can't be beside a username: there is one Authorization header"))
    problems += _labels(config.get("labels"))
    return problems + (_address(config, "generator_url") if config.get("generator_url") else [])


def _labels(labels: object) -> list[Problem]:
    if labels is None:
        return []
    if not isinstance(labels, Mapping):
        return [Problem("config.labels", "must be an object of strings")]
    if len(labels) > LABELS_MAX:
        return [Problem("config.labels", f"must be at most {LABELS_MAX} labels")]
    return [problem for name, value in labels.items() if (problem := _label(str(name), value))]


def _label(name: str, value: object) -> Problem | None:
    if not alertmanager.LABEL_NAME.fullmatch(name):
        return Problem("config.labels", "has a name that is not allowed: letters, digits, _, no digit or __ first")
    path = f"config.labels.{name}"
    if name in alertmanager.OURS:
        return Problem(path, "is set by the service")
    if not isinstance(value, str):
        return Problem(path, "must be a string")
    if len(value) > alertmanager.VALUE_MAX:
        return Problem(path, f"must be at most {alertmanager.VALUE_MAX} characters")
    return None


def _email(config: Mapping[str, Any]) -> list[Problem]:
    try:
        recipients(config.get("to"))
    except ValueError as error:
        return [Problem("config.to", str(error))]
    return []


def _webhook(config: Mapping[str, Any]) -> list[Problem]:
    return _address(config, "url") + _text(config, "secret", SECRET_MAX) + _headers(config.get("headers"))


def _apprise(config: Mapping[str, Any]) -> list[Problem]:
    try:
        apprise.parse(config.get("url"))
    except ValueError as error:
        return [Problem("config.url", str(error))]
    return []


def _text(
    config: Mapping[str, Any], key: str, limit: int, form: re.Pattern[str] | None = None, required: bool = False
) -> list[Problem]:
    value, path = config.get(key), f"config.{key}"
    if value is None or value == "":
        return [Problem(path, "is required")] if required else []
    if not isinstance(value, str):
        return [Problem(path, "must be a string")]
    if len(value) > limit:
        return [Problem(path, f"must be at most {limit} characters")]
    return [Problem(path, "has characters that are not allowed")] if form and not form.fullmatch(value) else []


def _headers(headers: object) -> list[Problem]:
    if headers is None:
        return []
    if not isinstance(headers, Mapping):
        return [Problem("config.headers", "must be an object of strings")]
    if len(headers) > HEADERS_MAX:
        return [Problem("config.headers", f"must be at most {HEADERS_MAX} headers")]
    return [problem for name, value in headers.items() if (problem := _header(str(name), value))]


def _header(name: str, value: object) -> Problem | None:
    """One header: a token, not one of ours, and a value that can't end its line."""
    if not _TOKEN.fullmatch(name):
        return Problem("config.headers", "has a name that is not allowed")
    path = f"config.headers.{name}"
    if name.lower() in OURS | HOP_BY_HOP:
        return Problem(path, "is set by the service")
    if not isinstance(value, str):
        return Problem(path, "must be a string")
    if len(value) > HEADER_MAX or not _VALUE.fullmatch(value):
        return Problem(path, "has characters that are not allowed, or too many")
    return None


_CHECKS: dict[str, Callable[[Mapping[str, Any]], list[Problem]]] = {
    "slack": _slack,
    "pagerduty": _pagerduty,
    "alertmanager": _alertmanager,
    "email": _email,
    "webhook": _webhook,
    "apprise": _apprise,
}
