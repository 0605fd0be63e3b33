"""Tests of the folders and modules in VIRTUAL run in virtual time, all others in real time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.support.virtual_time import VirtualLoop

HERE = Path(__file__).parent
VIRTUAL = (
    "breaker",
    "directory",
    "engine",
    "gateway",
    "journal",
    "notify/test_mutes.py",
    "notify/test_notifier.py",
    "notify/test_resolver.py",
    "ray_runtime",
    "router",
    "telemetry/test_meter_values.py",
    "transport/test_lanes.py",
)
assert all((HERE / place).exists() for place in VIRTUAL)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if any(item.path.is_relative_to(HERE / place) for place in VIRTUAL):
        return {"virtual": VirtualLoop}
    return {"real": asyncio.new_event_loop}
