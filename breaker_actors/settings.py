"""All settings, parsed once at start from BREAKERS_* environment variables and passed in; unknown names are errors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from breaker_actors.errors import Invalid

PREFIX = "BREAKERS_"


class Settings(BaseSettings):
    """Each field is the environment variable BREAKERS_<NAME IN CAPITALS>. README's table is made from this class."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    data_dir: Path = Field(Path(".breakers"), description="where databases, logs, keys and credentials.json live")
    database_url: SecretStr | None = Field(
        None, description="`postgresql://user:password@host/name`; unset: SQLite in the data dir, for one node"
    )
    secret_key: SecretStr | None = Field(
        None, description="64 hex digits, the key that seals secrets in the database; unset: kept in the data dir"
    )
    history_url: str | None = Field(
        None, description="path or fsspec URL of the history store; unset: `history` in the data dir"
    )
    host: str = Field("127.0.0.1", description="address the HTTP interface listens on")
    port: int = Field(7117, ge=0, le=65535, description="port of the HTTP interface; 0 picks a free one")
    health_token: str | None = Field(None, description="bearer token that the health endpoints ask for, when set")
    replicas: int = Field(1, ge=1, description="API replicas")
    breaker_actors: int | None = Field(
        None, ge=1, description="budget of BreakerActors; default max(2, 2 x CPUs of the cluster)"
    )
    router_actors: int | None = Field(None, ge=1, description="budget of RouterActors; default max(1, CPUs // 2)")
    window_samples_max: int = Field(1_000_000, ge=1, description="samples one window holds; older ones leave early")
    max_body_bytes: int = Field(8 << 20, ge=1, description="largest request body as sent; more is 413")
    max_inflated_bytes: int = Field(16 << 20, ge=1, description="largest request body after gzip; more is 413")
    max_sample_age_ms: int = Field(3_600_000, ge=0, description="older samples are rejected as ts_ms_too_old")
    max_sample_ahead_ms: int = Field(300_000, ge=0, description="samples further ahead are ts_ms_in_future")
    signature_skew_ms: int = Field(300_000, ge=0, description="how far X-EB-Timestamp may lie from our clock")
    secret_overlap_ms: int = Field(0, ge=0, description="how long the last ingest secret counts after a rotation")
    breakers_per_project_max: int = Field(10_000, ge=1, description="breakers of one project; more is 422")
    bulk_removal_percent_max: int = Field(
        50, ge=0, le=100, description="share of a project's breakers, when 10 or more, that one PUT may remove unasked"
    )
    duplicate_window_ms: int = Field(600_000, ge=0, description="how long a repeated request is recognised")
    duplicate_keys_max: int = Field(1_000_000, ge=1, description="duplicate keys a RouterActor holds; oldest go first")
    lane_samples_max: int = Field(
        200_000, ge=1, description="samples waiting in one lane; 64 bytes count as one at least"
    )
    feed_entries_max: int = Field(20_000, ge=1, description="feed entries a Journal keeps for replicas that lag")
    subscriber_queue_max: int = Field(
        1_000, ge=1, description="messages waiting for one stream client before it is cut"
    )
    streams_per_project_max: int = Field(2_000, ge=1, description="open state streams of one project per replica")
    rate_requests_per_s: int = Field(
        2_000, ge=0, description="requests of one key a second, other than ingest and events; 0 is no limit"
    )
    rate_events_per_s: int = Field(20, ge=0, description="reads of the events list of one key a second; 0 is no limit")
    rate_ingest_per_s: int = Field(0, ge=0, description="ingest requests of one project a second; 0 is no limit")
    checkpoint_interval_ms: int = Field(5_000, ge=1, description="how often changed breaker records are stored")
    heartbeat_interval_ms: int = Field(1_000, ge=1, description="how often a RouterActor notes that it takes samples")
    owner_timeout_ms: int = Field(1_000, ge=1, description="how long a read or a promise waits for an owner")
    max_clock_skew_ms: int = Field(
        500, ge=0, description="a router's new owner on another node waits so long before its first stamp"
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
    history_retention_days: int = Field(90, ge=1, description="how long events, audit and deliveries are kept")
    upkeep_interval_ms: int = Field(10_000, ge=1, description="how often logs are trimmed and old rows removed")
    metrics: bool = Field(True, description="false: no Prometheus metrics, which saves some idle work")
    notify_give_up_ms: int = Field(
        3_600_000, ge=1, description="how long a notification is tried before it is dead-lettered"
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
    log_synchronous: bool = Field(
        False, description="true: a sample answered 202 also survives a power loss (slower; PostgreSQL decides itself)"
    )

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, data_dir: Path) -> Path:
        """Actors have working directories of their own."""
        return data_dir.absolute()

    @property
    def history(self) -> str:
        """Where the history store is."""
        return self.history_url or str(self.data_dir / "history")

    @classmethod
    def table(cls) -> str:
        """README's settings table, in Markdown."""
        lines = ["| variable | default | what it sets |", "|---|---|---|"]
        for name, field in cls.model_fields.items():
            default = "" if field.default is None else f"`{str(field.default).lower()}`"
            lines.append(f"| `{PREFIX}{name.upper()}` | {default} | {field.description} |")
        return "\n".join(lines)


def load_settings(environ: Mapping[str, str] | None = None, **overrides: object) -> Settings:
    """Settings from the environment and explicit overrides (None = not given). Raises Invalid naming the variable."""
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    unknown = sorted(k for k in (environ or os.environ) if k.startswith(PREFIX) and k not in known)
    if unknown:
        raise Invalid(f"unknown setting {unknown[0]}", {"setting": unknown[0]})
    try:
        return Settings(**{k: v for k, v in overrides.items() if v is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        name = PREFIX + str(first["loc"][0]).upper()
        raise Invalid(f"{name}: {first['msg']}", {"setting": name}) from None
