"""All resources of the configuration in one class, for the store."""

from __future__ import annotations

from breaker_actors.store.config.accounts import Accounts
from breaker_actors.store.config.audit_log import Audits
from breaker_actors.store.config.breakers import Breakers
from breaker_actors.store.config.mappings import Mappings
from breaker_actors.store.config.mutes import Mutes
from breaker_actors.store.config.projects import Projects
from breaker_actors.store.config.routers import Routers
from breaker_actors.store.config.rules import Rules
from breaker_actors.store.config.sessions import Sessions


class Configuration(Accounts, Sessions, Projects, Rules, Mutes, Mappings, Audits, Breakers, Routers):
    """`AccountStore`, `SessionStore`, `ConfigStore`, `MuteStore`, `MappingStore` and `RuleStore` on a SQL database."""
