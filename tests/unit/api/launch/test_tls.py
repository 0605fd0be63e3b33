"""The certificate of the service's port: what is refused at the start, and under which name clients find it."""

from __future__ import annotations

import datetime
import json
import stat
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from api.launch import cluster, tls
from api.launch.haproxy import VARIABLE
from api.launch.ray_environment import door, node_environment
from breaker_actors.errors import Invalid
from breaker_actors.settings import Settings

NOW_MS = int(datetime.datetime.now(datetime.UTC).timestamp() * 1000)
YEAR_MS = 365 * 86_400_000
END = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


def written(folder: Path, issued: trustme.LeafCert) -> tls.Pair:
    pair = tls.Pair(folder / "cert.pem", folder / "key.pem")
    pair.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    pair.key.write_bytes(issued.private_key_pem.bytes())
    pair.key.chmod(0o600)
    return pair


def test_a_good_pair_is_taken_without_a_word(tmp_path: Path, authority: trustme.CA) -> None:
    said: list[str] = []
    tls.check(written(tmp_path, authority.issue_cert("a.example")), NOW_MS, said.append)
    assert said == []


def test_a_key_that_others_can_read_is_warned_of(tmp_path: Path, authority: trustme.CA) -> None:
    pair = written(tmp_path, authority.issue_cert("a.example"))
    pair.key.chmod(0o644)
    said: list[str] = []
    tls.check(pair, NOW_MS, said.append)
    assert len(said) == 1
    assert stat.filemode(pair.key.stat().st_mode) == "-rw-r--r--"


def test_a_key_of_another_certificate_is_refused(tmp_path: Path, authority: trustme.CA) -> None:
    pair = written(tmp_path, authority.issue_cert("a.example"))
    pair.key.write_bytes(authority.issue_cert("a.example").private_key_pem.bytes())
    with pytest.raises(Invalid, match=r"BREAKERS_TLS_KEY: .* is not the key of the certificate"):
        tls.check(pair, NOW_MS)


def test_dates_are_looked_at(tmp_path: Path, authority: trustme.CA) -> None:
    pair = written(tmp_path, authority.issue_cert("a.example", not_after=END))
    with pytest.raises(Invalid, match=r"BREAKERS_TLS_CERT: .* has expired at 2030-01-01 00:00 UTC"):
        tls.check(pair, NOW_MS + 9 * YEAR_MS)
    with pytest.raises(Invalid, match="is not valid before"):
        tls.check(pair, NOW_MS - 60 * YEAR_MS)


def test_files_that_are_none_are_named(tmp_path: Path, authority: trustme.CA) -> None:
    pair = written(tmp_path, authority.issue_cert("a.example"))
    with pytest.raises(Invalid, match=r"BREAKERS_TLS_KEY: .* can't be read: No such file"):
        tls.check(tls.Pair(pair.certificate, tmp_path / "none"), NOW_MS)
    with pytest.raises(Invalid, match=r"BREAKERS_TLS_CERT: .* holds no certificate"):
        tls.check(tls.Pair(pair.key, pair.key), NOW_MS)
    with pytest.raises(Invalid, match=r"BREAKERS_TLS_KEY: .* holds no private key"):
        tls.check(tls.Pair(pair.certificate, pair.certificate), NOW_MS)


def test_an_encrypted_key_is_refused_instead_of_asked_for(tmp_path: Path, authority: trustme.CA) -> None:
    pair = written(tmp_path, authority.issue_cert("a.example"))
    key = load_pem_private_key(pair.key.read_bytes(), None)
    secret = BestAvailableEncryption(b"secret")
    pair.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, secret))
    with pytest.raises(Invalid, match="is encrypted"):
        tls.check(pair, NOW_MS)


def test_one_file_without_the_other_is_refused() -> None:
    with pytest.raises(Invalid, match=r"BREAKERS_TLS_CERT is set and BREAKERS_TLS_KEY is not"):
        tls.pair_of(Settings(tls_cert=Path("a")))
    with pytest.raises(Invalid, match=r"BREAKERS_TLS_KEY is set and BREAKERS_TLS_CERT is not"):
        tls.pair_of(Settings(tls_key=Path("a")))
    assert tls.pair_of(Settings()) is None


@pytest.mark.parametrize(
    ("names", "host", "url"),
    [
        (("a.example", "10.0.0.1"), "10.0.0.1", "https://10.0.0.1:7117"),
        (("a.example", "10.0.0.1"), "0.0.0.0", "https://a.example:7117"),
        (("*.example", "::1"), "127.0.0.1", "https://[::1]:7117"),
    ],
)
def test_clients_are_told_a_name_of_the_certificate(
    tmp_path: Path, authority: trustme.CA, names: tuple[str, ...], host: str, url: str
) -> None:
    pair = written(tmp_path, authority.issue_cert(*names))
    settings = Settings(tls_cert=pair.certificate, tls_key=pair.key)
    assert tls.base_url(settings, host) == url
    assert tls.base_url(Settings(), "::1") == "http://[::1]:7117"
    assert tls.own_url(settings, "0.0.0.0") == "https://127.0.0.1:7117"


def test_nodes_are_told_the_files_and_no_secret(tmp_path: Path) -> None:
    settings = Settings(tls_cert=Path("/a/c"), tls_key=Path("/a/k"), health_token="t0ken", connections_per_source_max=7)
    found = {"connections": 7, "unknown_per_s": 100, "handshakes_per_s": 200, "asks_token": True}
    assert door(settings) == found | {"certificate": "/a/c", "key": "/a/k"}
    for allowed, let_through in ((0, 0), (1, 1), (5, 1), (6, 2)):
        assert door(Settings(rate_unknown_per_s=allowed))["unknown_per_s"] == let_through
    found = node_environment(tmp_path, settings)
    assert "/a/c" in found[VARIABLE]
    assert not any("t0ken" in value for value in found.values())


def test_a_node_with_tls_and_one_without_are_no_cluster() -> None:
    plain, sealed = Settings(), Settings(tls_cert=Path("/c"), tls_key=Path("/k"))
    told = {None: json.dumps({"certificate": None}), "tls": json.dumps({"certificate": "/c"})}
    version = cluster.version(cluster.PACKAGE)
    cluster._judge("10.0.0.1", plain, version, True, told[None])
    cluster._judge("10.0.0.1", plain, version, True, "{}")
    cluster._judge("10.0.0.1", sealed, version, True, told["tls"])
    with pytest.raises(Invalid, match=r"BREAKERS_TLS_CERT was not set at .* on node 10.0.0.1, and is here"):
        cluster._judge("10.0.0.1", sealed, version, True, told[None])
    with pytest.raises(Invalid, match=r"BREAKERS_TLS_CERT was set at .* and is not here"):
        cluster._judge("10.0.0.1", plain, version, True, told["tls"])


def test_nodes_with_different_tokens_are_no_cluster() -> None:
    """HAProxy of one would prove nothing to replicas of another one."""
    cluster._judge_proofs(set())
    cluster._judge_proofs({"a"})
    with pytest.raises(Invalid, match="not the same on all nodes"):
        cluster._judge_proofs({"a", "b"})
