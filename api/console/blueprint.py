"""All screens hang here; nobody comes in without a session."""

from __future__ import annotations

from quart import Blueprint

from api.console import guard

blueprint = Blueprint("console", __name__, url_prefix="/console")
guard.install(blueprint)
