"""What the service keeps durably: one protocol for each role, so that every host takes what it may do and no more.
`sql_store.py` implements all of them for SQLite and PostgreSQL; the rows are in `rows.py`.

Every method is one transaction, runs on the event loop and raises errors.Unavailable when the database does not answer.
`now_ms` is the caller's clock. With `once` a write that was done before raises Repeated, and IdempotencyKeyReused when
that was another one. Configuration writes are rows plus `changes` rows that the Directory later appends to the routers'
logs (architecture.md section 3.6), plus a row of the audit log that names `by` whom. Runtime writes (records, events)
come from the Journal only, fenced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, Protocol

from breaker_actors.core.log_entries import RouterView
from breaker_actors.messages import (
    Aside,
    BreakerAssignment,
    ChangeRow,
    Commit,
    CommitResult,
    EventDraft,
    LogFloor,
    RouterAssignment,
    RouterRef,
)
from breaker_actors.store.mutes.matching import BreakerFacts
from breaker_actors.store.rows import (
    EVERY_ENTRY,
    SYSTEM,
    AccessVersion,
    AsideRow,
    AuditFilter,
    AuditRow,
    BreakerBrief,
    BreakerDraft,
    BreakerItem,
    BreakerMetadata,
    BreakerRow,
    ChannelDraft,
    ChannelKind,
    ChannelRow,
    CircuitRow,
    DeliveryQuery,
    DeliveryResult,
    DeliveryRow,
    EventQuery,
    EventRow,
    Failing,
    ForgottenLinks,
    HeldLook,
    JournalHead,
    KeyKind,
    KeyRow,
    Leased,
    MappingDraft,
    MappingItem,
    MappingRow,
    MuteDraft,
    MuteRow,
    MutesTended,
    Once,
    OrgRow,
    Placement,
    ProjectRow,
    ProjectRules,
    Replaced,
    RouterDraft,
    RouterRow,
    RulesChange,
    ScrapedBreaker,
    SessionRow,
    StoredFigures,
    StoredState,
    StreamSnapshot,
    Waiting,
    WorkspaceRow,
)
from breaker_actors.telemetry.set_aside import Asides

Edit = Callable[[BreakerRow], BreakerRow]
RouterEdit = Callable[[RouterRow], RouterRow]
MuteEdit = Callable[[MuteRow], MuteRow]
MappingEdit = Callable[[MappingRow], MappingRow]
ChannelEdit = Callable[[ChannelRow], ChannelRow]
Decide = Callable[[ProjectRules], RulesChange | None]
Check = Callable[[Sequence[BreakerRow], int], None]
"""Looks at the current breakers of a project and at how many of them would go; raises to keep them."""


class Access(Protocol):
    """A database that is reached."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def ping(self) -> None: ...
    async def database_id(self) -> str:
        """Which database this is: copies and backups keep it, no other one has it."""


class AsideNotes(Protocol):
    """What an actor notes of rows it cannot read."""

    asides: Asides
    """What this process could not read of the store; it comes into the table by itself."""


class AsideStore(AsideNotes, Protocol):
    """The table of what could not be read."""

    async def set_aside(self, entries: Sequence[Aside]) -> None:
        """Notes what could not be read; what is in the table already is counted there. Bounded, see `asides.py`."""

    async def list_aside(self, limit: int, before: int | None = None) -> list[AsideRow]:
        """Newest first; `before`: the number of the last row already given."""

    async def drop_aside(self, numbers: Sequence[int] | None = None) -> int:
        """Forgets rows (None: all); how many there were."""

    async def count_aside(self) -> tuple[int, int]:
        """How many rows there are, and how many entries found no room."""


class QuotaReads(Protocol):
    """What is kept, beside what may be kept."""

    async def configuration_bytes(self, project_id: str) -> int:
        """What a project's configuration takes: bytes of its texts, and a part for each row."""

    async def stored_figures(self) -> StoredFigures:
        """The projects and organisations that are near a bound of what they may keep, or beyond it; and what was left
        out for it."""


