"""The certificate of the service's port as an operator gives it: checked at the start, and what names it is good for.

Who keeps it fresh while the service runs is api/launch/certificate_watch.py, on every node.
"""

from __future__ import annotations

import ipaddress
import ssl
import stat
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from api.launch import certificate_watch
from breaker_actors.errors import Invalid
from breaker_actors.settings import Settings, from_here

CERTIFICATE, KEY = "BREAKERS_TLS_CERT", "BREAKERS_TLS_KEY"


@dataclass(frozen=True)
class Pair:
    """Paths of a certificate (with the chain that leads to its authority) and its key, PEM both."""

    certificate: Path
    key: Path


def pair_of(settings: Settings) -> Pair | None:
    """The files of the settings; None: no TLS. Raises Invalid when one is set without the other."""
    match settings.tls_cert, settings.tls_key:
        case None, None:
            return None
        case Path() as certificate, Path() as key:
            return Pair(certificate, key)
        case _, None:
            raise Invalid(f"{CERTIFICATE} is set and {KEY} is not")
        case _:
            raise Invalid(f"{KEY} is set and {CERTIFICATE} is not")


def check(pair: Pair, now_ms: int, warn: Callable[[str], None] = lambda line: None) -> None:
    """Raises Invalid with what is wrong unless HAProxy can serve the pair and clients accept its dates."""
    leaf = _certificate(pair)
    if _key_bytes(_key(pair)) != leaf.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo):
        raise Invalid(f"{KEY}: {pair.key} is not the key of the certificate in {pair.certificate}")
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    if now > leaf.not_valid_after_utc:
        raise Invalid(f"{CERTIFICATE}: {pair.certificate} has expired at {leaf.not_valid_after_utc:%Y-%m-%d %H:%M} UTC")
    if now < leaf.not_valid_before_utc:
        since = leaf.not_valid_before_utc
        raise Invalid(f"{CERTIFICATE}: {pair.certificate} is not valid before {since:%Y-%m-%d %H:%M} UTC")
    try:
        certificate_watch.joined(pair.certificate, pair.key)
        certificate_watch.check(pair.certificate, pair.key)
    except certificate_watch.Unusable as error:
        raise Invalid(f"{CERTIFICATE}: {pair.certificate}: {error}") from None
    if pair.key.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        warn(f"{KEY}: {pair.key} can be read by others; chmod 600 it")


def check_settings(settings: Settings, now_ms: int, warn: Callable[[str], None]) -> None:
    """Raises Invalid when the settings ask for TLS and can't have it."""
    if pair := pair_of(settings):
        check(pair, now_ms, warn)


def base_url(settings: Settings, host: str) -> str:
    """The address of a service whose port listens on `host`, as its clients should know it."""
    pair = pair_of(settings)
    return _url(settings, host if pair is None else name_for(pair, host))


def own_url(settings: Settings, host: str) -> str:
    """The same for this service's own process, which needs no name: see own_context."""
    return _url(settings, from_here(host))


def _url(settings: Settings, host: str) -> str:
    scheme = "http" if pair_of(settings) is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.port}"


def name_for(pair: Pair, host: str) -> str:
    """What clients should call a service that listens on `host`: that, if the certificate is for it, else the first
    name, then the first address, of the certificate."""
    names = _names(_certificate(pair))
    return host if host in names or not names else names[0]


def own_context(pair: Pair | None) -> ssl.SSLContext:
    """How this service's own process checks that it speaks with its port, under whatever address: the certificate has
    to be the very one of the file. Without TLS nobody is believed: reading all authorities takes longer than to ask."""
    if pair is None:
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context = ssl.create_default_context(cadata=_certificate(pair).public_bytes(Encoding.PEM).decode())
    context.check_hostname = False
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    return context


def _names(certificate: x509.Certificate) -> list[str]:
    """DNS names without wildcards, then addresses."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    hosts = [name for name in names.get_values_for_type(x509.DNSName) if "*" not in name]
    found: list[ipaddress.IPv4Address | ipaddress.IPv6Address] = [
        address
        for address in names.get_values_for_type(x509.IPAddress)
        if isinstance(address, ipaddress.IPv4Address | ipaddress.IPv6Address)
    ]
    return [*hosts, *map(str, found)]


def _certificate(pair: Pair) -> x509.Certificate:
    content = _read(CERTIFICATE, pair.certificate)
    try:
        return x509.load_pem_x509_certificates(content)[0]
    except ValueError:
        raise Invalid(f"{CERTIFICATE}: {pair.certificate} holds no certificate in PEM form") from None


def _key(pair: Pair) -> PrivateKeyTypes:
    content = _read(KEY, pair.key)
    try:
        return load_pem_private_key(content, password=None)
    except TypeError:
        raise Invalid(f"{KEY}: the key in {pair.key} is encrypted; one without a passphrase is needed") from None
    except ValueError:
        raise Invalid(f"{KEY}: {pair.key} holds no private key in PEM form") from None


def _key_bytes(key: PrivateKeyTypes) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _read(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Invalid(f"{name}: {path} can't be read: {error.strerror}") from None
