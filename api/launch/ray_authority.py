"""TLS of Ray's gRPC ports in a cluster: certificates of an authority that everyone makes who has Ray's token.

The authority's key is derived from the token, so the token stays the only thing that nodes have in common, and its
copies the only ones an operator makes. Each machine has a key of its own, with a certificate for its addresses. Who
listens at a port of Ray's without the token shows no certificate that counts, and is shown no token; who calls without
one gets no further than a handshake. What the operator says by RAY_USE_TLS goes first, 0 as well as 1.
"""

from __future__ import annotations

import atexit
import hashlib
import ipaddress
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from api.launch import haproxy as ingress
from api.launch import private_files as private
from api.launch import ray_tls as raytls
from api.launch import ray_token as raytoken
from api.launch.leftovers import FOLDER_PREFIX
from breaker_actors.errors import Invalid
from breaker_actors.transport.rpc import OWN_CERTIFICATE

FOLDER = "ray-tls"
"""Below a data directory: certificates, and keys of this machine. None is to be copied."""
TOKEN_LENGTH_MIN = 32
"""Characters of a token. Certificates are shown to whoever connects: a short token could be found by trying all."""
NAMES_MAX = 200
"""Addresses and names of a certificate: those of now, then earlier ones."""
_INFO = b"breakers ray tls authority"
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Of P-256."""
_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "breakers ray authority")])
_NODE_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "breakers ray node")])
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9_])?", re.ASCII)


class Authority:
    """What is derived of a token: the same on every node."""

    def __init__(self, token: str) -> None:
        secret = HKDF(hashes.SHA256(), 48, salt=None, info=_INFO).derive(token.encode())
        self.key = ec.derive_private_key(int.from_bytes(secret) % (_ORDER - 1) + 1, ec.SECP256R1())
        public = self.key.public_key()
        names = _builder(_NAME, public).serial_number(1)
        names = names.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        names = names.add_extension(_usage(signs_certificates=True), critical=True)
        names = names.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        self.certificate = names.sign(self.key, hashes.SHA256(), ecdsa_deterministic=True)

    @property
    def id(self) -> str:
        """By it files of different tokens are told apart."""
        shown = self.key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return hashlib.sha256(shown).hexdigest()[:16]

    def issue(self, names: Iterable[x509.GeneralName]) -> str:
        """A new key and its certificate for these addresses and names, as PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = _builder(_NODE_NAME, key.public_key()).serial_number(x509.random_serial_number())
        made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        made = made.add_extension(_usage(signs_certificates=False), critical=True)
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        made = made.add_extension(x509.ExtendedKeyUsage(both), critical=False)
        made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        certificate = made.add_extension(signer, critical=False).sign(self.key, hashes.SHA256())
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return (pem + certificate.public_bytes(Encoding.PEM)).decode("ascii")

    def issued_for(self, pem: bytes) -> list[x509.GeneralName]:
        """The addresses and names of a key and its certificate; none where it is not of this authority."""
        try:
            certificate, key = x509.load_pem_x509_certificate(pem), load_pem_private_key(pem, None)
            certificate.verify_directly_issued_by(self.certificate)
            has = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
            return []
        return list(has) if certificate.public_key() == key.public_key() else []


def is_said() -> bool:
    """Whether the operator decides about TLS: RAY_USE_TLS is set, and not by an earlier `breakers node-env`."""
    return raytls.USE in os.environ and not is_ours()


def is_ours() -> bool:
    """Whether Ray encrypts its calls in this process with certificates of this module."""
    certificate = os.environ.get(raytls.CERTIFICATE)
    return raytls.is_on() and certificate is not None and certificate == os.environ.get(OWN_CERTIFICATE)


def of_node(data_dir: Path, proof: Mapping[str, str], more: Iterable[str] = ()) -> dict[str, str]:
    """What a node's environment needs beside what it says already, and beside its `proof` (see ray_token.of_node).
    `more`: addresses and names of the node that its interfaces don't tell. Nothing where the operator decides, or
    where Ray asks for no token. Raises Invalid."""
    environ = {**os.environ, **proof}
    if is_said() or not _asks_token(environ):
        return {}
    try:
        private.make_data_dir(data_dir)
        return _environment(_below(data_dir), _token(environ), more)
    except OSError as error:
        raise Invalid(f"data directory {data_dir} can't be used: {error.strerror}") from None


