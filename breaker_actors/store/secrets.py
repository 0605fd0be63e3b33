"""Secrets at rest: ingest secrets and webhook addresses are sealed, API keys are stored as hashes only."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from breaker_actors.errors import BreakersError, Invalid
from breaker_actors.sql.sqlite import sync_folder
from breaker_actors.store.own_file import read_own

if TYPE_CHECKING:
    from breaker_actors.store.rows import KeyKind

KEY_PREFIXES: dict[KeyKind, str] = {
    "user": "eb_user_",
    "admin": "eb_admin_",
    "project": "eb_pk_",
    "reader": "eb_read_",
    "ingest": "eb_ingest_",
}
KEY_PREFIX_LEN = 12
_TELLING_LEN = 4
_KEY_BYTES = 32
_NONCE_BYTES = 12
_CHECK = "breakers"
_CHECK_PLACE = "check value"


class SecretBox:
    """Seals short texts with AES-256-GCM. `place` names the row and column a text belongs to: a sealed value moved
    to another place does not open."""

    __slots__ = ("_cipher",)

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    def __repr__(self) -> str:
        return "SecretBox()"

    @classmethod
    def from_file(cls, path: Path) -> SecretBox:
        """The box of a key file, made on first use (mode 600)."""
        return cls(read_key_file(path))

    def seal(self, text: str, place: str) -> bytes:
        """Nonce and ciphertext; two seals of one text differ."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, text.encode(), place.encode())

    def unseal(self, sealed: bytes, place: str) -> str:
        """The text; raises when the key is another one than at seal time."""
        nonce, body = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            return self._cipher.decrypt(nonce, body, place.encode()).decode()
        except InvalidTag:
            raise BreakersError(f"the sealing key does not open the stored {place.partition(':')[0]}") from None

    def check_value(self) -> bytes:
        """What a store keeps to know the key again."""
        return self.seal(_CHECK, _CHECK_PLACE)

    def fits(self, check_value: bytes) -> bool:
        """Whether a check value was made with the same key."""
        return self.opens(check_value, _CHECK_PLACE)

    def opens(self, sealed: bytes, place: str) -> bool:
        try:
            self.unseal(sealed, place)
        except BreakersError:
            return False
        return True


def parse_key(text: str) -> bytes:
    """The key of a setting: 64 hex digits. Raises Invalid, without the text."""
    if re.fullmatch(f"[0-9a-fA-F]{{{2 * _KEY_BYTES}}}", text) is None:
        raise Invalid(f"BREAKERS_SECRET_KEY has to be {2 * _KEY_BYTES} hex digits; `openssl rand -hex 32` makes them")
    return bytes.fromhex(text)


def read_key_file(path: Path) -> bytes:
    """The key in a file, which is made on first use (mode 600). Raises Invalid when it is not this user's alone."""
    if not os.path.lexists(path):
        _make_key_file(path)
    try:
        key = read_own(path)
    except OSError as error:
        raise Invalid(f"{path} can't be read: {error.strerror}") from None
    if len(key) != _KEY_BYTES:
        raise BreakersError(f"{path} is not a key file of {_KEY_BYTES} bytes")
    return key


def _make_key_file(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(os.urandom(_KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        # A link appears whole or not at all: of several processes starting together one makes the key, all read it.
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
    sync_folder(path.parent)


def new_api_key(kind: KeyKind) -> str:
    """A key of the kind with 256 random bits."""
    return KEY_PREFIXES[kind] + secrets.token_hex(_KEY_BYTES)


def shown_beginning(key: str, kind: KeyKind) -> str:
    """What may be shown of a key: its prefix, and so much of its 64 digits that people can tell keys apart."""
    return key[: max(KEY_PREFIX_LEN, len(KEY_PREFIXES[kind]) + _TELLING_LEN)]


def hash_api_key(key: str) -> str:
    """What is stored of a key. No salt or stretching is needed: the key is random, not a password."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def parse_admin_key(text: str) -> str:
    """The admin key of a setting, as long as those that are made here. Raises Invalid, without the text."""
    if re.fullmatch(f"{KEY_PREFIXES['admin']}[0-9a-f]{{{2 * _KEY_BYTES}}}", text) is None:
        raise Invalid(
            f"BREAKERS_BOOTSTRAP_ADMIN_KEY has to be {KEY_PREFIXES['admin']} and {2 * _KEY_BYTES} hex digits;"
            f' `echo "{KEY_PREFIXES["admin"]}$(openssl rand -hex {_KEY_BYTES})"` makes one'
        )
    return text


def new_ingest_secret() -> str:
    """64 lowercase hex digits, what every client takes."""
    return secrets.token_hex(32)
