"""One module and one blueprint per resource: decode, authorise, call the gateway, encode. No decisions here."""

from quart import Blueprint

from api.routes import breakers, events, health, ingest, metadata, projects, routers, states, status, stream

BLUEPRINTS: tuple[Blueprint, ...] = (
    health.blueprint,
    ingest.blueprint,
    projects.blueprint,
    status.blueprint,
    stream.blueprint,
    states.blueprint,
    metadata.blueprint,
    breakers.blueprint,
    routers.blueprint,
    events.blueprint,
)