def use_of_cluster(data_dir: Path | None) -> None:
    """This process speaks to a cluster as its nodes do, if it has a token for it and its operator decides nothing else.
    To be called after ray_token.use_of_cluster and before Ray is imported. Raises Invalid."""
    if is_said() or not _asks_token(os.environ):
        return
    try:
        folder = _temporary() if data_dir is None or not data_dir.is_dir() else _below(data_dir)
        os.environ.update(_environment(folder, _token(os.environ), ()))
    except OSError as error:
        raise Invalid(f"certificates for Ray can't be made: {error.strerror}") from None


def names_of_machine(more: Iterable[str] = ()) -> list[x509.GeneralName]:
    """Addresses of this machine's interfaces, its name, and `more`. Raises Invalid for what is neither."""
    found = ["127.0.0.1", "::1", "localhost", *_interfaces()]
    if _HOST.fullmatch(name := socket.gethostname()):
        found.append(name)
    return [_name(one) for one in dict.fromkeys([*found, *more])]


def _interfaces() -> list[str]:
    """Not those of one link alone, which come and go with it: Ray is given none."""
    networks = map(ipaddress.ip_interface, ingress.own_addresses(Path("/proc/net")))
    return [str(one.ip) for one in networks if one.network.num_addresses == 1 and not one.ip.is_link_local]


def _name(given: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(given))
    except ValueError:
        if _HOST.fullmatch(given) is None:
            raise Invalid(f"{given[:100]!a} is neither an IP address nor the name of a host") from None
        return x509.DNSName(given)


def _asks_token(environ: Mapping[str, str]) -> bool:
    return environ.get(raytoken.MODE, "").lower() == "token"


def _token(environ: Mapping[str, str]) -> str:
    token = raytoken.current(environ)
    if len(token) < TOKEN_LENGTH_MIN:
        raise Invalid(
            f"Ray's token has less than {TOKEN_LENGTH_MIN} characters, too few to derive keys from: `openssl rand -hex"
            f" 32` makes one; {raytls.USE}=0 does without keys"
        )
    return token


def _below(data_dir: Path) -> Path:
    folder = data_dir / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    private.check_folder(folder)
    return folder


def _temporary() -> Path:
    folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _environment(folder: Path, token: str, more: Iterable[str]) -> dict[str, str]:
    """Sees that the files are there. A key that fits stays: nodes and commands of one machine may share the folder."""
    authority, names = Authority(token), names_of_machine(more)
    machine = re.sub(r"[^A-Za-z0-9._-]", "_", socket.gethostname())[:100]
    trusted, pair = folder / f"authority-{authority.id}.pem", folder / f"{machine}-{authority.id}.pem"
    certificate = authority.certificate.public_bytes(Encoding.PEM)
    if _content(trusted) != certificate:
        private.replace_own(trusted, certificate.decode("ascii"))
    before = authority.issued_for(_content(pair))
    if not {*names} <= {*before}:  # what was named once stays: who makes it anew may not know of it
        private.replace_own(pair, authority.issue(list(dict.fromkeys([*names, *before]))[:NAMES_MAX]))
    files = {raytls.CERTIFICATE: pair, raytls.KEY: pair, raytls.AUTHORITY: trusted, OWN_CERTIFICATE: pair}
    quiet = {name: value for name, value in raytls.QUIET.items() if name not in os.environ}
    return {raytls.USE: "1", **quiet, **{name: str(path) for name, path in files.items()}}


def _content(path: Path) -> bytes:
    try:
        return private.read_own(path, private.OTHERS)
    except FileNotFoundError:
        return b""


def _builder(subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    """Of this authority, without an end: it ends with the token."""
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(_NAME).public_key(key)
    return builder.not_valid_before(raytls.SINCE).not_valid_after(raytls.UNTIL)


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
