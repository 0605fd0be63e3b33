"""What may be shown of values that hold secrets, and the way back: a masked value that is sent again keeps the stored
one (semantics.md section 9). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from breaker_actors.errors import Invalid

MARK = "****"
_TAIL, _TAIL_FROM = 4, 16
_SECRET_NAMES = re.compile(r"secret|token|key|passw|auth|credential|signature|ur[li]", re.IGNORECASE)
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_WITH_HOST = ("http", "https")
"""In other addresses, such as those of apprise, a token may stand in place of the host."""
_ALL_SECRET = ("headers",)


def mask_text(text: str) -> str:
    """Of a web address its host, of another its scheme, of a long secret its last characters: enough to tell
    one from another."""
    if not text:
        return text
    shown = _host(text) if _ADDRESS.match(text) else ""
    tells = len(text) >= _TAIL_FROM and text.rstrip("/") != shown.rstrip("/")
    return shown + MARK + (text[-_TAIL:] if tells else "")


def _host(address: str) -> str:
    try:
        parts = urlsplit(address)
        if parts.scheme not in _WITH_HOST:
            return f"{parts.scheme}://"
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{parts.hostname or ''}{port}/"
    except ValueError:
        return ""


def mask(value: Any, secret: bool = False) -> Any:
    """A JSON value with every secret and address in it masked; `secret`: all text and numbers below are one."""
    if isinstance(value, Mapping):
        return {
            name: mask(item, secret or name.lower() in _ALL_SECRET or bool(_SECRET_NAMES.search(name)))
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [mask(item, secret) for item in value]
    if isinstance(value, str) and (secret or _ADDRESS.match(value)):
        return mask_text(value)
    return MARK if secret and _is_number(value) else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def unmask(sent: Any, stored: Any, path: str = "value") -> Any:
    """What to store of a value that was sent: where it is the mask of the stored one, the stored one.

    Raises Invalid, with the place in `details`, for a mask of something else: it would destroy what it stands for.
    """
    if isinstance(sent, Mapping):
        before = stored if isinstance(stored, Mapping) else {}
        return {name: unmask(item, before.get(name), f"{path}.{name}") for name, item in sent.items()}
    if isinstance(sent, list | tuple):
        old = list(stored) if isinstance(stored, list | tuple) else []
        return [unmask(item, old[i] if i < len(old) else None, f"{path}[{i}]") for i, item in enumerate(sent)]
    if isinstance(sent, str) and MARK in sent:
        if isinstance(stored, str) and sent in (mask_text(stored), stored):
            return stored
        if sent == MARK and _is_number(stored):
            return stored
        raise Invalid("A masked value does not match the stored one; send the whole value.", {path: "is masked"})
    return sent


def masked_paths(path: str, sent: Any, stored: Any) -> list[str]:
    """The places of a value that `unmask` takes at which a mask stands for the stored secret."""
    if isinstance(sent, Mapping):
        before = stored if isinstance(stored, Mapping) else {}
        return [p for name, item in sent.items() for p in masked_paths(f"{path}.{name}", item, before.get(name))]
    if isinstance(sent, list | tuple):
        old = list(stored) if isinstance(stored, list | tuple) else []
        return [
            p
            for i, item in enumerate(sent)
            for p in masked_paths(f"{path}[{i}]", item, old[i] if i < len(old) else None)
        ]
    return [path] if isinstance(sent, str) and MARK in sent and sent != stored else []
