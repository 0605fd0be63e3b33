"""What becomes of a series: a project's own mappings in their order, then the built-in ones. Pure.

Mappings are compiled once per version of their list; what `resolve` says of a series holds until that list or the
project's routers change, so callers remember it.

The built-in ones:

1. `router_id`: a label, else a resource attribute, `router_id` or `breakers.router_id` (for Prometheus
   `breakers_router_id`) names a router by id or by name. The sum of a classic histogram or summary, a total whose name
   ends with `_sum`, is unmatched: it adds up values, and counts no observations.
2. `http.client.request.duration`, by `server.address`, and `http.server.request.duration`, by `server.address`, else
   `service.name`: to the router of that name. Where the project has none of that name the series is unmatched. The
   spellings that Prometheus gives them count, too: see SPELLINGS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isfinite, isnan

import msgspec

from api.protocols.points import Series, Temporality
from breaker_actors.store.mappings.model import (
    METRIC_CHARS_MAX,
    As,
    MappingTo,
    OkRule,
    SeriesMatcher,
    place_of,
)
from breaker_actors.store.mutes.matching import Effort, Spent
from breaker_actors.store.rows import MappingRow
from breaker_actors.text import globs

EFFORT = 1_000_000
"""What globs may take for one series, about nanoseconds."""
REQUEST_EFFORT = 100 * EFFORT
"""And for those of one request that are new; what is left of them is refused this once."""
SHOWN_CHARS_MAX = 100
"""Characters of a caller's text that a message repeats."""
OBSERVATIONS_MAX = 2**53
"""Observations that one rise may stand for: beyond it a double does not count one by one."""
ROUTER_KEYS = ("router_id", "breakers.router_id", "breakers_router_id")
ERROR_KEYS = ("error.type", "error_type")
STATUS_KEYS = (
    "http.response.status_code",
    "http_response_status_code",
    "http.status_code",
    "http_status_code",
    "code",
    "status",
)
GRPC_KEYS = ("rpc.grpc.status_code", "rpc_grpc_status_code", "grpc_code")
GRPC_OK = ("0", "OK")
STATUS_LIMIT = 500
ADDRESS_KEYS, SERVICE_KEYS = ("server.address", "server_address"), ("service.name", "service_name")
READY = {
    "http.client.request.duration": ADDRESS_KEYS,
    "http.server.request.duration": (*ADDRESS_KEYS, *SERVICE_KEYS),
}
"""The ready mappings: where the name of a router is looked for, in order."""
SPELLINGS = ("{}", "{}_seconds", "{}_seconds_count")
"""Names of a ready mapping's series: as OpenTelemetry says it, as Prometheus does (with dots and with underscores in
their place), and the counter of a classic histogram, whose rises are observations of 1. Its `_bucket` and `_sum` are
not taken."""
TRUE = frozenset(("true", "1", "yes", "ok"))
FALSE = frozenset(("false", "0", "no", "error"))

WORDS = {
    "router_missing": "the series has no {}, which would name the router",
    "router_not_found": "the project has no router {}",
    "router_ambiguous": "the project has more than one router named {}: name it by its id",
    "unsupported_type": "quantiles of a summary can't be aggregated again: send a histogram",
    "invalid_metric": f"a metric is text of 1 to {METRIC_CHARS_MAX} characters: give the mapping a metric",
    "invalid_ok": "{} can't be read",
    "too_much_to_match": "its labels are too long for the globs of the mappings",
    "too_many_series": "the mapping takes at most {} series",
    "invalid_value": "the value is not a finite number",
    "invalid_rise": "a rise of {} is no whole number of observations; a mapping with as: value takes it",
}
"""Why what matches can't be used: machine word and message."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What a series becomes. `temporality`: of a counter or a histogram, whose points are rises or totals; None: each
    value is a sample. `take_as`: what a rise becomes; observations for a histogram, value where there is no
    temporality. `mapping_id`: None for a built-in one."""

    router_id: str
    metric: str
    scale: float
    take_as: As
    ok: bool
    temporality: Temporality | None
    mapping_id: str | None
    mapping: str
    series_max: int


class Unmatched(msgspec.Struct, frozen=True):
    """No mapping takes the series: it is accepted and counted, and nothing becomes of it."""


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """A mapping takes the series, or its value, and can't use it. `mapping_id`: None for a built-in one."""

    code: str
    message: str
    mapping_id: str | None = None
    mapping: str = ""


Outcome = Target | Unmatched | Refused
UNMATCHED = Unmatched()


class Routers:
    """The routers of a project by id and by name."""

    __slots__ = ("_by_name", "names")

    def __init__(self, names: Mapping[str, str]) -> None:
        """`names`: by id."""
        self.names = names
        self._by_name: dict[str, str | None] = {}
        for id_, name in names.items():
            self._by_name[name] = None if name in self._by_name else id_

    def named(self, name: str) -> bool:
        """Whether there is one of that name."""
        return name in self._by_name

    def find(self, text: str) -> tuple[str, str]:
        """The id that a text means, or "" and why there is none. An id goes before a name."""
        if text in self.names:
            return text, ""
        if (lower := text.lower()) in self.names:
            return lower, ""
        if text not in self._by_name:
            return "", "router_not_found"
        found = self._by_name[text]
        return (found, "") if found is not None else ("", "router_ambiguous")


