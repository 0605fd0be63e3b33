"""What `breakers doctor` asks the database: whether it answers, its schema, its clock, and who may send samples."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection, text

from api.launch.bootstrap import FEWER, FILE_NAME, ONE_WRITER, SIGN, read, unsigned_words
from api.launch.doctor_channels import channels, mail_server, refused_channels
from api.launch.doctor_findings import Finding, told
from api.launch.join import Served
from api.launch.neighbours import described
from breaker_actors.clock import Clock
from breaker_actors.errors import BreakersError, Invalid
from breaker_actors.persistence import existing_box, is_in_use, place_of_store, store_url
from breaker_actors.settings import Settings
from breaker_actors.sql.durability import power_loss
from breaker_actors.sql.presence import LOOK, sessions
from breaker_actors.store import migrations
from breaker_actors.store.config.projects import signing

SKEW_MS = 500


def place(settings: Settings, service: Served | None) -> Iterator[Finding]:
    """Whether the service on this data keeps it where this shell looks."""
    here = None if settings.database_url is None else place_of_store(settings)
    if service is not None and service.database != here:
        theirs = service.database or "the data directory"
        message = f"the service on this data keeps it in {theirs}; what follows is of {here or 'the data directory'}"
        yield Finding("database", "warning", message, "set BREAKERS_DATABASE_URL in this shell as the service has it")


def database(settings: Settings, clock: Clock, of_service: bool = False) -> Iterator[Finding]:
    """Nothing is made or upgraded. `of_service`: the settings are those of the service that runs."""
    try:
        if settings.database_url is None and not is_in_use(settings):
            yield nothing_yet(settings)
            return
        with migrations.engine_of(store_url(settings), settings.synced) as engine, engine.connect() as connection:
            found = migrations.revision(connection)
            yield schema(found, place_of_store(settings), settings.database_url is None)
            if settings.database_url is not None:
                yield server_clock(connection, clock)
                yield from services(connection)
            if found == migrations.HEAD:
                yield durability(connection)
                yield from journals(settings)
                yield from signed_ingest(connection)
                yield from mail_server(connection, settings.smtp_host, of_service)
                box = existing_box(settings)
                yield from channels(connection, box)
                if not settings.allow_private_destinations:
                    yield from refused_channels(connection, box, of_service)
    except Invalid as error:
        yield Finding("database", "error", told(error), "correct BREAKERS_DATABASE_URL")
    except BreakersError as error:
        remedy = "start the database, and check BREAKERS_DATABASE_URL: host, port, user, password"
        yield Finding("database", "error", told(error), remedy)


def nothing_yet(settings: Settings) -> Finding:
    """No data, which is wrong beside the keys of a service: its data is elsewhere, or lost."""
    try:
        known = read(settings.data_dir / FILE_NAME)
    except Invalid as error:
        return Finding("database", "error", told(error), "remove the file, or put the one back that the service wrote")
    if known is None:
        return Finding("database", "ok", "there is no data yet; the first start makes it")
    message = f"{settings.data_dir} has the keys to {known.base_url}, not its data"
    remedy = "set BREAKERS_DATABASE_URL in this shell as the service has it; is its data lost, restore the backup"
    return Finding("database", "warning", message, remedy)


def schema(found: str | None, place: str, own_file: bool) -> Finding:
    """How the stored revision compares with the one of this program."""
    match migrations.word(found):
        case "newer":
            return Finding("database", "error", f"{place} has schema {found}", "run the version that made it, or later")
        case "older" if own_file:
            return Finding("database", "ok", f"{place} has schema {found}; the next start upgrades it")
        case "older":
            message = f"{place} has schema {found}, this program needs {migrations.HEAD}"
            return Finding("database", "error", message, "stop the service, then: breakers db upgrade")
        case "empty":
            return Finding("database", "ok", f"{place} is empty; the first start sets it up")
    return Finding("database", "ok", f"{place} answers, schema {found}")


def server_clock(connection: Connection, clock: Clock) -> Finding:
    """PostgreSQL's clock beside ours, give or take half of the time of the question."""
    before = clock.now_ms()
    theirs = float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp()) * 1000")).scalar_one())
    return skew(theirs - (before + clock.now_ms()) / 2)


def skew(apart_ms: float) -> Finding:
    """What to say of a clock that is so far before ours."""
    if abs(apart_ms) > SKEW_MS:
        message = f"PostgreSQL's clock is {apart_ms:+.0f} ms from ours"
        return Finding("database clock", "warning", message, "have chrony or systemd-timesyncd keep both clocks")
    return Finding("database clock", "ok", f"PostgreSQL's clock is within {SKEW_MS} ms of ours")


def services(connection: Connection) -> Iterator[Finding]:
    """Whether several services work with the database: each fences the others."""
    rows = connection.exec_driver_sql(LOOK).all()
    found = {one.token: one for one in sessions(rows)}
    if len(found) > 1:
        named = "; ".join(described(one) for one in found.values())
        remedy = "stop all but one: each ends the actors of the others"
        yield Finding("services", "error", f"{len(found)} services work with this database: {named}", remedy)
    elif found:
        yield Finding("services", "ok", f"one service works with this database: {described(*found.values())}")


def durability(connection: Connection) -> Finding:
    """Whether what is answered survives a loss of power."""
    if weakness := power_loss(connection):
        message = f"what is answered does not survive a loss of power: {weakness}"
        return Finding("durability", "warning", message, "docs/operations/log.md")
    return Finding("durability", "ok", "what is answered survives a loss of power")


def journals(settings: Settings) -> Iterator[Finding]:
    """Several of them where they gain nothing."""
    if settings.database_url is None and settings.journals > 1:
        yield Finding("journals", "warning", ONE_WRITER.format(journals=settings.journals), FEWER)


def signed_ingest(connection: Connection) -> Iterator[Finding]:
    """How many projects take samples of whoever knows their ids."""
    count, unsigned = signing(connection)
    if unsigned:
        yield Finding("signed ingest", "warning", unsigned_words(count, unsigned), SIGN)
    elif count:
        asks = "the project asks" if count == 1 else f"all {count} projects ask"
        yield Finding("signed ingest", "ok", f"{asks} for signed samples")
