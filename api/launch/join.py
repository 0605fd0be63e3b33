"""How a command finds the Ray cluster that serves a data directory, or that it is given, and how it is spoken to.

A service notes its address in its own folder, which the lock file names. Whom we connect to gets Ray's token, so
nothing is believed that another user could have written: lock, folder and note are judged by owner and mode. Nor is
what came with a folder that was cloned or unpacked: the service's folder answers to the lock that it was made with.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import socket
import ssl
from pathlib import Path
from typing import Any, Literal

import msgspec

from api.launch import private_files as private
from api.launch import processes, ray_authority
from api.launch import ray_tls as raytls
from api.launch.leftovers import bound_folder, parse_lock
from api.launch.ray_environment import LOCK_FILE
from api.launch.ray_token import MODE, TOKEN_FILE, current, use_token
from breaker_actors.errors import Invalid
from breaker_actors.persistence import place_of_store
from breaker_actors.settings import Settings

ADDRESS_FILE = "address.json"
# What means "the cluster of this user on this machine": Ray's words for the one that it would find by itself.
_OWN = ("auto", "local", "")
_HOST_PORT = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})", re.ASCII)
# What decides about addresses and authentication, and what it may be: drivers of a cluster have to agree with it.
_ASK, _ASK_S = "/ray.rpc.NodeInfoGcsService/GetClusterId", 3.0
_HANDSHAKE_S = 10.0
_OTHER_NAME = (62, 64)
"""Of X509_verify_cert: the certificate is for another host name, or IP address."""
_TOLD = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": ("0", "1"), MODE: ("token", "disabled"), raytls.USE: ("1",)}


class Served(msgspec.Struct, frozen=True):
    """Settings by which a service runs. `database`: where PostgreSQL is, without user and password; None: the data
    directory holds all."""

    host: str
    port: int
    tls_cert: str | None
    tls_key: str | None
    smtp_host: str | None
    durability: Literal["power", "process"]
    database: str | None
    allow_private_destinations: bool = False


def note_address(folder: Path, address: str, settings: Settings) -> None:
    """Says where the Ray cluster is that this process started, how it is spoken to, and by which settings it serves, as
    far as `breakers doctor` judges them; no secret is among them."""
    told = {name: os.environ[name] for name in _TOLD if name in os.environ}
    served = Served(
        host=settings.host,
        port=settings.port,
        tls_cert=None if settings.tls_cert is None else str(settings.tls_cert.absolute()),
        tls_key=None if settings.tls_key is None else str(settings.tls_key.absolute()),
        smtp_host=settings.smtp_host,
        durability="power" if settings.synced else "process",
        database=None if settings.database_url is None else place_of_store(settings),
        allow_private_destinations=settings.allow_private_destinations,
    )
    noted = {"address": address, "environment": told, "settings": msgspec.to_builtins(served)}
    private.replace_own(folder / ADDRESS_FILE, json.dumps(noted))


def served_settings(data_dir: Path) -> Served | None:
    """Some settings of the service that the lock of a data directory names, running or not; None where none is noted,
    or somebody else may have written them."""
    try:
        _, noted = _read_noted(data_dir)
        return msgspec.convert(noted["settings"], Served)
    except (OSError, LookupError, TypeError, ValueError, Invalid):
        return None


def is_served_here(data_dir: Path) -> bool:
    """Whether a service of this user on this machine runs on the data directory, or was killed there: no file of it
    alone says so, and what such a service wrote into the directory is its own."""
    try:
        return _bound(data_dir) is not None
    except (OSError, Invalid):
        return False


def prepare_join(data_dir: Path) -> str:
    """The address of the Ray cluster that serves from the data directory; "auto" (this machine's) when none was noted.
    Sets what this process needs to speak to it: to be called before Ray is imported. Raises Invalid when somebody else
    may have written what is noted."""
    noted = _noted(data_dir)
    if noted is None:
        return "auto"
    folder, address, told = noted
    if raytls.USE in told:
        told = told | raytls.environment_of(folder)
    if told.get(MODE) == "token":
        use_token(data_dir / TOKEN_FILE)
    os.environ.update(told)
    return address


def _noted(data_dir: Path) -> tuple[Path, str, dict[str, str]] | None:
    try:
        folder, noted = _read_noted(data_dir)
        told = noted["environment"]
        known = {name: told[name] for name, may in _TOLD.items() if told.get(name) in may}
        return folder, str(noted["address"]), known
    except (OSError, LookupError, TypeError, AttributeError, ValueError):
        return None


def _read_noted(data_dir: Path) -> tuple[Path, Any]:
    """A service's folder and what it noted there. Raises OSError, LookupError, ValueError where there is none."""
    _, named = parse_lock(private.read_own(data_dir / LOCK_FILE))
    if named is not None:
        private.check_folder(named)
    folder = _bound(data_dir)
    if folder is None:
        raise LookupError
    return folder, json.loads(private.read_own(folder / ADDRESS_FILE))


def _bound(data_dir: Path) -> Path | None:
    """The folder that answers to the lock of a data directory. Raises OSError, Invalid."""
    lock = data_dir / LOCK_FILE
    content = private.read_own(lock)
    with private.opened(lock, os.O_RDONLY) as descriptor:
        return bound_folder(descriptor, content)


def address_of(given: str) -> str:
    """HOST:PORT of a cluster's head. "auto" is what RAY_ADDRESS says, or else this user's cluster on this machine, and
    nobody else's: its head gets our token. Ray's other words for that ("local", nothing) mean the same here: Ray itself
    would look among the processes of all users. Raises Invalid when there are several or `given` is no address, OSError
    when there is none."""
    if given.strip() in _OWN:
        given = os.environ.get("RAY_ADDRESS", "")
    if given.strip() in _OWN:
        given = _own_head()
    host, port = _parts(given.strip())
    from ray._private.services import canonicalize_bootstrap_address_or_die  # localhost becomes the node's address

    address: str = canonicalize_bootstrap_address_or_die(f"{host}:{port}")
    return address


def _own_head() -> str:
    found = sorted(set(processes.options_of("raylet", "--gcs-address=", raylet_file())))
    if not found:
        raise ConnectionError("no Ray of this user runs on this machine")
    if len(found) > 1:
        raise Invalid(f"several Ray clusters run on this machine: choose by --address {' or '.join(found)}")
    return found[0]


def _parts(address: str) -> tuple[str, int]:
    found = _HOST_PORT.fullmatch(address)
    if found is None or not 0 < int(found[2]) < 65_536:
        raise Invalid(
            f"{address[:100]!a} is no address of a Ray cluster: give HOST:PORT, or auto for your own one here"
        )
    return found[1], int(found[2])


def raylet_file() -> Path:
    """The program that Ray of this installation starts on each node."""
    spec = importlib.util.find_spec("ray")
    if spec is None or spec.origin is None:
        raise Invalid("Ray is not installed")
    return Path(spec.origin).parent / "core" / "src" / "ray" / "raylet" / "raylet"


def check_token(address: str) -> None:
    """Raises Invalid when the cluster takes another token than this process has, or only one of both has one: Ray
    itself would try for half a minute and say so in twenty lines. The token is shown to those only who ask for one and
    have shown a certificate, unless the operator does without. Certificates of his own are looked at by Ray."""
    if ray_authority.is_ours():
        _check_certificate(address)
    elif raytls.is_on():
        return
    ours, open_to_all = os.environ.get(MODE, "disabled").lower() == "token", _admits(address, ())
    if open_to_all is None and _speaks_tls(address):
        raise Invalid(
            f"the Ray cluster at {address} takes encrypted calls only: copy {TOKEN_FILE} from the head's data directory"
            f" into this one and leave {raytls.USE} unset; or, as on its nodes, set {raytls.USE}=1 and RAY_TLS_*; that"
            " of `breakers serve` is no cluster to deploy on"
        )
    if open_to_all is not False:
        if ours and open_to_all:
            raise Invalid(
                f"the Ray cluster at {address} asks for no token: end it and start it again after "
                '`eval "$(breakers node-env)"`, or set RAY_AUTH_MODE=disabled here, too'
            )
        return
    if not ours:
        raise Invalid(
            f"the Ray cluster at {address} asks for a token: copy {TOKEN_FILE} from the head's data directory into"
            " this one"
        )
    if _admits(address, (("authorization", f"Bearer {current()}"),)) is False:
        raise Invalid(
            f"the Ray cluster at {address} has another token than this data directory: copy the head's {TOKEN_FILE}"
        )


def _admits(address: str, metadata: tuple[tuple[str, str], ...], encrypted: bool | None = None) -> bool | None:
    """Whether the head answers a caller with this metadata; None when it says neither."""
    import grpc  # type: ignore[import-untyped]

    with _channel(address, encrypted) as channel:
        try:
            channel.unary_unary(_ASK)(b"", timeout=_ASK_S, metadata=metadata)
        except grpc.RpcError as error:
            return False if error.code() is grpc.StatusCode.UNAUTHENTICATED else None
    return True


def _channel(address: str, encrypted: bool | None = None) -> Any:
    import grpc

    options = (("grpc.enable_http_proxy", 0),)
    if not (ray_authority.is_ours() if encrypted is None else encrypted):
        return grpc.insecure_channel(address, options=options)
    key, certificate, trusted = (
        Path(os.environ[name]).read_bytes() for name in (raytls.KEY, raytls.CERTIFICATE, raytls.AUTHORITY)
    )
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(trusted, key, certificate), options=options)


