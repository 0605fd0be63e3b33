"""The way to the data directory: links are followed once, and only those that are nobody else's to make or replace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from breaker_actors.errors import Invalid
from breaker_actors.own_path import without_links
from breaker_actors.persistence import DATABASE
from breaker_actors.settings import Settings, load_settings
from pipelines.recorded import recorded
from tests.support.fresh import migrated

NOBODY = 65534
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make links of other users")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "real" / "data").mkdir(parents=True)
    return tmp_path


def refused(path: Path, why: str) -> None:
    with pytest.raises(Invalid, match=why) as refusal:
        without_links(path)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("real/data", "real/data"),
        ("real/data/more/of/it", "real/data/more/of/it"),
        ("none/../real/data", "real/data"),
        ("by-name", "real"),
        ("by-name/data", "real/data"),
        ("by-path/data/none", "real/data/none"),
        ("twice/data", "real/data"),
        ("deep/../data", "real/data"),
        ("dangling/data", "nowhere/data"),
    ],
)
def test_links_of_ones_own_are_followed_as_the_kernel_does(place: Path, given: str, found: str) -> None:
    (place / "real" / "sub").mkdir()
    (place / "by-name").symlink_to("real")
    (place / "by-path").symlink_to(place / "real")
    (place / "twice").symlink_to("by-name/../by-path")
    (place / "deep").symlink_to("real/sub")
    (place / "dangling").symlink_to("nowhere")
    assert without_links(place / given) == place / found


def test_links_in_a_circle_end(place: Path) -> None:
    (place / "a").symlink_to("b")
    (place / "b").symlink_to("a")
    refused(place / "a", "more than 40 symbolic links")


def test_a_file_on_the_way_is_for_who_opens_what_is_below(place: Path) -> None:
    (place / "file").touch()
    assert without_links(place / "file" / "data") == place / "file" / "data"


@ROOT_ONLY
@pytest.mark.parametrize("at", ["link", "real/link", "to-link"])
def test_a_link_of_another_user_is_refused(place: Path, at: str) -> None:
    """Wherever it is on the way, also behind a link of one's own."""
    for name in ("link", "real/link"):
        (place / name).symlink_to(place / "real")
        os.chown(place / name, NOBODY, NOBODY, follow_symlinks=False)
    (place / "to-link").symlink_to("real/link")
    refused(place / at / "data", rf"link is a symbolic link of another user \(uid {NOBODY}\)")


@pytest.mark.parametrize("how", ["mode", pytest.param("owner", marks=ROOT_ONLY)])
def test_a_link_that_others_could_replace_is_refused(place: Path, how: str) -> None:
    home = place / "home"
    home.mkdir()
    (home / "link").symlink_to(place / "real")
    if how == "owner":
        os.chown(home, NOBODY, NOBODY)
    else:
        home.chmod(0o777)
    refused(home / "link" / "data", "can be replaced by others")
    os.chown(home, os.geteuid(), os.getegid())
    home.chmod(0o1777)  # as /tmp
    assert without_links(home / "link" / "data") == place / "real" / "data"


def test_a_link_that_leads_elsewhere_later_counts_no_more(place: Path) -> None:
    """The one place where it was followed is where settings come to be."""
    (place / "link").symlink_to(place / "real")
    (place / "other" / "data").mkdir(parents=True)
    settings = load_settings({}, data_dir=place / "link" / "data")
    (place / "link").unlink()
    (place / "link").symlink_to(place / "other")
    migrated(settings.data_dir / DATABASE)
    assert settings.data_dir == place / "real" / "data"
    assert DATABASE in {path.name for path in (place / "real" / "data").iterdir()}
    assert not list((place / "other" / "data").iterdir())


def test_the_default_is_walked_too(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    (place / ".breakers").symlink_to("real/data")
    assert Settings().data_dir == place / "real" / "data"


@ROOT_ONLY
def test_python_is_refused_as_commands_are(place: Path) -> None:
    (place / "link").symlink_to(place / "real")
    os.chown(place / "link", NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(Invalid, match="symbolic link of another user"):
        recorded("b", data_dir=place / "link" / "data")
