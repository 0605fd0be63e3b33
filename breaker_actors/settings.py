"""All settings, parsed once at start from BREAKERS_* environment variables and passed in; unknown names are errors."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from breaker_actors.errors import Invalid
from breaker_actors.own_path import without_links

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

PREFIX = "BREAKERS_"
FILE = "_FILE"
JOURNALS_MAX = 16
SECRET_BYTES_MAX = 64 << 10
"""Bytes of a file that holds a secret, at most."""
CLIENT_VARIABLES = {
    "BREAKERS_URL": "base URL of the service; unset: what credentials.json says, of another machine only where the"
    " data directory is named (`--data-dir`, or a whole path in `BREAKERS_DATA_DIR`)",
    "BREAKERS_KEY": "a user or admin key; unset: that of credentials.json. It goes to another machine only with"
    " `BREAKERS_URL` or `--url`",
    "BREAKERS_PROJECT": "name or id of the project; unset: that of credentials.json",
    "BREAKERS_INGEST_TOKEN": "the ingest token that `breakers statsd` sends with, likewise",  # nosec B105 # what it is for
}
"""What commands that speak to a running service read besides the settings; of no meaning to the service."""
CLIENT_SECRETS = ("BREAKERS_KEY", "BREAKERS_INGEST_TOKEN")
"""Those of them that a file may hold."""


class Settings(BaseSettings):
    """Each field is the environment variable BREAKERS_<NAME IN CAPITALS>. Source of docs/reference/settings.md."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    data_dir: Path = Field(
        Path(".breakers"),
        validate_default=True,
        description="where databases, logs, keys and credentials.json live",
    )
    database_url: SecretStr | None = Field(
        None, description="`postgresql://user:password@host/name`; unset: SQLite in the data dir, for one node"
    )
    secret_key: SecretStr | None = Field(
        None, description="64 hex digits, the key that seals secrets in the database; unset: kept in the data dir"
    )
    bootstrap_admin_key: SecretStr | None = Field(
        None,
        description="admin key that the first start on an empty database makes, `eb_admin_` and 64 hex digits; unset:"
        " a random one",
    )
    history_url: str | None = Field(
        None, description="path or fsspec URL of the history store; unset: `history` in the data dir"
    )
    host: str = Field("127.0.0.1", description="address the HTTP interface listens on")
    ingress: Literal["haproxy", "serve"] | None = Field(
        None,
        description="what listens on the port: `haproxy`, or `serve`, Ray Serve's own proxy, for one node where HAProxy"
        " can't be had; unset: `haproxy` where it is installed",
    )
    port: int = Field(7117, ge=0, le=65535, description="port of the HTTP interface; 0 picks a free one")
    tls_cert: Path | None = Field(
        None, description="PEM file with the certificate of the HTTP interface and its chain; unset: no TLS"
    )
    tls_key: Path | None = Field(None, description="PEM file with its key, without a passphrase")
    connections_per_source_max: int | None = Field(
        None,
        ge=0,
        description="open connections of one source address, per node; unset: half of all, 0: no limit of its own",
    )
    health_token: str | None = Field(
        None, repr=False, description="bearer token that the health endpoints ask for, when set"
    )
    metrics_token: str | None = Field(
        None,
        min_length=16,
        repr=False,
        description="bearer token with which `/metrics` is read, of 16 characters or more; unset: nobody may",
    )
    metrics_open: bool = Field(False, description="whether everybody may read `/metrics`: names and states of breakers")
    metrics_breakers_max: int = Field(
        1_000, ge=0, description="breakers that `/metrics` shows, the oldest first; the rest is counted"
    )
    replicas: int = Field(1, ge=1, description="API replicas")
    breaker_actors: int | None = Field(
        None, ge=1, description="budget of BreakerActors; default max(2, 2 x CPUs of the cluster)"
    )
    router_actors: int | None = Field(None, ge=1, description="budget of RouterActors; default max(1, CPUs // 2)")
    journals: int = Field(
        1,
        ge=1,
        le=JOURNALS_MAX,
        description="Journals that new projects are spread over; a project keeps its own. More are faster on PostgreSQL"
        " only",
    )
    window_samples_max: int = Field(1_000_000, ge=1, description="samples one window holds; older ones leave early")
    window_project_samples_max: int = Field(
        10_000_000,
        ge=1,
        description="samples all windows of a project hold in a BreakerActor; the oldest leave early",
    )
    window_all_samples_max: int = Field(
        40_000_000,
        ge=1,
        description="the same of all projects together; the largest projects are cut to a common size",
    )
    max_body_bytes: int = Field(9 << 20, ge=1, description="largest request body as sent; more is 413")
    max_inflated_bytes: int = Field(
        4 << 20, ge=1, description="largest ingest body after gzip, or without it; more is 413"
    )
    bodies_in_flight_bytes: int = Field(
        64 << 20,
        ge=1,
        description="bytes of bodies, and of answers, a replica holds at a time, each caller a part; more is 429",
    )
    body_timeout_ms: int = Field(
        10_000, ge=1, description="64 KiB of a body, or its rest, have to arrive within this; slower is 408"
    )
    max_sample_age_ms: int = Field(3_600_000, ge=0, description="older samples are rejected as ts_ms_too_old")
    max_sample_ahead_ms: int = Field(300_000, ge=0, description="samples further ahead are ts_ms_in_future")
    signature_skew_ms: int = Field(300_000, ge=0, description="how far X-EB-Timestamp may lie from our clock")
    secret_overlap_ms: int = Field(
        600_000, ge=0, description="how long the last ingest secret counts after a rotation; 0: not at all"
    )
    transitions_per_minute_max: int = Field(
        12_000, ge=1, description="transitions of one project stored a minute, 20000 at once; what is beyond waits"
    )
    breakers_per_project_max: int = Field(10_000, ge=1, description="breakers of one project; more is 422")
    configuration_bytes_max: int = Field(
        64 << 20,
        ge=1 << 20,
        description="bytes of a project's breakers, routers, links, channels, mappings, mutes, keys; more is 422",
    )
    audit_bytes_max: int = Field(
        256 << 20,
        ge=1 << 20,
        description="bytes of a project's audit log, and of an organisation's own; beyond it entries are short, at"
        " twice that changes are 422",
    )
    events_max: int = Field(10_000_000, ge=1_000, description="events kept of a project; beyond it the oldest go early")
    deliveries_max: int = Field(
        1_000_000, ge=1_000, description="deliveries kept of a project; beyond it the oldest go early, ended ones first"
    )
    mappings_per_project_max: int = Field(200, ge=1, description="mappings of a project; more is 422")
    mutes_per_project_max: int = Field(200, ge=1, description="mutes of a project that have not ended; more is 422")
    mute_max_ms: int = Field(
        2_592_000_000, ge=60_000, description="how long a mute without windows may last; longer is 422"
    )
    mute_warning_ms: int = Field(
        600_000,
        ge=0,
        description="so long before a mute ends channels are warned, if something waits behind it;"
        " at most a quarter of its length",
    )
    mute_unmatched_ms: int = Field(
        604_800_000, ge=60_000, description="a mute without windows that matched no breaker for so long ends itself"
    )
    projects_per_org_max: int = Field(1_000, ge=1, description="projects of one organisation; more is 422")
    org_full_projects: int = Field(
        10,
        ge=1,
        description="an organisation keeps as much of configuration, events and deliveries as so many projects may,"
        " however many it has",
    )
    workspaces_per_org_max: int = Field(1_000, ge=1, description="workspaces of one organisation; more is 422")
    keys_per_org_max: int = Field(
        10_000, ge=3, description="API keys of one organisation, those of its projects included; more is 422"
    )
    bulk_removal_percent_max: int = Field(
        50, ge=0, le=100, description="share of a project's breakers, when 10 or more, that one PUT may remove unasked"
    )
    console_session_ms: int = Field(
        43_200_000, ge=60_000, description="how long a session of the console lasts before its reader signs in again"
    )
    override_max_ms: int = Field(
        86_400_000, ge=1_000, description="how long an override may last, where a project says nothing else"
    )
    duplicate_window_ms: int = Field(600_000, ge=0, description="how long a repeated request is recognised")
    duplicate_keys_max: int = Field(
        1_000_000, ge=1, description="duplicate keys a RouterActor holds; the oldest of who holds most go first"
    )
    counter_series_max: int = Field(
        10_000, ge=1, description="cumulative series whose last point is kept for one router; new ones wait for room"
    )
    counter_series_all_max: int = Field(
        1_000_000,
        ge=1,
        description="the same for all routers of a RouterActor that one organisation alone has, a quarter of it for a"
        " project; of all organisations twice as many; at most what a sixteenth of a log's bound holds",
    )
    lane_samples_max: int = Field(
        200_000,
        ge=1,
        description="samples of a project waiting in one lane, where no other has some; 64 bytes count as one at least",
    )
    feed_entries_max: int = Field(20_000, ge=1, description="feed entries a Journal keeps for replicas that lag")
    subscriber_queue_max: int = Field(
        1_000, ge=1, description="messages a stream client may be behind and still gets each one; then latest states"
    )
    streams_per_project_max: int = Field(2_000, ge=1, description="open state streams of one project per replica")
    streams_per_org_max: int | None = Field(
        None,
        ge=0,
        description="open state streams of one organisation alone per replica, of all less than twice as many; unset:"
        " half of HAProxy's connections, shared by the replicas, 0: no limit of its own",
    )
    rate_requests_per_s: int = Field(
        2_000, ge=0, description="requests of one key a second, other than ingest and events; 0 is no limit"
    )
    rate_events_per_s: int = Field(20, ge=0, description="reads of the events list of one key a second; 0 is no limit")
    rate_reads_per_s: int = Field(
        20_000,
        ge=0,
        description="things of one project that lists and batches tell a second; 0 is no limit",
    )
    rate_tests_per_minute: int = Field(
        10, ge=0, description="test notifications of one project, and of one key, a minute; 0 is no limit"
    )
    rate_examined_per_minute: int = Field(
        1_200,
        ge=0,
        description="addresses of one project's channels that apprise looks at a minute, as plans and creates have it;"
        " 0 is no limit",
    )
    rate_ingest_per_s: int = Field(
        0, ge=0, description="ingest requests a second of one project, and of each ingest token; 0 is no limit"
    )
    rate_unknown_per_s: int = Field(
        500,
        ge=0,
        description="requests of one address a second without a key or project that is known; HAProxy of each node lets"
        " a fifth of it through; 0 is no limit",
    )
    rate_handshakes_per_s: int = Field(
        200,
        ge=0,
        description="new connections with TLS of one source address a second, per node; 0 is no limit",
    )
    rate_waste_bytes_per_s: int = Field(
        512 << 10,
        ge=0,
        description="bytes of bad bodies of one address and project (of one organisation) a second; 0 is no limit",
    )
    checkpoint_interval_ms: int = Field(5_000, ge=1, description="how often changed breaker records are stored")
    heartbeat_interval_ms: int = Field(1_000, ge=1, description="how often a RouterActor notes that it takes samples")
    owner_timeout_ms: int = Field(1_000, ge=1, description="how long a read or a watermark waits for an owner")
    max_clock_skew_ms: int = Field(
        500, ge=0, description="a router's new owner on another node waits so long before its first stamp"
    )
    clock_step_max_ms: int = Field(
        5_000,
        ge=1_000,
        description="a wall clock that steps ahead by more is believed once that has lasted a minute; a log that is"
        " ahead of the clock by more takes no samples",
    )
    rebalance_moves_per_minute: int = Field(
        60, ge=0, description="breakers moved to new actors a minute when the cluster grew; 0: only on command"
    )
    log_retention_ms: int = Field(
        86_400_000, ge=0, description="how long the sample log is kept; never less than a breaker still has to read"
    )
    log_bytes_max: int = Field(
        8 << 30, ge=1 << 20, description="bytes of one RouterActor's log; trimmed early at 80 %, beyond it 429"
    )
    log_project_percent_max: int = Field(
        25, ge=1, le=100, description="share of `BREAKERS_LOG_BYTES_MAX` that a project's logs may take; beyond it 429"
    )
    history_retention_days: int = Field(90, ge=1, description="how long events, audit and deliveries are kept")
    upkeep_interval_ms: int = Field(10_000, ge=1, description="how often logs are trimmed and old rows removed")
    metrics: bool = Field(True, description="false: no Prometheus metrics, which saves some idle work")
    notify_give_up_ms: int = Field(
        3_600_000, ge=1, description="how long a notification is tried before it is dead-lettered"
    )
    alert_renewal_ms: int = Field(
        60_000,
        ge=100,
        description="how often alerts that stand are sent to Alertmanagers again; one that is not ends after four times"
        " as long",
    )
    notify_timeout_ms: int = Field(10_000, ge=1, description="how long one attempt to deliver may take")
    allow_private_destinations: bool = Field(
        False, description="true: notifications may go to private, loopback and link-local addresses"
    )
    smtp_host: str | None = Field(None, description="mail server for email channels")
    smtp_port: int = Field(587, ge=1, le=65535, description="its port")
    smtp_tls: Literal["none", "starttls", "tls"] = Field("starttls", description="none, starttls or tls")
    smtp_username: str | None = Field(None, description="login, when the mail server asks for one")
    smtp_password: SecretStr | None = Field(None, description="its password")
    smtp_from: str = Field("breakers@localhost", description="sender of mails")
    durability: Literal["power", "process"] = Field(
        "power",
        description="what survives with all that was answered: a loss of `power` (each commit is synced), or the end of"
        " a `process` only, which is faster; SQLite's, PostgreSQL has its own `synchronous_commit`",
    )
    log_synchronous: bool | None = Field(
        None, description="earlier name of `BREAKERS_DURABILITY`: true is `power`, false `process`"
    )

    @field_validator("data_dir")
    @classmethod
    def _without_links(cls, path: Path) -> Path:
        """All processes use the path that was judged once. Raises Invalid."""
        return without_links(path)

    @field_validator("tls_cert", "tls_key")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        """Actors have working directories of their own."""
        return path and path.absolute()

    @field_validator("health_token", "metrics_token")
    @classmethod
    def _sendable(cls, token: str | None) -> str | None:
        if token is not None and not fits_header(token):
            raise ValueError("no token has such characters: look for a line end, or a blank before or behind it")
        return token

    @model_validator(mode="after")
    def _one_durability(self) -> Settings:
        if self.log_synchronous is not None and "durability" in self.model_fields_set:
            raise ValueError("BREAKERS_DURABILITY and its earlier name BREAKERS_LOG_SYNCHRONOUS are both set: set one")
        return self

    @property
    def synced(self) -> bool:
        """Whether each commit to SQLite is synced before it is answered."""
        return self.durability == "power" if self.log_synchronous is None else self.log_synchronous

    @property
    def history(self) -> str:
        """Where the history store is."""
        return self.history_url or str(self.data_dir / "history")

    @classmethod
    def secrets(cls) -> tuple[str, ...]:
        """Names of the fields that hold a secret: nothing shows them, and a file may hold each."""
        fields = cls.model_fields.items()
        return tuple(name for name, f in fields if SecretStr in get_args(f.annotation) or not f.repr)

    @classmethod
    def table(cls) -> str:
        """The table of docs/reference/settings.md."""
        lines, secrets = ["| variable | default | what it sets |", "|---|---|---|"], cls.secrets()
        for name, field in cls.model_fields.items():
            default = "" if field.default is None else f"`{str(field.default).lower()}`"
            says = f"{field.description} (secret)" if name in secrets else field.description
            lines.append(f"| `{PREFIX}{name.upper()}` | {default} | {says} |")
        return "\n".join(lines)


