"""TLS of Ray's gRPC ports in a service on one machine: who has no key of this service gets no further than a handshake.

Ray's token is asked for call by call, and not everything in Ray waits for it: a call of Ray 2.60.0's syncer aborts the
raylet or the head first. Whoever has to show a certificate can't make a call. One key and its self-signed certificate,
made at each start in the service's folder, are both sides' proof and the only authority; they go with the folder. Nodes
of a cluster: api/launch/ray_authority.py.
"""

from __future__ import annotations

import ipaddress
import os
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from api.launch import private_files as private
from breaker_actors.errors import Invalid

USE, CERTIFICATE, KEY, AUTHORITY = "RAY_USE_TLS", "RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT"
ON = ("1", "true")
"""Values of RAY_USE_TLS that turn it on."""
CERTIFICATE_FILE, KEY_FILE = "ray.pem", "ray-key.pem"
# gRPC writes a line to stderr for each handshake that fails: any local user could fill the operator's terminal.
QUIET = {"GRPC_VERBOSITY": "NONE"}
# The key ends with the service; dates would only add a day on which a service, or a clock that is wrong, stops.
SINCE, UNTIL = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def is_on() -> bool:
    """Whether Ray encrypts its calls in this process."""
    return os.environ.get(USE, "0").lower() in ON


def use_own_pair(folder: Path) -> None:
    """Makes a key and its certificate in the service's folder; this process and all below it show them and ask for
    them, whatever the environment said of TLS before. To be called before Ray is imported."""
    key = ec.generate_private_key(ec.SECP256R1())
    private.make_own(
        folder / KEY_FILE, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode("ascii")
    )
    private.make_own(folder / CERTIFICATE_FILE, _certificate(key).public_bytes(Encoding.PEM).decode("ascii"))
    os.environ.update(environment_of(folder))


def environment_of(folder: Path) -> dict[str, str]:
    """What a process needs in its environment that speaks to the service of this folder. Raises Invalid when the files
    are not this user's alone."""
    files = {CERTIFICATE: CERTIFICATE_FILE, KEY: KEY_FILE, AUTHORITY: CERTIFICATE_FILE}
    for name in files.values():
        try:
            private.read_own(folder / name, private.OTHERS)
        except OSError as error:
            raise Invalid(f"{folder / name} can't be read: {error.strerror}") from None
    return {USE: "1", **QUIET, **{name: str(folder / file) for name, file in files.items()}}


def _certificate(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    """For the address that everything of a service on one machine listens on."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "breakers")])
    hosts = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(SINCE).not_valid_after(UNTIL)
    builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    return builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True).sign(
        key, hashes.SHA256()
    )