def _check_certificate(address: str) -> None:
    """Raises Invalid unless who listens there has a certificate that somebody with our token made, for this address.
    What is found instead gets no token, also from Ray: that has been told to encrypt."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    context = ssl.create_default_context(cafile=os.environ[raytls.AUTHORITY])
    context.load_cert_chain(os.environ[raytls.CERTIFICATE])
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host, int(port)), _HANDSHAKE_S) as raw,
            context.wrap_socket(raw, server_hostname=host),
        ):
            return
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in _OTHER_NAME:
            why = f"shows a certificate for other addresses: start it again after `breakers node-env --address {host}`"
        else:
            why = (
                f"shows a certificate that was not made with this {TOKEN_FILE}: copy the head's; where its operator has"
                f" certificates of his own, set {raytls.USE}=1 and RAY_TLS_* as on its nodes"
            )
    except (OSError, ValueError):
        why = _why_in_the_clear(address)
    raise Invalid(f"the Ray cluster at {address} {why}")


def _why_in_the_clear(address: str) -> str:
    """What to say of who did not answer a handshake. It is shown no token to find out."""
    open_to_all = _admits(address, (), encrypted=False)
    if open_to_all is None:
        return f"proves by no certificate that it is one: {raytls.USE} is on here, the token is not shown to it"
    return (
        f"takes calls in the clear{' and asks for no token' if open_to_all else ''}, so the token is not shown to it: "
        'end it and start it again after `eval "$(breakers node-env)"`; if it is to do without certificates, set '
        f"{raytls.USE}=0 there and here{', and RAY_AUTH_MODE=disabled' if open_to_all else ''}"
    )


def _speaks_tls(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        return bool(ssl.get_server_certificate((host.strip("[]"), int(port)), timeout=_ASK_S))
    except (OSError, ValueError):
        return False
