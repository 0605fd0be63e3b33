"""Breakers and the service itself as Prometheus reads them: the text format 0.0.4, written by prometheus-client. Pure.

Names end in their units, as Prometheus asks; a state is one series per state, 1 for the one it is in, so that
`breakers_breaker_state{state="open"} == 1` is what is open.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from api.wire.exposition_meters import MeterCollector
from breaker_actors.core.model import StateWord
from breaker_actors.messages import Counted, StateReading
from breaker_actors.store.rows import ScrapedBreaker

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABELS = ("project_id", "breaker_id", "breaker")
STATES: tuple[StateWord, ...] = get_args(StateWord)


class Scrape(NamedTuple):
    """What one scrape shows: breakers with the states that could be read, and how many breakers there are in all (None:
    the store does not say); what processes have counted, and how many did not answer."""

    breakers: Sequence[tuple[ScrapedBreaker, StateReading]]
    total: int | None
    processes: Sequence[Counted] = ()
    silent: int = 0


def exposition(scrape: Scrape) -> bytes:
    """The whole answer: about 2.5 KB a breaker, and 10 KB a process."""
    registry = CollectorRegistry()
    registry.register(BreakerCollector(scrape))
    registry.register(MeterCollector(scrape.processes, scrape.silent))
    return generate_latest(registry)


class BreakerCollector(Collector):
    """The families of one scrape, for prometheus-client."""

    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    def collect(self) -> Iterable[Metric]:
        shown = self._scrape.breakers
        if self._scrape.total is None:
            return
        total = "Breakers of all projects."
        yield GaugeMetricFamily("breakers_breakers", total, value=self._scrape.total)
        left = "Breakers that have no series here: beyond BREAKERS_METRICS_BREAKERS_MAX, or not read."
        yield GaugeMetricFamily("breakers_breakers_not_shown", left, value=self._scrape.total - len(shown))
        yield from _of_rules(shown)
        yield from _of_states(shown)


def _labels(breaker: ScrapedBreaker) -> list[str]:
    return [breaker.project_id, breaker.id, breaker.name]


def _of_rules(shown: Sequence[tuple[ScrapedBreaker, StateReading]]) -> Iterable[Metric]:
    info = InfoMetricFamily("breakers_breaker", "What the breaker watches; always 1.", labels=LABELS)
    threshold = GaugeMetricFamily(
        "breakers_breaker_threshold", "Bound of the rule, in the metric's unit.", labels=LABELS
    )
    for breaker, _ in shown:
        about = {"project": breaker.project, "metric": breaker.rule.metric, "kind": breaker.rule.kind}
        info.add_metric(_labels(breaker), about)
        threshold.add_metric(_labels(breaker), breaker.rule.threshold)
    yield info
    yield threshold


def _of_states(shown: Sequence[tuple[ScrapedBreaker, StateReading]]) -> Iterable[Metric]:
    state = GaugeMetricFamily("breakers_breaker_state", "1 for the state it is in, else 0.", labels=[*LABELS, "state"])
    rate = _gauge("allow_rate", "Part of calls that callers should let through, 0 to 1.")
    value = _gauge("value", "Value of the rule over its window at the last evaluation; absent without one.")
    samples = _gauge("window_samples", "Samples in the window.")
    indeterminate = _gauge("indeterminate", "1 while there are too few samples to decide, else 0.")
    stale = _gauge("stale", "1 when its owner did not answer and this is what was stored last, else 0.")
    since = _gauge("state_since_timestamp_seconds", "When it came to its state, Unix time.")
    evaluated = _gauge("last_evaluation_timestamp_seconds", "When it was last evaluated, Unix time; absent: never.")
    moves = CounterMetricFamily("breakers_breaker_transitions", "Changes of its state so far.", labels=LABELS)
    for breaker, reading in shown:
        labels, view = _labels(breaker), reading.view
        for word in STATES:
            state.add_metric([*labels, word], float(view.state == word))
        rate.add_metric(labels, view.allow_rate)
        if view.value is not None:
            value.add_metric(labels, view.value)
        samples.add_metric(labels, view.sample_count)
        indeterminate.add_metric(labels, float(view.verdict == "indeterminate"))
        stale.add_metric(labels, float(reading.stale))
        since.add_metric(labels, view.state_since_ms / 1000)
        if view.last_eval_ms:
            evaluated.add_metric(labels, view.last_eval_ms / 1000)
        moves.add_metric(labels, view.transition_seq)
    return state, rate, value, samples, indeterminate, stale, since, evaluated, moves


def _gauge(name: str, about: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"breakers_breaker_{name}", about, labels=LABELS)
