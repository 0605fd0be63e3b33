"""What Prometheus would get from a running service."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping

import httpx

from breaker_actors.telemetry.catalog import BUCKET, TABLE, exported
from tests.support.live import LiveService

LINE = re.compile(r"ray_(breakers_\w+)\{(.*)\} (\S+)")
Series = dict[tuple[str, ...], float]


def targets(live: LiveService) -> dict[str, str]:
    """Addresses by job, from the file that Prometheus discovers them in."""
    groups = json.loads((live.data_dir / "prometheus.json").read_text())
    return {group["labels"]["job"]: group["targets"][0] for group in groups}


def scrape(live: LiveService) -> dict[str, Series]:
    """Our metrics by name and label values, processes summed up."""
    found: dict[str, Series] = defaultdict(lambda: defaultdict(float))
    text = httpx.get(f"http://{targets(live)['breakers']}/metrics", timeout=20).text
    for name, labels, value in LINE.findall(text):
        said = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        assert said["actor"]
        found[name][tuple(said[label] for label in exported(name)[1])] += float(value)
    return found


def gained(before: Mapping[str, Series], after: Mapping[str, Series], histogram: str) -> list[float]:
    """How many values came to lie at or below each bound of a histogram without labels, and in all."""
    words = (*map(str, TABLE[histogram].buckets), "+Inf")
    earlier, later = before.get(histogram + BUCKET, {}), after.get(histogram + BUCKET, {})
    return [later.get((word,), 0.0) - earlier.get((word,), 0.0) for word in words]


def quantile(histogram: str, counts: list[float], share: float) -> tuple[float, float, float]:
    """A quantile and the bounds of its bucket, in the histogram's unit: inside the bucket by rank, as Prometheus does
    it, and its lower bound where there is no upper one."""
    bounds = (0.0, *TABLE[histogram].buckets, float("inf"))
    rank = share * counts[-1]
    i = next(i for i, count in enumerate(counts) if count >= rank and count > 0)
    low, high, below = bounds[i], bounds[i + 1], counts[i - 1] if i else 0.0
    if high == float("inf"):
        return low, low, high
    return low + (high - low) * (rank - below) / (counts[i] - below), low, high
