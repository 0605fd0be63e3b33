"""Stop 3 of a sample's life, and the door of every other request: who may do what (semantics.md sections 6 and 10).

Pure functions: keys and projects are looked up elsewhere and passed in. Order of the answers: 401 for a missing or
unknown key, then 403 for a key without the right, then 404 for what belongs to somebody else.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from typing import Literal

from breaker_actors.errors import Forbidden, NotFound, Unauthorized
from breaker_actors.store.rows import KeyKind, KeyRow, ProjectRow
from breaker_actors.store.secrets import KEY_PREFIXES

Right = Literal["manage", "read_rules", "read_runtime", "edit_metadata", "operate", "ingest"]

RIGHTS: dict[KeyKind, frozenset[Right]] = {
    "user": frozenset({"manage", "read_rules", "read_runtime"}),
    "admin": frozenset({"manage", "read_rules", "read_runtime", "edit_metadata", "operate"}),
    "project": frozenset({"read_runtime"}),
    "reader": frozenset({"read_rules", "read_runtime"}),
    "ingest": frozenset({"ingest"}),
}
OF_ORGANISATION: frozenset[KeyKind] = frozenset({"user", "admin"})
"""Kinds of keys that reach all projects of their organisation; any other reaches the one it was made for."""

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_SIGNATURE = re.compile(r"v1=[0-9a-f]{64}")
_MILLISECONDS = re.compile(r"[0-9]{1,16}")


def bearer(header: str | None) -> str:
    """The key in an Authorization header; "" when there is none (some clients send `Bearer` alone or `Bearer null`)."""
    scheme, _, key = (header or "").strip().partition(" ")
    key = key.strip()
    return key if scheme.lower() == "bearer" and key != "null" else ""


def sender_key(header: str | None) -> str:
    """The key in the Authorization header of who sends samples: a bearer, or the password of HTTP Basic (RFC 7617),
    whatever the user name is; "" when there is none."""
    scheme, _, encoded = (header or "").strip().partition(" ")
    if scheme.lower() != "basic":
        return bearer(header)
    try:
        return base64.b64decode(encoded.strip(), validate=True).decode().partition(":")[2].strip()
    except ValueError:
        return ""


def ingest_token(header: str | None) -> str:
    """The same if it looks like an ingest token, whether or not it is one; "" otherwise."""
    key = sender_key(header)
    return key if key.startswith(KEY_PREFIXES["ingest"]) else ""


NO_KEY = "The API key is missing: it goes into the header Authorization, as Bearer KEY."
UNKNOWN_KEY = "There is no such API key here."
LACKS_RIGHT = "The key is valid but lacks the right for this operation."


def permit(key: KeyRow | None, right: Right, header: str | None = None) -> KeyRow:
    """The key, if it is one and has the right. `header`: of Authorization, with which it came."""
    if key is None:
        raise Unauthorized(UNKNOWN_KEY if sender_key(header) else NO_KEY)
    if right not in RIGHTS[key.kind]:
        kinds = ", ".join(kind for kind, rights in RIGHTS.items() if right in rights)
        raise Forbidden(f"{LACKS_RIGHT} Its kind is {key.kind}; keys that may: {kinds}.")
    return key


def project_in_scope(key: KeyRow, project: ProjectRow | None) -> ProjectRow:
    """The project, if the key reaches it; otherwise it might as well not exist."""
    if project is None or project.org_id != key.org_id:
        raise NotFound("There is no such project.")
    if key.kind not in OF_ORGANISATION and key.project_id != project.id:
        raise NotFound("There is no such project.")
    return project


def uuid_or_none(text: object) -> str | None:
    """The canonical spelling of a uuid, or None when it isn't one."""
    return text.lower() if isinstance(text, str) and _UUID.fullmatch(text) else None


def path_uuid(text: str) -> str:
    """The uuid of a path segment; anything else is a thing that doesn't exist."""
    if found := uuid_or_none(text):
        return found
    raise NotFound


def milliseconds(header: str | None) -> int | None:
    """The value of an X-EB-Timestamp header, or None when it is absent or no number."""
    return int(header) if header and _MILLISECONDS.fullmatch(header) else None


def check_signing(timestamp: str | None, signature: str | None, now_ms: int, skew_ms: int) -> None:
    """Refuses what cannot be signed whatever the body is."""
    sent_ms = milliseconds(timestamp)
    if sent_ms is None or not signature:
        raise Unauthorized("The signature is missing, or X-EB-Timestamp is.")
    if abs(now_ms - sent_ms) > skew_ms:
        raise Unauthorized("X-EB-Timestamp is out of range; is it in milliseconds?")
    if not _SIGNATURE.fullmatch(signature):
        raise Unauthorized("The signature does not match.")


def check_signature(
    secrets: tuple[str, ...], timestamp: str | None, signature: str | None, body: bytes, now_ms: int, skew_ms: int
) -> None:
    """Refuses a request whose HMAC doesn't prove knowledge of one of the secrets, or whose timestamp is too far off.

    The same timestamp and signature again are a client's retry, not an attack: recognising them is ingest's business.
    """
    check_signing(timestamp, signature, now_ms, skew_ms)
    assert signature is not None, "it was just checked"
    signed = f"{timestamp}.".encode() + body
    macs = [hmac.new(bytes.fromhex(secret), signed, hashlib.sha256).hexdigest() for secret in secrets]
    if not any(hmac.compare_digest(f"v1={mac}".encode(), signature.encode()) for mac in macs):
        raise Unauthorized("The signature does not match.")


NO_METRICS = "No key reads metrics here: the service needs BREAKERS_METRICS_TOKEN, or BREAKERS_METRICS_OPEN=true."


OTHER_TOKEN = "This is not the token of BREAKERS_METRICS_TOKEN; API keys read no metrics."  # nosec B105 # words


def check_metrics_token(expected: str | None, everybody: bool, header: str | None) -> None:
    """Metrics are for who has the token; without one, for nobody unless everybody may read them."""
    if not everybody and not (expected and hmac.compare_digest(bearer(header).encode(), expected.encode())):
        raise Unauthorized((OTHER_TOKEN if header else "") if expected else NO_METRICS)


def check_health_token(expected: str | None, header: str | None) -> None:
    """Health probes are open unless a token is configured."""
    if expected and not hmac.compare_digest(bearer(header).encode(), expected.encode()):
        raise Unauthorized
