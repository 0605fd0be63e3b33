"""One module and one blueprint per resource: decode, authorise, call the gateway or the store, encode. In: requests
that passed the middleware. Out: answers made by `wire`, and errors that `problems` turns into answers.

Public: `BLUEPRINTS`.
"""

from quart import Blueprint

from api.routes import (
    admin,
    audit,
    breakers,
    channels,
    deliveries,
    events,
    health,
    ingest,
    keys,
    mappings,
    metadata,
    metrics,
    mutes,
    otlp,
    overrides,
    projects,
    remote_write,
    routers,
    rules,
    spec,
    states,
    status,
    stream,
    workspaces,
)

BLUEPRINTS: tuple[Blueprint, ...] = (
    health.blueprint,
    ingest.blueprint,
    workspaces.blueprint,
    projects.blueprint,
    keys.blueprint,
    status.blueprint,
    stream.blueprint,
    states.blueprint,
    metadata.blueprint,
    breakers.blueprint,
    overrides.blueprint,
    routers.blueprint,
    events.blueprint,
    channels.blueprint,
    deliveries.blueprint,
    mutes.blueprint,
    mappings.blueprint,
    rules.blueprint,
    otlp.blueprint,
    remote_write.blueprint,
    audit.blueprint,
    admin.blueprint,
    metrics.blueprint,
    spec.blueprint,
)
