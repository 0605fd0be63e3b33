"""What `/metrics` can say at most: every series of every part, and one breaker."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from api.wire.exposition import Scrape, exposition
from breaker_actors.messages import Counted, StateReading
from breaker_actors.store.rows import ScrapedBreaker, ScrapedRule
from breaker_actors.telemetry.catalog import EVERY, TABLE, Part
from breaker_actors.telemetry.meters import Meters
from tests.support.fake_gateway import view


def full(part: Part) -> Counted:
    """Every series that a part can have."""
    meters = Meters(part, f"{part}-0")
    for meter in (meter for meter in TABLE.values() if part in meter.parts):
        for key in meter.series():
            labels = dict(zip(meter.labels, key[1:], strict=True))
            if meter.type == "gauge":
                meters.gauge(meter.name, 1.0, **labels)
            elif meter.type == "histogram":
                meters.observe(meter.name, 1.0, **labels)
    return meters.counted()


def exposed_labels() -> dict[str, set[str]]:
    """The labels of each series' name."""
    rule = ScrapedRule(metric="latency", kind="avg", threshold=1.0)
    breaker = ScrapedBreaker(id="b", name="checkout", project_id="p", project="shop", rule=rule)
    reading = StateReading(breaker_id="b", view=view(), stale=False)
    text = exposition(Scrape([(breaker, reading)], 1, [full(part) for part in EVERY])).decode()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found
