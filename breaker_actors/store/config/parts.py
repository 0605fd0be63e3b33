"""All resources of the configuration in one class, for the store."""

from __future__ import annotations

from breaker_actors.store.config.accounts import Accounts
from breaker_actors.store.config.audit_log import Audits
from breaker_actors.store.config.breakers import Breakers
from breaker_actors.store.config.channels import Channels
from breaker_actors.store.config.mutes import Mutes
from breaker_actors.store.config.projects import Projects
from breaker_actors.store.config.routers import Routers


class Configuration(Accounts, Projects, Channels, Mutes, Audits, Breakers, Routers):
    """`AccountStore`, `ConfigStore` and `MuteStore` on a SQL database."""