class AccessWatch(Protocol):
    """Tells that caches of keys and projects, or of sessions, are out of date."""

    async def access_version(self) -> AccessVersion:
        """Counters that only rise."""


class AccountStore(AccessWatch, Protocol):
    """Organisations with their keys, workspaces and projects."""

    async def create_org(self, name: str, now_ms: int) -> str: ...
    async def has_org(self) -> bool: ...
    async def list_orgs(self) -> list[OrgRow]: ...
    async def operator_org(self) -> str: ...
    async def create_key(
        self,
        org_id: str,
        kind: KeyKind,
        name: str,
        now_ms: int,
        project_id: str | None = None,
        by: str = SYSTEM,
        once: Once | None = None,
        key: str | None = None,
    ) -> tuple[KeyRow, str]:
        """The row and, only here, the key itself: a random one, or `key`, which has to be as random."""

    async def find_key(self, key: str) -> KeyRow | None: ...
    async def list_keys(self, org_id: str, project_id: str | None = None) -> list[KeyRow]:
        """In order of creation: all keys of the organisation, or those of one project."""

    async def revoke_key(
        self, org_id: str, key_id: str, now_ms: int, project_id: str | None = None, by: str = SYSTEM
    ) -> None:
        """Removes a key; with `project_id` only one of that project."""

    async def live_keys(self, key_ids: Sequence[str]) -> set[str]:
        """Those of the keys that are not revoked."""

    async def touch_keys(self, uses: Mapping[str, int]) -> None:
        """Notes when keys (id -> ms) were used last; a use within a minute of the noted one is not written."""

    async def create_workspace(
        self, org_id: str, name: str, slug: str, now_ms: int, by: str = SYSTEM, once: Once | None = None
    ) -> WorkspaceRow: ...
    async def list_workspaces(self, org_id: str) -> list[WorkspaceRow]: ...
    async def get_workspace(self, workspace_id: str) -> WorkspaceRow | None: ...
    async def update_workspace(
        self, workspace_id: str, fields: Mapping[str, str], now_ms: int, by: str = SYSTEM
    ) -> WorkspaceRow: ...
    async def delete_workspace(self, workspace_id: str, now_ms: int, by: str = SYSTEM) -> None:
        """Raises WorkspaceHasProjects while there are any."""

    async def create_project(
        self,
        org_id: str,
        workspace_id: str,
        name: str | None,
        now_ms: int,
        by: str = SYSTEM,
        once: Once | None = None,
    ) -> ProjectRow: ...
    async def list_projects(self, org_id: str, workspace_id: str | None = None) -> list[ProjectRow]: ...
    async def power_loss(self) -> str:
        """Why the newest commits may be gone after a loss of power; "" when all are there."""

    async def signing(self) -> tuple[int, int]:
        """How many projects there are, and how many of them take unsigned samples."""

    async def get_project(self, project_id: str) -> ProjectRow | None: ...
    async def live_projects(self, project_ids: Sequence[str]) -> set[str]:
        """Those of the projects that are not deleted."""

    async def update_project(
        self, project_id: str, fields: Mapping[str, Any], now_ms: int, by: str = SYSTEM
    ) -> ProjectRow: ...
    async def rotate_secret(
        self, project_id: str, now_ms: int, overlap_ms: int = 0, by: str = SYSTEM, once: Once | None = None
    ) -> ProjectRow: ...
    async def delete_project(self, project_id: str, now_ms: int, by: str = SYSTEM) -> list[int]:
        """The project is gone for reads at once. Its breakers end through the routers' logs, in steps between which
        other writers have their turn."""


class BreakerNames(Protocol):
    async def named_alike(self, project_id: str, name: str) -> int:
        """How many breakers of a project have a name."""


