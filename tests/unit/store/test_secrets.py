"""Secrets: the key file, sealing, API keys."""

from __future__ import annotations

import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from breaker_actors.errors import BreakersError, Invalid
from breaker_actors.store.secrets import KEY_PREFIXES, SecretBox, hash_api_key, new_api_key, new_ingest_secret


def test_key_file_is_made_once_and_private(tmp_path: Path) -> None:
    """Mode 600, also when the folder has to be made; many at once agree on one key."""
    path = tmp_path / "data" / "secret.key"
    with ThreadPoolExecutor(8) as pool:
        boxes = list(pool.map(SecretBox.from_file, [path] * 8))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["secret.key"]
    sealed = boxes[0].seal("hush", "x:1")
    assert {box.unseal(sealed, "x:1") for box in boxes} == {"hush"}


def test_a_seal_holds(tmp_path: Path) -> None:
    """Another place, another key or a changed byte do not open; nothing of the text shows in the error."""
    box = SecretBox.from_file(tmp_path / "a")
    sealed = box.seal("hush", "ingest secret:1")
    assert sealed != box.seal("hush", "ingest secret:1")
    other = SecretBox.from_file(tmp_path / "b")
    for opener, text, place in (
        (box, sealed, "ingest secret:2"),
        (other, sealed, "ingest secret:1"),
        (box, sealed[:-1] + bytes([sealed[-1] ^ 1]), "ingest secret:1"),
    ):
        with pytest.raises(BreakersError, match=r"does not open the stored ingest secret$"):
            opener.unseal(text, place)
    assert repr(box) == "SecretBox()"


def test_a_broken_key_file_is_named(tmp_path: Path) -> None:
    """A key of the wrong size is not used."""
    (tmp_path / "k").write_bytes(b"short")
    with pytest.raises(BreakersError, match="is not a key file"):
        SecretBox.from_file(tmp_path / "k")


@pytest.mark.parametrize("how", ["link", "pipe", "writable"])
def test_a_key_file_that_others_may_have_put_there_is_refused(tmp_path: Path, how: str) -> None:
    path, other = tmp_path / "k", tmp_path / "other"
    if how == "link":
        path.symlink_to(other)
    elif how == "pipe":
        os.mkfifo(path, 0o600)
    else:
        path.touch()
        path.chmod(0o666)
    with pytest.raises(Invalid, match=str(path)):
        SecretBox.from_file(path)
    assert not other.exists()


@pytest.mark.parametrize("kind", list(KEY_PREFIXES))
def test_api_keys(kind: str) -> None:
    """Prefix and 64 hex digits; two keys differ; the hash is SHA-256 as hex."""
    key = new_api_key(kind)  # type: ignore[arg-type]
    assert re.fullmatch(KEY_PREFIXES[kind] + "[0-9a-f]{64}", key)  # type: ignore[index]
    assert key != new_api_key(kind)  # type: ignore[arg-type]
    assert re.fullmatch("[0-9a-f]{64}", hash_api_key(key))


def test_ingest_secret() -> None:
    """64 lowercase hex digits."""
    assert re.fullmatch("[0-9a-f]{64}", new_ingest_secret())
