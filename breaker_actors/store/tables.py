"""The schema, as portable SQLAlchemy Core: the same tables on SQLite and PostgreSQL.

Nothing cascades in the database: the code that deletes a row deletes what hangs on it, in the same transaction, so that
the rule can be read there. `number` columns give the order of insertion; ids are uuids as text.
"""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.types import TypeDecorator

from breaker_actors.core.model import Agg, Control, Rule
from breaker_actors.store.mappings.model import UNREADABLE_SERIES, UNREADABLE_TO, MappingTo, SeriesMatcher
from breaker_actors.store.mutes.matching import Matcher
from breaker_actors.store.mutes.schedule import Window
from breaker_actors.store.rows import (
    UNREADABLE_ALERT,
    UNREADABLE_MATCHERS,
    UNREADABLE_RULE,
    UNREADABLE_WINDOWS,
    AlertPayload,
)
from breaker_actors.telemetry.set_aside import note_column

# SQLite gives out row numbers for a column declared exactly INTEGER only; PostgreSQL needs 64 bits for them.
Number = BigInteger().with_variant(Integer, "sqlite")

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_name)s",
    }
)


class JsonText(TypeDecorator[Any]):
    """A value kept as JSON text, read back as `shape`. `place`: its table and column. What can't be read is noted
    there (`setaside.py`), and `instead` stands for it: one bad row must not take a query from all others."""

    impl = Text
    cache_ok = True

    def __init__(self, shape: Any, place: str, instead: Any = None) -> None:
        super().__init__()
        self.shape = shape
        self.place = place
        self._instead = instead
        self._decoder = msgspec.json.Decoder(shape)

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else msgspec.json.encode(value).decode()

    def fault(self, value: str) -> str:
        """Why a stored text can't be read; "" when it can."""
        try:
            self._decoder.decode(value)
        except Exception as error:
            return str(error)
        return ""

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        if value is None:
            return None
        try:
            return self._decoder.decode(value)
        except Exception as error:
            note_column(self.place, value, error)
            return self._instead


orgs = Table(
    "orgs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("inserted_ms", BigInteger, nullable=False),
)

workspaces = Table(
    "workspaces",
    metadata,
    Column("id", Text, primary_key=True),
    Column("org_id", Text, ForeignKey(orgs.c.id), nullable=False, index=True),
    Column("name", Text, nullable=False),
    Column("slug", Text, nullable=False),
    Column("inserted_ms", BigInteger, nullable=False),
)