Predicate = Callable[[Series, Effort], bool]


class _Rule:
    """One mapping, ready to be asked."""

    __slots__ = ("_predicates", "row")

    def __init__(self, row: MappingRow) -> None:
        self.row = row
        self._predicates = tuple(map(_predicate, row.matchers))

    def matches(self, series: Series, effort: Effort) -> bool:
        for holds in self._predicates:  # a loop: this is asked of each mapping for each series
            if not holds(series, effort):
                return False
        return True


class Mappings:
    """A project's mappings, compiled. Those that ask for one name are asked for series of that name alone."""

    __slots__ = ("_by_name", "_others")

    def __init__(self, rows: Iterable[MappingRow]) -> None:
        """`rows`: in their order; those that are not enabled are left out."""
        self._others: list[_Rule] = []
        self._by_name: dict[str, list[_Rule]] = {}
        for rule in (_Rule(row) for row in rows if row.enabled):
            names = _names(rule.row.matchers)
            if not names:
                for mine in (self._others, *self._by_name.values()):
                    mine.append(rule)
            elif len(names) == 1:
                self._by_name.setdefault(names.pop(), list(self._others)).append(rule)

    def find(self, series: Series, effort: Effort) -> MappingRow | None:
        """The first mapping that matches. Raises Spent where globs would take too long."""
        for rule in self._by_name.get(series.name, self._others):
            if rule.matches(series, effort):
                return rule.row
        return None


def resolve(series: Series, mappings: Mappings, routers: Routers, of_all: Effort | None = None) -> Outcome:
    """What becomes of a series. `of_all`: what its request may take yet; once that is spent, the outcome is none to
    remember."""
    effort = Effort(EFFORT if of_all is None else min(EFFORT, of_all.left))
    allowed = effort.left
    try:
        row = mappings.find(series, effort)
    except Spent:
        return _refused("too_much_to_match")
    finally:
        if of_all is not None:
            of_all.left -= allowed - effort.left
    if row is None:
        return _built_in(series, routers)
    return _target(series, row.to, routers, row.id, row.name)


def resolve_all(series: Iterable[Series], mappings: Mappings, routers: Routers) -> Iterator[Outcome]:
    """The same of many, one after the other, each mapping taking no more distinct series than it may."""
    seen: dict[str, set[bytes]] = {}
    effort = Effort(REQUEST_EFFORT)
    for one in series:
        outcome = resolve(one, mappings, routers, effort)
        if isinstance(outcome, Target):
            mine = seen.setdefault(outcome.mapping_id or outcome.mapping, set())
            if one.identity not in mine and len(mine) >= outcome.series_max:
                outcome = beyond(outcome)
            else:
                mine.add(one.identity)
        yield outcome


def beyond(target: Target) -> Refused:
    """For a series that its mapping takes no more, as it has as many as it may."""
    return _refused("too_many_series", target.series_max, target.mapping_id, target.mapping)


def refusal(target: Target, value: float) -> Refused | Unmatched | None:
    """Why a value, or the rise of a counter, can't be used; None when it can. Not for histograms. Fractions, which no
    number of observations is, are an error where a mapping asks for them; built-in ones pass them over."""
    if not isfinite(value) or not isfinite(value * target.scale):
        return _refused("invalid_value", "", target.mapping_id, target.mapping)
    if target.take_as == "observations" and not (0 <= value <= OBSERVATIONS_MAX and value.is_integer()):
        if target.mapping_id is None and 0 <= value < OBSERVATIONS_MAX:
            return UNMATCHED
        return _refused("invalid_rise", value, target.mapping_id, target.mapping)
    return None


def _names(matchers: Iterable[SeriesMatcher]) -> set[str]:
    """The names of series that matchers ask for to the letter; none: any. More than one: it matches nothing."""
    return {one.value for one in matchers if one.field == "name" and one.op == "="}


def _predicate(matcher: SeriesMatcher) -> Predicate:
    read, value = _reader(matcher.field), matcher.value
    if matcher.op == "=":
        return lambda series, effort: bool(value) and read(series) == value
    if matcher.op == "!=":
        return lambda series, effort: read(series) != value
    last, held = "", False

    def like(series: Series, effort: Effort) -> bool:
        nonlocal last, held
        text = read(series)
        if not text:
            return False
        if text != last:  # series of one resource come one after another
            effort.spend(globs.cost(value, text))
            last, held = text, globs.matches(value, text)
        return held

    return like


def _reader(field: str) -> Callable[[Series], str]:
    """Reads what a matcher looks at; "": it is not there."""
    if field == "name":
        return lambda series: series.name
    kind, key = place_of(field)
    if kind == "label":
        return lambda series: series.labels.get(key, "")
    return lambda series: series.resource.get(key, "")


