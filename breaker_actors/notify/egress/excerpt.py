"""What may be shown of a receiver's own words: one short line, and nothing at all when it repeats a secret. Pure."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from breaker_actors.text.escaping import for_ascii

SHOWN_MAX = 160
LOOKED_MAX = 1_024
"""Characters of a receiver's words that are looked at; the rest is left out."""
CONFIG_MAX = 4_096
"""Bytes of all text in a config and of its login, beyond which nothing of an answer is shown: each answer costs time
by them."""
_WHOLE, _RUN = 4, 8
"""A secret counts as repeated when all of it (from 4 characters on) or any 8 characters of it in a row are there."""
_SIGNS = re.compile("[/:@?&=,+]")


def shown_of(text: str, config: Mapping[str, Any]) -> str:
    """What may be shown of the words of a config's receiver; "" for a config of more than CONFIG_MAX bytes.

    For each of these bytes there are at most ten comparisons, whatever the config and the words are."""
    if not text or sum(map(_bytes, (*_texts(config), _login(config)))) > CONFIG_MAX:
        return ""
    return excerpt(text, secrets_of(config))


def excerpt(text: str, secrets: Iterable[str]) -> str:
    """The beginning of `text` in printable ASCII, or "" when it has anything of a secret in it: as it stands, with
    percent signs, from back to front, or several of these."""
    plain = for_ascii(text[:LOOKED_MAX])
    shown = plain if len(plain) <= SHOWN_MAX else plain[: SHOWN_MAX - 3] + "..."
    return "" if _repeats(_readings(shown), {secret.casefold() for secret in secrets}) else shown


def _readings(shown: str) -> set[str]:
    """At most 6: each way, each with its percent signs and without, and those from back to front."""
    read = {line.casefold() for way in (shown, shown[::-1]) for line in (way, unquote(way))}
    return read | {line[::-1] for line in read}


def _repeats(lines: Collection[str], secrets: Iterable[str]) -> bool:
    runs = {line[i : i + _RUN] for line in lines for i in range(len(line) - _RUN + 1)}
    for secret in secrets:
        if len(secret) >= _RUN:
            if any(secret[i : i + _RUN] in runs for i in range(len(secret) - _RUN + 1)):
                return True
        elif len(secret) >= _WHOLE and any(secret in line for line in lines):
            return True
    return False


def secrets_of(config: Mapping[str, Any]) -> list[str]:
    """All text in a channel's config, also what follows its first word ("Bearer ..."); of an address what follows its
    host, but for short words like "hooks" in its path; of a user name and password how HTTP Basic sends them."""
    login = _login(config)
    spelled = [_basic(login)] if login else []
    return [*spelled, *(part for text in _texts(config) for part in _secret_parts(text))]


def _login(config: Mapping[str, Any]) -> str:
    """User name and password as HTTP Basic puts them together; "" without a name."""
    return f"{config['username']}:{config.get('password') or ''}" if config.get("username") else ""


def _basic(login: str) -> str:
    return b64encode(login.encode()).decode().rstrip("=")


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


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
    """Of an address of apprise what is between its signs, as it stands and as it is meant, and user and password as
    HTTP Basic sends them."""
    rest = address.partition("://")[2]
    user, at, _ = rest.partition("@")
    login = [_basic(unquote(user))] if at else []
    pieces = (shown for piece in set(_SIGNS.split(rest)) for shown in (piece, unquote(piece)))
    return [*login, unquote(address), *_short(pieces)]


def _short(pieces: Iterable[str]) -> Iterator[str]:
    """Those that have to be there whole to count: a longer one's runs are in the text that it is part of."""
    return (piece for piece in pieces if _WHOLE <= len(piece.casefold()) < _RUN)


def _secret_parts(text: str) -> list[str]:
    try:
        parts = urlsplit(text)
    except ValueError:
        return [text]
    if parts.scheme not in ("http", "https"):
        return [text, *_short(text.split()[1:]), *(_pieces(text) if "://" in text else [])]
    pieces = [piece for piece in (*parts.path.split("/"), parts.query, parts.fragment) if len(piece) >= _RUN]
    values = [value for _, value in parse_qsl(parts.query, keep_blank_values=True)]
    return [shown for piece in (*pieces, *values) for shown in (piece, unquote(piece))]