def fits_header(secret: str) -> bool:
    """Whether a header can say it: what can't be sent would be shown whole by the client that fails to."""
    return secret.isascii() and secret.isprintable() and secret == secret.strip()


def from_here(host: str) -> str:
    """The address under which this machine reaches what listens on `host`: loopback for all of its addresses."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # nosec B104 # replaced


def client_table() -> str:
    """The table of variables that only commands read."""
    rows = (
        f"| `{name}` | {text}{' (secret)' if name in CLIENT_SECRETS else ''} |"
        for name, text in CLIENT_VARIABLES.items()
    )
    return "\n".join(["| variable | what it says |", "|---|---|", *rows])


def variables() -> frozenset[str]:
    """Every variable there is, those that name a file included."""
    settings = {PREFIX + name.upper() for name in Settings.model_fields}
    secrets = {PREFIX + name.upper() for name in Settings.secrets()}
    return frozenset(settings | CLIENT_VARIABLES.keys() | {name + FILE for name in (*secrets, *CLIENT_SECRETS)})


def load_settings(environ: Mapping[str, str] | None = None, **overrides: object) -> Settings:
    """Settings from the environment and explicit overrides (None = not given). Raises Invalid that names each wrong
    variable."""
    known = variables()
    unknown = sorted(k for k in (environ or os.environ) if k.startswith(PREFIX) and k not in known)
    if unknown:
        raise Invalid("; ".join(_unknown(name, known) for name in unknown), {"setting": unknown[0]})
    given = {name: text for name in Settings.secrets() if (text := secret_of_file(PREFIX + name.upper())) is not None}
    try:
        return Settings(**given | {k: v for k, v in overrides.items() if v is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        fields = [(str((*found["loc"], "")[0]), _why(found["msg"], found)) for found in error.errors()]
        wrong = [(PREFIX + field.upper() + FILE * (field in given), why) for field, why in fields]
        told = (f"{name}: {text}" if name != PREFIX else text for name, text in wrong)
        raise Invalid("; ".join(told), {"setting": wrong[0][0]}) from None


def _why(message: str, found: ErrorDetails) -> str:
    """What is wrong with a variable; of a time that is no number in which unit it is."""
    field = str((*found["loc"], "")[0])
    unit = "milliseconds" if field.endswith("_ms") else "days" if field.endswith("_days") else ""
    return f"{message}: it is a number of {unit}" if unit and found["type"].startswith(("int", "float")) else message


def secret_of_file(variable: str) -> str | None:
    """The secret in the file that `<variable>_FILE` names; None: that is not set. Raises Invalid, also for both set."""
    name = variable + FILE
    path = os.environ.get(name)
    if path is None:
        return None
    if variable in os.environ:
        raise Invalid(f"{variable} and {name} are both set: set one of them", {"setting": name})
    return read_secret(path, name)


def read_secret(path: str, name: str) -> str:
    """The secret in a file, without its last line end. Raises Invalid, which has the `name` of who asks and never the
    content, for what is no file with a line of text."""
    try:
        content = _read_bounded(path)
        text = content.decode().removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise Invalid(f"{name}: {path} can't be read: {error.strerror}", {"setting": name}) from None
    except UnicodeDecodeError:
        raise Invalid(f"{name}: {path} is not UTF-8 text", {"setting": name}) from None
    why = _unfit(content, text)
    if why is not None:
        raise Invalid(f"{name}: {path} {why}", {"setting": name})
    return text


def _read_bounded(path: str) -> bytes:
    """At most one byte more than a secret may have. Raises OSError, also for what is no regular file: a pipe without a
    writer would never end."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(0, "no regular file")
        return file.read(SECRET_BYTES_MAX + 1)


def _unfit(content: bytes, text: str) -> str | None:
    """Why a file's content is no secret."""
    if len(content) > SECRET_BYTES_MAX:
        return f"has more than {SECRET_BYTES_MAX} bytes"
    if not text:
        return "is empty"
    return None if text.isprintable() else "has more than one line, or what can't be printed"


def _unknown(name: str, known: Iterable[str]) -> str:
    """What to tell of a variable that is no setting."""
    near = get_close_matches(name.removeprefix(PREFIX), [other.removeprefix(PREFIX) for other in known], n=1)
    return f"unknown setting {name}" + (f": did you mean {PREFIX}{near[0]}?" if near else "")
