"""What may be shown of a receiver's own words: one short line, and nothing at all when it repeats a secret. Pure."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from breaker_actors.text.escaping import for_ascii

SHOWN_MAX = 160
_WHOLE, _RUN = 4, 8
_SIGNS = re.compile("[/:@?&=,+]")
"""A secret counts as repeated when all of it (from 4 characters on) or any 8 characters of it in a row are there."""


def excerpt(text: str, secrets: Iterable[str]) -> str:
    """The beginning of `text` in printable ASCII, or "" when it has anything of a secret in it."""
    plain = for_ascii(text)
    shown = plain if len(plain) <= SHOWN_MAX else plain[: SHOWN_MAX - 3] + "..."
    told = {shown.lower(), unquote(shown).lower()}
    return "" if any(_repeats(line, secret.lower()) for secret in secrets for line in told) else shown


def _repeats(line: str, secret: str) -> bool:
    if len(secret) >= _WHOLE and secret in line:
        return True
    return any(line[i : i + _RUN] in secret for i in range(len(line) - _RUN + 1))


def secrets_of(config: Mapping[str, Any]) -> list[str]:
    """All text in a channel's config, also what follows its first word ("Bearer ..."); of an address what follows its
    host, but for short words like "hooks" in its path; of a user name and password how HTTP Basic sends them."""
    basic = f"{config.get('username') or ''}:{config.get('password') or ''}"
    spelled = [b64encode(basic.encode()).decode().rstrip("=")] if config.get("username") else []
    return [*spelled, *(part for text in _texts(config) for part in _secret_parts(text))]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _pieces(address: str) -> list[str]:
    """Of an address of apprise all between its signs, as it stands and as it is meant, and user and password as HTTP
    Basic sends them."""
    rest = address.partition("://")[2]
    user, at, _ = rest.partition("@")
    login = [b64encode(unquote(user).encode()).decode().rstrip("=")] if at else []
    return [*login, unquote(address), *(shown for piece in _SIGNS.split(rest) for shown in (piece, unquote(piece)))]


def _secret_parts(text: str) -> list[str]:
    try:
        parts = urlsplit(text)
    except ValueError:
        return [text]
    if parts.scheme not in ("http", "https"):
        return [text, *text.split()[1:], *(_pieces(text) if "://" in text else [])]
    pieces = [piece for piece in (*parts.path.split("/"), parts.query, parts.fragment) if len(piece) >= _RUN]
    values = [value for _, value in parse_qsl(parts.query, keep_blank_values=True)]
    return [shown for piece in (*pieces, *values) for shown in (piece, unquote(piece))]