# `previous_secret` signs beside the current one until `previous_until_ms`. `deleted_ms`: gone for every read, kept
# until the last of its routers is. `breakers_version`: another one after each change of its breakers or their links.
# `replacing`: the claim of the bulk replace under way.
projects = Table(
    "projects",
    metadata,
    Column("number", Number, primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False, unique=True),
    Column("workspace_id", Text, ForeignKey(workspaces.c.id), nullable=False, index=True),
    Column("name", Text),
    Column("enable_signed_ingest", Boolean, nullable=False),
    Column("ingest_secret", LargeBinary, nullable=False),
    Column("slack_webhook_url", LargeBinary),
    Column("trace_id_url_template", Text),
    Column("shard", Integer, nullable=False),
    Column("inserted_ms", BigInteger, nullable=False),
    Column("breakers_updated_ms", BigInteger, nullable=False),
    Column("previous_secret", LargeBinary),
    Column("previous_until_ms", BigInteger),
    Column("deleted_ms", BigInteger),
    Column("breakers_version", BigInteger, nullable=False, server_default="0"),
    Column("replacing", Text),
    Column("override_max_ms", BigInteger),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("org_id", Text, ForeignKey(orgs.c.id), nullable=False, index=True),
    Column("project_id", Text, ForeignKey(projects.c.id), index=True),
    Column("kind", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("key_prefix", Text, nullable=False),
    Column("key_sha256", Text, nullable=False, unique=True),
    Column("inserted_ms", BigInteger, nullable=False),
    Column("last_used_ms", BigInteger),
)

# A row may outlive its key, until its end: `key_id` is no foreign key.
console_sessions = Table(
    "console_sessions",
    metadata,
    Column("token_sha256", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("key_id", Text, nullable=False, index=True),
    Column("inserted_ms", BigInteger, nullable=False),
    Column("ends_ms", BigInteger, nullable=False, index=True),
)

breakers = Table(
    "breakers",
    metadata,
    Column("number", Number, primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False, unique=True),
    Column("project_id", Text, ForeignKey(projects.c.id), nullable=False),
    Column("name", Text, nullable=False),
    Column("rule", JsonText(Rule, "breakers.rule", UNREADABLE_RULE), nullable=False),
    Column("actions", JsonText(dict[str, Any], "breakers.actions")),
    Column("metadata", JsonText(dict[str, str], "breakers.metadata", {}), nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
    Column("owner", Text),
    Column("epoch", BigInteger, nullable=False),
    Column("control", JsonText(Control, "breakers.control")),
    Column("shadow_of", Text, index=True),
)
Index("ix_breakers_project_created", breakers.c.project_id, breakers.c.created_ms, breakers.c.number)
Index("ix_breakers_project_name", breakers.c.project_id, breakers.c.name)

# `deleted_ms`: gone for every read, kept until its last change is in its log (only an owner can append it there).
routers = Table(
    "routers",
    metadata,
    Column("number", Number, primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False, unique=True),
    Column("project_id", Text, ForeignKey(projects.c.id), nullable=False, index=True),
    Column("name", Text, nullable=False),
    Column("mode", Text, nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("metadata", JsonText(dict[str, str], "routers.metadata", {}), nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("inserted_ms", BigInteger, nullable=False),
    Column("deleted_ms", BigInteger),
    Column("owner", Text),
    Column("epoch", BigInteger, nullable=False),
    Column("log_slot", Text),
    Column("reached_offset", BigInteger, nullable=False, server_default="0"),
)

# `number` orders a router's breakers and a breaker's routers alike. `since_offset`: NULL until settled.
links = Table(
    "links",
    metadata,
    Column("number", Number, primary_key=True, autoincrement=True),
    Column("router_id", Text, ForeignKey(routers.c.id), nullable=False),
    Column("breaker_id", Text, ForeignKey(breakers.c.id), nullable=False, index=True),
    Column("since_offset", BigInteger),
    UniqueConstraint("router_id", "breaker_id"),
)

# Links that ended: windows reach back to them for a while, and a breaker that was away has to read up to their end.
# `change_id` is the change that ends it; `until_offset`: NULL until that is settled, then the record that ended it.
# The router may be gone, so its id is no foreign key and its slot is kept.
ended_links = Table(
    "ended_links",
    metadata,
    Column("breaker_id", Text, ForeignKey(breakers.c.id), primary_key=True),
    Column("router_id", Text, primary_key=True),
    Column("since_offset", BigInteger),
    Column("log_slot", Text),
    Column("change_id", BigInteger, nullable=False, index=True),
    Column("until_offset", BigInteger),
    Column("ended_ms", BigInteger, nullable=False),
)

# A settled change's id is never given out again: a late settle of it must not remove another change.
changes = Table(
    "changes",
    metadata,
    Column("id", Number, primary_key=True, autoincrement=True),
    Column("router_id", Text, ForeignKey(routers.c.id), nullable=False, index=True),
    Column("project_id", Text, nullable=False),
    Column("entries", LargeBinary, nullable=False),
    Column("links", JsonText(tuple[str, ...], "changes.links", ()), nullable=False),
    Index("ix_changes_project_id", "project_id", "id"),
    sqlite_autoincrement=True,
)

# `event_checksum`: that of the breaker's newest event.
records = Table(
    "records",
    metadata,
    Column("breaker_id", Text, ForeignKey(breakers.c.id), primary_key=True),
    Column("transition_seq", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("allow_rate", Float, nullable=False),
    Column("record", LargeBinary),
    Column("cut", JsonText(dict[str, int], "records.cut"), nullable=False),
    Column("settings", LargeBinary),
    Column("event_checksum", BigInteger),
    Column("checksum", BigInteger),
)


def _transition(table: str) -> tuple[Column[Any], ...]:
    """What is known of a transition. It outlives its breaker, so breaker_id is no foreign key; another project may have
    taken the id since."""
    return (
        Column("project_id", Text, nullable=False),
        Column("breaker_id", Text, nullable=False),
        Column("name", Text, nullable=False),
        Column("prev", Text, nullable=False),
        Column("curr", Text, nullable=False),
        Column("ts_ms", BigInteger, nullable=False),
        Column("transition_seq", BigInteger, nullable=False),
        Column("reason", Text, nullable=False),
        Column("allow_rate", Float, nullable=False),
        Column("value", Float),
        Column("rule", JsonText(dict[str, Any], f"{table}.rule", msgspec.to_builtins(UNREADABLE_RULE)), nullable=False),
        Column("agg", JsonText(dict[str, Any], f"{table}.agg", msgspec.to_builtins(Agg())), nullable=False),
    )


# `before`: the checksum of the breaker's event before it; see `checksums`.
events = Table(
    "events",
    metadata,
    Column("shard", Integer, primary_key=True, autoincrement=False),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    *_transition("events"),
    Column("hidden_by", Text),
    Column("by", Text),
    Column("comment", Text),
    Column("before", BigInteger),
    Column("checksum", BigInteger),
    UniqueConstraint("breaker_id", "project_id", "transition_seq"),
)
Index("ix_events_project_newest", events.c.project_id, events.c.ts_ms, events.c.sequence)
Index("ix_events_breaker_newest", events.c.project_id, events.c.breaker_id, events.c.ts_ms, events.c.sequence)
Index("ix_events_project_sequence", events.c.project_id, events.c.sequence)
# Where outages begin: a breaker that is never well for long has thousands of events behind it. `outages.begins_outage`
# says the same in the same words, or it is not used.
_BEGINS = text("prev = 'closed' AND hidden_by IS NULL")
_E = events.c
Index(
    "ix_events_outage", _E.breaker_id, _E.project_id, _E.transition_seq, sqlite_where=_BEGINS, postgresql_where=_BEGINS
)

# What breakers would have done on samples that were loaded afterwards: no transition of theirs, so not numbered among
# `events`, and told to nobody.
backfill_events = Table(
    "backfill_events",
    metadata,
    Column("number", Number, primary_key=True, autoincrement=True),
    Column("run_id", Text, nullable=False),
    *_transition("backfill_events"),
    Column("inserted_ms", BigInteger, nullable=False),
    UniqueConstraint("run_id", "breaker_id", "transition_seq"),
    sqlite_autoincrement=True,
)
_B = backfill_events.c
Index("ix_backfill_events_project_newest", _B.project_id, _B.ts_ms, _B.number)
Index("ix_backfill_events_breaker_newest", _B.project_id, _B.breaker_id, _B.ts_ms, _B.number)
Index("ix_backfill_events_project_number", _B.project_id, _B.number)

journals = Table(
    "journals",
    metadata,
    Column("shard", Integer, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    Column("sequence", BigInteger, nullable=False),
)

directory = Table(
    "directory",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
)

# Stream names that went away, kept for a day, also beyond their project. See `change_rows.note_stream_names`.
gone_names = Table(
    "gone_names",
    metadata,
    Column("project_id", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("until_ms", BigInteger, nullable=False, index=True),
)
_G = gone_names.c
Index("ix_gone_names_project_until", _G.project_id, _G.until_ms, _G.name)

# `config` is a sealed JSON object: it holds addresses and secrets.
channels = Table(
    "channels",
    metadata,
    Column("number", Number, primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False, unique=True),
    Column("project_id", Text, ForeignKey(projects.c.id), nullable=False, index=True),
    Column("name", Text, nullable=False),
    Column("channel", Text, nullable=False),
    Column("config", LargeBinary, nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("events", JsonText(tuple[str, ...], "channels.events", ()), nullable=False),
    Column("inserted_ms", BigInteger, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
)

# Outlives what it tells of, so its ids are no foreign keys.
audit = Table(
    "audit",
    metadata,
    Column("number", Number, primary_key=True, autoincrement=True),
    Column("org_id", Text),
    Column("project_id", Text),
    Column("at_ms", BigInteger, nullable=False),
    Column("who", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("target_id", Text, nullable=False),
    Column("before", JsonText(dict[str, Any], "audit.before")),
    Column("after", JsonText(dict[str, Any], "audit.after")),
    sqlite_autoincrement=True,
)
Index("ix_audit_project_number", audit.c.project_id, audit.c.number)
Index("ix_audit_target", audit.c.project_id, audit.c.target_id, audit.c.number)
_OF_NO_PROJECT = audit.c.project_id.is_(None)
Index("ix_audit_org", audit.c.org_id, audit.c.number, sqlite_where=_OF_NO_PROJECT, postgresql_where=_OF_NO_PROJECT)

# "access" goes up with every change of who may do what, so that a change made outside the service is noticed.
counters = Table(
    "counters",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", BigInteger, nullable=False),
)

# What each project keeps: bytes of "configuration" and "audit", numbers of "events", "deliveries", links that ended
# ("ended_links") and "redrives" so far. What each organisation keeps: bytes of "org_audit" (its own log), "gone_audit"
# (of its deleted projects) and "answers", numbers of "projects", "workspaces" and "keys". `of_id`: the project or
# organisation.
stored = Table(
    "stored",
    metadata,
    Column("of_id", Text, primary_key=True),
    Column("what", Text, primary_key=True),
    Column("used", BigInteger, nullable=False),
)
Index("ix_stored_what_used", stored.c.what, stored.c.used)

# One row, made with the table: another database has another id, a copy or backup the same.
identity = Table("identity", metadata, Column("id", Text, primary_key=True))

# A check value of the key that seals secrets: another key is noticed when the store is opened, not at the first secret.
seals = Table(
    "seals",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", LargeBinary, nullable=False),
)

# What people don't hear: see `mutes/`. `matched_ms`: when a breaker matched last; `warned_ms`: the end that was warned
# of.
mutes = Table(
    "mutes",
    metadata,
    Column("number", Number, primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False, unique=True),
    Column("project_id", Text, ForeignKey(projects.c.id), nullable=False),
    Column("matchers", JsonText(tuple[Matcher, ...], "mutes.matchers", UNREADABLE_MATCHERS), nullable=False),
    Column("all", Boolean, nullable=False),
    Column("starts_ms", BigInteger, nullable=False),
    Column("ends_ms", BigInteger),
    Column("windows", JsonText(tuple[Window, ...], "mutes.windows", UNREADABLE_WINDOWS), nullable=False),
    Column("zone", Text, nullable=False),
    Column("comment", Text, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("created_name", Text, nullable=False),
    Column("inserted_ms", BigInteger, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
    Column("ended_ms", BigInteger),
    Column("ended_reason", Text),
    Column("matched_ms", BigInteger),
    Column("warned_ms", BigInteger),
    sqlite_autoincrement=True,
)
_LIVE = text("ended_ms IS NULL")
Index("ix_mutes_project_number", mutes.c.project_id, mutes.c.number)
Index("ix_mutes_live", mutes.c.project_id, sqlite_where=_LIVE, postgresql_where=_LIVE)
Index("ix_mutes_ends", mutes.c.ends_ms, sqlite_where=_LIVE, postgresql_where=_LIVE)
_OVER = text("ended_ms IS NOT NULL")
Index("ix_mutes_ended", mutes.c.ended_ms, sqlite_where=_OVER, postgresql_where=_OVER)

# What becomes of series of open protocols: see `mappings/`. `position`: from 1 on, without gaps within a project.
mappings = Table(
    "mappings",
    metadata,
    Column("number", Number, primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False, unique=True),
    Column("project_id", Text, ForeignKey(projects.c.id), nullable=False),
    Column("position", Integer, nullable=False),
    Column("name", Text, nullable=False),
    Column("matchers", JsonText(tuple[SeriesMatcher, ...], "mappings.matchers", UNREADABLE_SERIES), nullable=False),
    Column("to", JsonText(MappingTo, "mappings.to", UNREADABLE_TO), nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("version", Integer, nullable=False),
    Column("inserted_ms", BigInteger, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
)
Index("ix_mappings_project_position", mappings.c.project_id, mappings.c.position)

# What files of rules declare: who owns a thing of a project and what was applied last, in the words of the files and
# with references in the place of secrets. A row outlives its thing until its owner applies again: nothing is forgotten
# that somebody deleted by hand. `kind`: its section in the files.
declared = Table(
    "declared",
    metadata,
    Column("project_id", Text, ForeignKey(projects.c.id), primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("thing_id", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("fields", JsonText(dict[str, Any], "declared.fields", {}), nullable=False),
    Column("labels", JsonText(dict[str, str], "declared.labels", {}), nullable=False),
    Column("stamp", BigInteger, nullable=False),
    Column("applied_ms", BigInteger, nullable=False),
    Column("applied_by", Text, nullable=False),
)

# What alerts say, once for all rows of the outbox that say the same.
alert_payloads = Table(
    "alert_payloads",
    metadata,
    Column("id", Text, primary_key=True),
    Column("project_id", Text, nullable=False),
    Column("payload", JsonText(AlertPayload, "alert_payloads.payload", UNREADABLE_ALERT), nullable=False),
)

# Who is to be told of what: a row per event and channel, written with the event (architecture.md section 3.7). Outlives
# channel and breaker, so its ids are no foreign keys. `channel_id`: the project's own id for its slack_webhook_url.
# `shard`, `sequence`: the event; NULL for the end of a deleted breaker. `incident`: the sequence of the event that the
# outage began with; NULL where no trip has to go before. `since_ms`: since when it is being tried.
outbox = Table(
    "outbox",
    metadata,
    Column("number", Number, primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False, unique=True),
    Column("project_id", Text, nullable=False),
    Column("channel_id", Text, nullable=False),
    Column("breaker_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("shard", Integer),
    Column("sequence", BigInteger),
    Column("transition_seq", BigInteger, nullable=False),
    Column("incident", BigInteger),
    Column("told", JsonText(AlertPayload, "outbox.told", UNREADABLE_ALERT)),
    Column("state", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("next_ms", BigInteger, nullable=False),
    Column("since_ms", BigInteger),
    Column("lease_epoch", BigInteger),
    Column("lease_until_ms", BigInteger),
    Column("last_status", Integer),
    Column("last_error", Text),
    Column("created_ms", BigInteger, nullable=False),
    Column("ended_ms", BigInteger),
    Column("mute_id", Text),
    Column("payload_id", Text, ForeignKey(alert_payloads.c.id), index=True),
    UniqueConstraint("shard", "sequence", "channel_id"),
    sqlite_autoincrement=True,
)
# No other index begins with channel_id: one with the ended rows would be taken for as good, and is not.
_PENDING = text("state = 'pending'")
Index("ix_outbox_pending", outbox.c.channel_id, outbox.c.number, sqlite_where=_PENDING, postgresql_where=_PENDING)
_HELD = text("state = 'held'")
Index("ix_outbox_held", outbox.c.project_id, outbox.c.breaker_id, sqlite_where=_HELD, postgresql_where=_HELD)
Index("ix_outbox_held_number", outbox.c.number, sqlite_where=_HELD, postgresql_where=_HELD)
Index("ix_outbox_channel_newest", outbox.c.project_id, outbox.c.channel_id, outbox.c.number)
_OUTAGE = (outbox.c.incident, outbox.c.channel_id, outbox.c.kind, outbox.c.state, outbox.c.number)
Index("ix_outbox_outage", *_OUTAGE)
Index("ix_outbox_created", outbox.c.created_ms)
Index("ix_outbox_project_number", outbox.c.project_id, outbox.c.number)

notifier = Table(
    "notifier",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
)

# What a create was answered with, for the same request again: sealed, as it may hold a secret that is shown once.
# `operation`: method and path. `project_id`: the rows go with their project; NULL for what is made outside of one.
idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("number", Number, primary_key=True, autoincrement=True),
    Column("org_id", Text, nullable=False),
    Column("project_id", Text, index=True),
    Column("operation", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("sealed", LargeBinary, nullable=False),
    Column("inserted_ms", BigInteger, nullable=False, index=True),
    UniqueConstraint("org_id", "operation", "key"),
)
Index("ix_idempotency_keys_org_number", idempotency_keys.c.org_id, idempotency_keys.c.number)

# What is known of channels that do not answer. `version`: of the address it was learnt of; another one starts anew.
circuits = Table(
    "circuits",
    metadata,
    Column("channel_id", Text, primary_key=True),
    Column("version", Text, nullable=False),
    Column("record", LargeBinary, nullable=False),
    Column("not_before_ms", BigInteger, nullable=False),
    Column("last_status", Integer),
    Column("last_error", Text),
)

# What could not be read (`breaker_actors/telemetry/set_aside.py`): whose it was and its first bytes, for whoever
# operates the service. `place`: an offset, the id of a change, or a check sum.
set_aside = Table(
    "set_aside",
    metadata,
    Column("number", Number, primary_key=True, autoincrement=True),
    Column("kind", Text, nullable=False),
    Column("thing", Text, nullable=False),
    Column("place", BigInteger, nullable=False),
    Column("project_id", Text),
    Column("reason", Text, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("times", BigInteger, nullable=False),
    Column("first_ms", BigInteger, nullable=False),
    Column("seen_ms", BigInteger, nullable=False),
    UniqueConstraint("kind", "thing", "place"),
    sqlite_autoincrement=True,
)