class SessionStore(Protocol):
    """Sessions of the console. Tokens are random; only their hashes are stored."""

    async def create_link(self, key_id: str, token: str, now_ms: int, ends_ms: int) -> None:
        """A link that opens one session of the key, once, before `ends_ms`. Raises NotFound where the key is gone."""

    async def create_session(self, key_id: str, token: str, now_ms: int, ends_ms: int) -> SessionRow:
        """A session of the key. Of too many of one key the oldest end. Raises NotFound where the key is gone."""

    async def redeem_link(self, link: str, token: str, now_ms: int, ends_ms: int) -> SessionRow | None:
        """The session that a link opens, which is used up by it; None where it opens nothing."""

    async def find_session(self, token: str, now_ms: int) -> SessionRow | None:
        """The session of a token; None where it has ended, its key is gone, or there never was one."""

    async def end_session(self, token: str, now_ms: int) -> None:
        """Signs out; replicas hear of it as of a revoked key."""

    async def live_sessions(self, tokens: Sequence[str], now_ms: int) -> set[str]:
        """Those of the tokens whose sessions have not ended."""


class ControlStore(Protocol):
    """Modes and overrides of many breakers."""

    async def update_breakers(
        self, project_id: str, breaker_ids: Sequence[str], edit: Edit, now_ms: int, by: str = SYSTEM
    ) -> tuple[int, list[int]]:
        """The same edit of several, some hundred in a transaction; those that are gone are left out. How many were
        changed by it, and the change rows. Cut off in between it has done a part; the same again does the rest."""

    async def controlled_breakers(self, project_id: str) -> list[BreakerRow]:
        """Those of a project that have a mode or an override of their own, or had."""


class AuditStore(Protocol):
    """Who changed what, newest first."""

    async def audit(
        self, project_id: str, limit: int, before: int | None = None, only: AuditFilter = EVERY_ENTRY
    ) -> list[AuditRow]:
        """Newest first; `before`: the number of the last row already given. Fewer than `limit` also where entries are
        large, but one at least while there are any."""

    async def org_audit(
        self, org_id: str, limit: int, before: int | None = None, only: AuditFilter = EVERY_ENTRY
    ) -> list[AuditRow]:
        """The same of an organisation: what it has beside the logs of its projects."""

    async def names_of_keys(self, org_id: str, key_ids: Sequence[str]) -> dict[str, str]:
        """Names of an organisation's keys, by id; of revoked ones as long as its audit log tells of their end."""


