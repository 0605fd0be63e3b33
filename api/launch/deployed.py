"""Which database the service on a Ray cluster works with. A deployment notes it in the cluster's control service; one
that names another database is refused: it would put an empty service, or another one's, in the place of what runs."""

from __future__ import annotations

import msgspec

from breaker_actors.errors import Invalid
from breaker_actors.settings import Settings

_PLACE, _KEY = "breakers", "database"


class Note(msgspec.Struct, frozen=True):
    """The id of a database, and where it was when it was deployed; nothing in it is secret."""

    database_id: str
    place: str


def check(settings: Settings, replaces: str | None) -> None:
    """Raises Invalid when the service of this cluster works with another database than the one of the settings.
    `replaces`: the id of the database that may be left. Call while connected, before anything is made."""
    from breaker_actors import persistence

    noted = _read()
    if noted is not None:
        judge(noted, persistence.database_id(settings), persistence.place_of_store(settings), replaces)


def judge(noted: Note, database_id: str | None, place: str, replaces: str | None) -> None:
    """`database_id`: of the database to be deployed; None if it is not made yet."""
    if noted.database_id in (database_id, replaces):
        return
    other = "which is empty" if database_id is None else f"database {database_id}"
    raise Invalid(
        f"the service on this cluster works with {noted.place} (database {noted.database_id}); this would replace it "
        f"with {place} ({other}): set BREAKERS_DATABASE_URL and BREAKERS_DATA_DIR as they were, or leave that database "
        f"with --replace-database {noted.database_id}"
    )


def note(settings: Settings) -> None:
    """Notes the database of the settings, which is made by now."""
    from ray.experimental.internal_kv import _internal_kv_put

    from breaker_actors import persistence

    found = Note(persistence.database_id(settings) or "", persistence.place_of_store(settings))
    _internal_kv_put(_KEY, msgspec.json.encode(found), overwrite=True, namespace=_PLACE)


def forget() -> None:
    """The service was taken down: any database may come next."""
    from ray.experimental.internal_kv import _internal_kv_del

    _internal_kv_del(_KEY, namespace=_PLACE)


def _read() -> Note | None:
    """None where nothing is deployed, or by a release that noted nothing."""
    from ray.experimental.internal_kv import _internal_kv_get

    found = _internal_kv_get(_KEY, namespace=_PLACE)
    return None if found is None else msgspec.json.decode(found, type=Note)
