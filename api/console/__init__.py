"""The operator's console: screens over the same rules and the same API, in a browser, on the replica. In: pages and
forms of people who are signed in with a key. Out: HTML of this host alone, and word of what changed while a page is
open.

Public: `BLUEPRINTS`.
"""

from quart import Blueprint

from api.console import (
    assets,
    audit,
    blueprint,
    breaker,
    breaker_acts,
    channels,
    chart,
    cluster,
    deliveries,
    door,
    edit,
    first_run,
    keys,
    live,
    mutes,
    overrides,
    overview,
    routers,
    suggested,
    timeline,
    tried,
)

SCREENS = (
    overview,
    breaker,
    breaker_acts,
    overrides,
    first_run,
    routers,
    timeline,
    channels,
    deliveries,
    mutes,
    audit,
    keys,
    cluster,
    chart,
    edit,
    tried,
    suggested,
)
"""Modules whose screens hang on the blueprint."""
BLUEPRINTS: tuple[Blueprint, ...] = (assets.blueprint, door.blueprint, live.blueprint, blueprint.blueprint)