class ConfigStore(BreakerNames, ControlStore, AuditStore, Protocol):
    """Breakers, routers and channels of projects, with the audit log. Writes of breakers and routers answer the ids of
    the change rows they wrote."""

    async def create_breaker(
        self, project_id: str, draft: BreakerDraft, now_ms: int, by: str = SYSTEM, once: Once | None = None
    ) -> tuple[BreakerRow, list[int]]: ...
    async def update_breaker(
        self, project_id: str, breaker_id: str, edit: Edit, now_ms: int, by: str = SYSTEM
    ) -> tuple[BreakerRow, list[int]]:
        """`edit` is a pure function from the current row to the wanted one; equal means nothing is written."""

    async def delete_breaker(self, project_id: str, breaker_id: str, now_ms: int, by: str = SYSTEM) -> list[int]: ...
    async def replace_breakers(
        self, project_id: str, items: Sequence[BreakerItem], check: Check, now_ms: int, by: str = SYSTEM
    ) -> Replaced:
        """Makes `items` the whole set of a project's breakers (semantics.md section 8). Invalid items are refused
        before `check` is asked. A large change is made in steps between which other writers have their turn; a caller
        that is cancelled leaves it whole. Raises Unavailable where another replace of the project takes too long or has
        taken over."""

    async def list_breakers(
        self, project_id: str, breaker_ids: Sequence[str] | None = None
    ) -> tuple[list[BreakerRow], int]:
        """Rows (all, or those of some ids) in creation order, and the time of the last configuration change (ms)."""

    async def breaker_briefs(self, project_id: str, breaker_ids: Sequence[str] | None = None) -> list[BreakerBrief]:
        """Of all breakers of a project in creation order, or of those with the ids in any; nothing of free form is
        read for it."""

    async def scraped_breakers(self, most: int) -> tuple[list[ScrapedBreaker], int]:
        """The oldest breakers of all projects, `most` of them at most, and how many there are in all."""

    async def breaker_metadata(self, project_id: str) -> list[BreakerMetadata]:
        """The same of their metadata."""

    async def get_breaker(self, project_id: str, breaker_id: str) -> BreakerRow | None: ...
    async def create_router(
        self, project_id: str, draft: RouterDraft, now_ms: int, by: str = SYSTEM, once: Once | None = None
    ) -> tuple[RouterRow, list[int]]:
        """`once` answers from the row and its breakers in link order. Of a large answer only the router's id is kept:
        Repeated.thing."""

    async def list_routers(self, project_id: str) -> list[RouterRow]: ...
    async def router_modes(self, project_id: str, router_ids: Sequence[str] | None = None) -> dict[str, str]:
        """The modes of all routers of a project, or of those with the ids; nothing else is read for it."""

    async def router_links(self, project_id: str, router_ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """The breakers of those of the routers that have some, in link order."""

    async def get_router(self, project_id: str, router_id: str) -> RouterRow | None: ...
    async def update_router(
        self, project_id: str, router_id: str, edit: RouterEdit, now_ms: int, by: str = SYSTEM
    ) -> tuple[RouterRow, list[int]]:
        """`edit` as for breakers; a change row is written only when the split changes."""

    async def delete_router(self, project_id: str, router_id: str, now_ms: int, by: str = SYSTEM) -> list[int]:
        """Raises RouterHasBreakers while there are any."""

    async def link_breakers(
        self, project_id: str, router_id: str, breaker_ids: Sequence[str], now_ms: int, by: str = SYSTEM
    ) -> tuple[RouterRow, list[int]]:
        """All of them or none; what is linked already stays as it is."""

    async def unlink_breaker(
        self, project_id: str, router_id: str, breaker_id: str, now_ms: int, by: str = SYSTEM
    ) -> list[int]:
        """The link is gone at once; the view without it lies in the change row."""

    async def create_channel(
        self, project_id: str, draft: ChannelDraft, now_ms: int, by: str = SYSTEM, once: Once | None = None
    ) -> ChannelRow: ...
    async def list_channels(self, project_id: str) -> list[ChannelRow]: ...
    async def enabled_channels(self, most: int) -> list[tuple[str, str, ChannelKind, dict[str, Any]]]:
        """Project id, name, kind and opened config of enabled channels of living projects, at most so many, the oldest
        first."""

    async def get_channel(self, project_id: str, channel_id: str) -> ChannelRow | None: ...
    async def update_channel(
        self, project_id: str, channel_id: str, edit: ChannelEdit, now_ms: int, by: str = SYSTEM
    ) -> ChannelRow: ...
    async def delete_channel(self, project_id: str, channel_id: str, now_ms: int, by: str = SYSTEM) -> None: ...


class MuteStore(Protocol):
    """Mutes of projects; the Notifier sees by itself that they were changed."""

    async def create_mute(
        self,
        project_id: str,
        draft: MuteDraft,
        now_ms: int,
        by: str = SYSTEM,
        by_name: str = SYSTEM,
        once: Once | None = None,
        check: Callable[[], None] | None = None,
    ) -> MuteRow:
        """`by_name`: how notifications name who made it. `check` raises Invalid for what can't be made now; it is not
        asked when the request is one that was done before. Raises Invalid where the project has as many as it may."""

    async def list_mutes(self, project_id: str) -> list[MuteRow]:
        """Oldest first, those that have ended included as long as they are kept."""

    async def get_mute(self, project_id: str, mute_id: str) -> MuteRow | None: ...
    async def update_mute(
        self, project_id: str, mute_id: str, edit: MuteEdit, now_ms: int, by: str = SYSTEM
    ) -> MuteRow:
        """`edit` is a pure function from the current row to the wanted one. Raises Invalid where it has ended."""

    async def end_mute(self, project_id: str, mute_id: str, now_ms: int, by: str = SYSTEM) -> MuteRow:
        """Ends it now; one that has ended is left as it is."""

    async def muted_breakers(self, project_id: str) -> list[BreakerFacts]:
        """What matchers look at of all breakers of a project."""

    async def held_counts(self, project_id: str) -> dict[str, int]:
        """How many deliveries each mute holds, by its id."""


class MappingStore(Protocol):
    """Mappings of projects, in order. Replicas remember them: who writes tells the others (`Gateway.configured`)."""

    async def create_mapping(
        self, project_id: str, draft: MappingDraft, now_ms: int, by: str = SYSTEM, once: Once | None = None
    ) -> MappingRow:
        """Those behind its position move. Raises Invalid where the project has as many as it may, another mapping has
        the name, or the project has no router of the id that it names."""

    async def list_mappings(self, project_id: str) -> list[MappingRow]:
        """In their order."""

    async def get_mapping(self, project_id: str, mapping_id: str) -> MappingRow | None: ...
    async def update_mapping(
        self, project_id: str, mapping_id: str, edit: MappingEdit, now_ms: int, by: str = SYSTEM
    ) -> MappingRow:
        """`edit` is a pure function from the current row to the wanted one; its position says where it moves. Raises
        Invalid as a create does."""

    async def delete_mapping(self, project_id: str, mapping_id: str, now_ms: int, by: str = SYSTEM) -> None: ...
    async def replace_mappings(
        self, project_id: str, items: Sequence[MappingItem], now_ms: int, by: str = SYSTEM
    ) -> tuple[list[MappingRow], bool]:
        """Makes `items` the whole list of a project, in their order, all or nothing. Answers it, and whether anything
        was changed."""

    async def router_names(self, project_id: str) -> dict[str, str]:
        """The names of all routers of a project, by id."""


class RuleStore(Protocol):
    """What files of rules declare of a project."""

    async def project_rules(self, project_id: str) -> ProjectRules:
        """Everything at once, in one read. Its caller has a turn, so that there is one such read at a time."""

    async def apply_rules(
        self, project_id: str, decide: Decide, now_ms: int, by: str = SYSTEM, by_name: str = SYSTEM
    ) -> tuple[RulesChange | None, list[int]]:
        """Carries out what `decide` makes of the project as it is, whole or not at all: a pure function, or one that
        raises; None of it changes nothing. It is asked while others write, and again where they changed the project
        meanwhile. Answers it and the change rows. Raises Invalid for more than RULES_MAX things to change at once,
        or RULES_ENDS_MAX notifications of what goes, Overloaded where the project is changed all the time, and as the
        changes do one by one."""


class EventStore(AsideNotes, Protocol):
    """Events, and the states that were committed last."""

    async def events(self, query: EventQuery) -> list[EventRow]: ...
    async def latest_event_ms(self, query: EventQuery) -> int | None: ...
    async def stored_states(self, project_id: str, breaker_ids: Sequence[str] | None = None) -> list[StoredState]: ...
    async def stream_snapshot(self, project_id: str, now_ms: int) -> StreamSnapshot: ...
    async def add_backfill_events(
        self, project_id: str, run_id: str, events: Sequence[tuple[str, EventDraft]], now_ms: int
    ) -> None:
        """Events (breaker id, draft) of a backfill run; one that the run has stored already is left as it is."""

    async def remove_backfill_events(self, project_id: str, run_id: str) -> int:
        """Removes the events of a backfill run; how many there were."""


class DeliveryStore(Protocol):
    """The outbox as people see it."""

    async def deliveries(self, query: DeliveryQuery) -> list[DeliveryRow]: ...
    async def dead_deliveries(self, project_id: str, channel_id: str) -> int:
        """How many of a channel's newest DEAD_LOOKED_AT deliveries are dead."""

    async def deliveries_of(
        self, project_id: str, shard: int, sequences: Sequence[int]
    ) -> dict[int, list[DeliveryRow]]:
        """The notifications of these events, by the events' sequence in the project's shard."""

    async def failing_channels(self, project_id: str) -> list[Failing]:
        """Of a project, those of which a failure is known, with what waits; by name."""

    async def redrive_delivery(
        self, project_id: str, channel_id: str, delivery_id: str, now_ms: int, by: str = SYSTEM
    ) -> list[DeliveryRow]:
        """Makes a dead delivery and the newest other dead ones of its outage pending again, REDRIVEN_MAX in all; they,
        in order. Older trips stay dead: newer ones tell of the same. Raises NotRedrivable when it is not dead, when
        nothing can be sent, or when it would end a newer outage."""


class OutboxStore(AsideNotes, Protocol):
    """The outbox as the Notifier works on it, under its epoch."""

    async def open_notifier(self) -> int:
        """Raises the notifier's epoch and returns it; older notifiers are refused from here on."""

    async def waiting_channels(self, after: int | None = None, among: Collection[str] = ()) -> list[Waiting]:
        """Channels that have pending deliveries. `after`: only those with some behind that number, and of `among` those
        that have any."""

    async def lease_deliveries(
        self, epoch: int, wants: Mapping[str, int], held: Collection[str], now_ms: int, until_ms: int
    ) -> list[Leased]:
        """At most so many deliveries of each channel as `wants` says, to be sent at once; of a breaker only the oldest
        one. Each counts as an attempt. Nobody else may send them before `until_ms`. `held`: ids that this epoch is
        sending; what it leased beside them it never heard of, and may take again. Channels that are gone or disabled
        are left out. Raises Fenced."""

    async def settle_deliveries(
        self,
        epoch: int,
        tried: Sequence[DeliveryResult],
        circuits: Sequence[CircuitRow] = (),
        hasten: Sequence[str] = (),
    ) -> set[str]:
        """Notes what came of attempts; the ids of those that were still leased under the epoch, the others are left
        alone. The recoveries of a dead trip end with it. `hasten`: channels whose waiting deliveries are due now."""

    async def give_up_deliveries(
        self, epoch: int, channel_id: str, now_ms: int, before_ms: int, error: str
    ) -> dict[str, int]:
        """Ends deliveries of a channel that does not answer which have been tried, or waited for, since `before_ms`;
        how many became "dead" and "cancelled". `error`: for those never tried. A bounded part of them. Raises Fenced.
        """

    async def cancel_deliveries(
        self, epoch: int, channel_ids: Sequence[str], now_ms: int
    ) -> tuple[dict[str, int], bool]:
        """Ends pending deliveries of channels that are gone or disabled, a bounded part of them: how many of each, and
        whether these were all. Raises Fenced."""

    async def held_news(self) -> tuple[int, int]:
        """Whether there is a reason to look at held deliveries: how often mutes were changed, and the number of the
        newest held delivery."""

    async def held_count(self) -> int:
        """How many deliveries are held."""

    async def held_projects(self) -> list[tuple[str, str]]:
        """(organisation, project) of those with held deliveries."""

    async def look_at_held(
        self, epoch: int, now_ms: int, after: int = 0, turns: Mapping[str, int] | None = None, ahead_ms: int = 0
    ) -> HeldLook:
        """Decides about a bounded part of the held deliveries behind a number: what stands and is muted no more becomes
        pending, what is over is suppressed, what lost its channel is cancelled, the rest stays. `turns`: only those of
        these projects, in this order, each behind a number of its own. `ahead_ms`: so long before its end a mute is
        warned of, or in the last quarter of its length where that is less. Raises Fenced."""

    async def tend_mutes(self, epoch: int, now_ms: int, ahead_ms: int) -> MutesTended:
        """Ends a bounded part of the mutes that are over, and says how the others stand. `ahead_ms`: as of a look.
        Raises Fenced."""

    async def warn_of_ends(
        self, epoch: int, now_ms: int, ahead_ms: int, behind: Mapping[str, Mapping[str, int]]
    ) -> tuple[str, ...]:
        """Writes the warning of each of these mutes that is about to end, once for each end, to each channel on which
        something waits behind it; the channels. `behind`: by mute and channel how much. Raises Fenced."""

    async def end_unmatched(
        self, epoch: int, now_ms: int, limit_ms: int, after: int = 0
    ) -> tuple[int | None, list[str]]:
        """Looks at a bounded part of the mutes behind a number, and ends those that matched no breaker for `limit_ms`:
        the number of the last one, None at the end, and the ids of those that ended. Raises Fenced."""

    async def standing_channels(self) -> list[Waiting]:
        """Channels whose receivers forget alerts that they don't hear of again, and that may have some which stand."""

    async def standing_alerts(self, epoch: int, channel_id: str, after: int = 0) -> tuple[Leased | None, int | None]:
        """A bounded part of the outages behind a number that stand and that the channel was told of: of each the last
        trip that was sent, but for breakers of which something is pending there. None: the channel is gone or disabled.
        And the number to go on behind, None at the end. Nothing is leased. Raises Fenced."""

    async def outbox_depth(self) -> tuple[int, int | None]:
        """How many deliveries are pending, and the created_ms of the oldest."""


class JournalStore(AccessWatch, AsideNotes, Protocol):
    """Commits of a shard, under the epoch of its Journal."""

    async def open_journal(self, shard: int, now_ms: int = 0) -> JournalHead:
        """Takes the shard from whoever holds it. Numbers go on beyond all that were given out before a time, in
        whatever copy of the database; at 0 from where this one is."""

    async def journal_head(self, shard: int) -> JournalHead:
        """Where the shard stands, whoever holds it."""

    async def organisations_of(self, project_ids: Sequence[str]) -> dict[str, str]:
        """The organisation of each project that is there, deleted ones too."""

    async def listeners_of(self, project_ids: Sequence[str]) -> dict[str, dict[str, int]]:
        """How many channels of each project take each kind of alert. Projects that nobody listens to are left out, and
        so is a project's own Slack address."""

    async def commit(self, head: JournalHead, commits: Sequence[Commit]) -> tuple[JournalHead, list[CommitResult]]:
        """One transaction. Each commit with events or `announce` takes sequence numbers in order: one per event, one
        for an announcement (n events take n numbers; the last one is its feed entry). Raises Fenced when a newer
        journal holds the shard."""


class Placements(Protocol):
    """Who owns what."""

    async def placements(self, kind: Literal["breaker", "router"]) -> list[Placement]: ...


class PlacementStore(AsideNotes, Placements, Protocol):
    """Owners, epochs and change rows, under the epoch of the Directory."""

    async def open_directory(self, known: int | None = None) -> int:
        """Raises the directory epoch and returns it; older directories are refused from here on. `known`: only if it
        is still this one, else Fenced is raised."""

    async def directory_epoch(self) -> int:
        """The epoch of the newest directory; 0 when there was none yet."""

    async def claim(
        self, directory_epoch: int, kind: Literal["breaker", "router"], owners: Mapping[str, str]
    ) -> dict[str, int]:
        """Gives each id to its new owner under a raised epoch; unknown ids are left out of the answer."""

    async def pending_changes(
        self,
        limit: int,
        owners: Sequence[str] | None = None,
        served: Mapping[str, int] | None = None,
        but: Collection[str] = (),
    ) -> list[ChangeRow]:
        """The oldest change rows, those of each organisation and project in turn; `served`: in which round a project
        last had one, the lowest comes first. With `owners` only those of routers that are theirs or nobody's yet, and
        of none of the routers `but`, PARAMETERS_MAX at most. Fewer where they are large; none where there are none."""

    async def count_pending(self, most: int) -> int:
        """How many change rows there are, up to `most`."""

    async def unsettled(self, change_ids: Sequence[int]) -> list[str]:
        """The routers for which some of these changes still wait."""

    async def settle_changes(self, directory_epoch: int, offsets: Mapping[int, int]) -> None:
        """Removes applied change rows; `offsets`: change id -> offset of its first record, which becomes the links'
        since_offset (offset - 1)."""

    async def breaker_assignments(self, breaker_ids: Sequence[str]) -> list[BreakerAssignment]: ...
    async def link_refs(
        self, breaker_ids: Sequence[str], router_ids: Sequence[str] | None
    ) -> list[tuple[str, RouterRef]]:
        """Breakers' links that count already, in the order in which they were made: to these routers, or to all."""

    async def router_assignments(self, router_ids: Sequence[str]) -> list[RouterAssignment]: ...


class RetentionStore(Placements, Protocol):
    """What is too old or too much, and what of the logs is still needed. Each call looks at a bounded part and removes
    what may go of it; where it has several things to do, and one fails, it does the others before it raises.
    `is_pruned`: the last calls of each came to the end of what there was."""

    @property
    def is_pruned(self) -> bool: ...

    async def log_floors(self) -> list[LogFloor]:
        """What is still needed of every router's log, by its linked breakers' stored records."""

    async def forget_ended_links(self, after: str) -> ForgottenLinks:
        """Forgets links that ended, were read to their end, and that no window reaches, of a bounded number of breakers
        behind an id."""

    async def history_ms(self) -> int | None:
        """Up to when time has gone on for history that grows old: what was noted last, else the newest time in it; None
        when there is none."""

    async def note_history_ms(self, at_ms: int) -> None:
        """Stores how far that time has come."""

    async def prune(self, before_ms: int) -> dict[str, int]:
        """Removes history older than a time, a bounded part of it; how many rows went of each table."""

    async def prune_idempotency_keys(self, before_ms: int) -> int:
        """Forgets keys of `once` from before a time, a bounded part of them; how many."""

    async def prune_deliveries(self, before_ms: int) -> int:
        """Removes a bounded part of the ended deliveries from before a time; how many."""

    async def prune_ended(self, now_ms: int) -> dict[str, int]:
        """Removes what was kept until a time that has come, a bounded part of it; how many rows went of each table."""

    async def finish_deletions(self, now_ms: int) -> int:
        """Ends what a process that died left of deleted projects, a bounded number of them; how many were found. What
        fails of one is put off, and keeps nothing else."""

    async def shed_deliveries(self, now_ms: int) -> int:
        """Of projects with more deliveries than they may keep: removes the oldest ended ones, and makes those that wait
        for longest dead where there are none; a bounded part of them, of organisations in turn; how many."""


class JournalCount(Protocol):
    """How many Journals there have to be."""

    async def journals(self) -> int:
        """One for each that new projects are spread over, and for each that a project has: their shards are the numbers
        below."""


class DirectoryStore(AsideStore, QuotaReads, PlacementStore, JournalCount, Protocol):
    """What the Directory takes."""


class ReplicaStore(
    Access,
    AsideStore,
    QuotaReads,
    AccountStore,
    SessionStore,
    ConfigStore,
    MuteStore,
    MappingStore,
    RuleStore,
    EventStore,
    DeliveryStore,
    JournalCount,
    Protocol,
):
    """What a replica of the API takes."""


class RecoverStore(Protocol):
    """Configuration of routers whose logs are recovered."""

    async def router_entries(
        self, project_id: str, router_id: str, now_ms: int, by: str = SYSTEM
    ) -> list[tuple[int, bytes]]:
        """A router's whole configuration for its log, which has lost some: (kind, payload) of the settings of its
        breakers, then of its routing table, which counts as changed."""

    async def tell_again(
        self,
        project_id: str,
        router_id: str,
        view: RouterView,
        told: Mapping[str, tuple[int, int, bool]],
        highest: Mapping[str, int],
        now_ms: int,
        by: str = SYSTEM,
        dry: bool = False,
    ) -> list[str]:
        """Of a router whose log knows later configuration than the database, which was put back: its last routing
        table, and by breaker its last settings (offset, version, whether they end it). The database's
        configuration comes behind that, with the next changes, under versions beyond it, and beyond the `highest` that
        a breaker has in any log: of one version the first counts; a breaker that has ended there
        begins anew. Answers whose is later, breakers and the router; `dry`: and does nothing. No service may run."""

    async def is_behind(self, newest: int) -> bool:
        """Whether logs are later than the database, which never gave a change the number `newest` that they have, or
        were at an earlier look: that is remembered until `caught_up`. Of PostgreSQL, whose logs lie in it and are put
        back with it, never."""

    async def caught_up(self, newest: int) -> None:
        """The database's configuration is on its way behind that of all logs. The next changes get numbers beyond this
        one."""


class Store(ReplicaStore, DirectoryStore, JournalStore, OutboxStore, RetentionStore, RecoverStore, Protocol):
    """All roles: for who opens the store, and for commands on a data directory."""