def _target(series: Series, to: MappingTo, routers: Routers, id_: str | None, name: str) -> Outcome:
    named = to.router
    if named.startswith(("label.", "resource.")):
        named = _reader(named)(series)
        if not named:
            return _refused("router_missing", to.router, id_, name)
    router_id, why = routers.find(named)
    if why:
        return _refused(why, named, id_, name)
    return _to_router(series, to, router_id, id_, name)


def _to_router(series: Series, to: MappingTo, router_id: str, id_: str | None, name: str) -> Outcome:
    metric = to.metric or series.name
    if series.type == "summary":
        return _refused("unsupported_type", "", id_, name)
    if not 0 < len(metric) <= METRIC_CHARS_MAX:
        return _refused("invalid_metric", "", id_, name)
    good, unread = _judge(series, to.ok)
    if unread:
        return _refused("invalid_ok", unread, id_, name)
    temporality = _temporality(series, to)
    take_as: As = "value" if temporality is None else "observations" if series.type == "histogram" else to.take_as
    return Target(
        router_id=router_id,
        metric=metric,
        scale=to.scale,
        take_as=take_as,
        ok=good,
        temporality=temporality,
        mapping_id=id_,
        mapping=name,
        series_max=to.series_max,
    )


def _temporality(series: Series, to: MappingTo) -> Temporality | None:
    """That of a counter or histogram, cumulative where nobody says. A series of unknown type is a counter where its
    mapping gives it one."""
    if series.type == "histogram" or (series.type == "sum" and series.monotonic):
        return series.temporality or to.temporality or "cumulative"
    if series.type == "unknown":
        return series.temporality or to.temporality
    return None


_PLAIN = MappingTo(router="label.router_id")
_COUNTER = MappingTo(router="label.router_id", temporality="cumulative")
"""What built-in mappings make of a series, but for the router; and of a counter whose sender does not say that it is
one."""
_READY = {
    form.format(base): (name, keys, _COUNTER if form.endswith("_count") else _PLAIN)
    for name, keys in READY.items()
    for base in (name, name.replace(".", "_"))
    for form in SPELLINGS
}


def _built_in(series: Series, routers: Routers) -> Outcome:
    if (named := _first(series, ROUTER_KEYS)) and not _adds_up_values(series):
        router_id, why = routers.find(named)
        name = ROUTER_KEYS[0]
        return _refused(why, named, None, name) if why else _to_router(series, _PLAIN, router_id, None, name)
    name, keys, to = _READY.get(series.name, ("", (), _PLAIN))
    for key in keys:
        if (named := _under(series, key)) and routers.named(named):
            router_id, why = routers.find(named)
            return _refused(why, named, None, name) if why else _to_router(series, to, router_id, None, name)
    return UNMATCHED


def _adds_up_values(series: Series) -> bool:
    return series.type == "sum" and series.temporality == "cumulative" and series.name.endswith("_sum")


def _first(series: Series, keys: Sequence[str]) -> str:
    """The text under the first of the keys that is there, among labels, then among resource attributes; "": none."""
    for of in (series.labels, series.resource):
        for key in keys:
            if text := of.get(key):
                return text
    return ""


def _under(series: Series, key: str) -> str:
    """The text under a key, of a label or else of a resource attribute; "": none."""
    return series.labels.get(key) or series.resource.get(key) or ""


def _judge(series: Series, rules: Sequence[OkRule]) -> tuple[bool, str]:
    """Whether a series' observations are good, and what of it can't be read, "" for nothing."""
    if not rules:
        return _conventional(series), ""
    good = True
    for rule in rules:
        holds, unread = _holds(series, rule)
        if unread:
            return False, unread
        good = good and holds
    return good, ""


def _holds(series: Series, rule: OkRule) -> tuple[bool, str]:
    if rule.absent is not None:
        return not _under(series, rule.absent), ""
    if rule.below is not None:
        text = _under(series, rule.below.key)
        number = _number(text)
        return number is None or number < rule.below.limit, rule.below.key if text and number is None else ""
    if rule.one_of is not None:
        text = _under(series, rule.one_of.key)
        return not text or text in rule.one_of.values, ""
    key = rule.label or ""
    text = _under(series, key)
    truth = _truth(text)
    return truth is not False, key if text and truth is None else ""


def _conventional(series: Series) -> bool:
    """By the conventions of OpenTelemetry and Prometheus; what can't be read says nothing."""
    if _first(series, ERROR_KEYS):
        return False
    for key in STATUS_KEYS:
        if (text := _under(series, key)) and (_number(text) or 0) >= STATUS_LIMIT:
            return False
    if (code := _first(series, GRPC_KEYS)) and code not in GRPC_OK:
        return False
    return _truth(_under(series, "ok")) is not False


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return None if isnan(number) else number


def _truth(text: str) -> bool | None:
    word = text.lower()
    return True if word in TRUE else False if word in FALSE else None


def _refused(code: str, about: object = "", id_: str | None = None, name: str = "") -> Refused:
    text = str(about)
    shown = text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}..."
    return Refused(code=code, message=WORDS[code].format(shown), mapping_id=id_, mapping=name)
