"""What becomes of a series, by a project's mappings and by the built-in ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from time import perf_counter
from typing import Any

import msgspec
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from api.protocols.mapping import (
    EFFORT,
    READY,
    UNMATCHED,
    WORDS,
    Mappings,
    Outcome,
    Refused,
    Routers,
    Target,
    Unmatched,
    refusal,
    resolve,
    resolve_all,
)
from api.protocols.points import Series
from api.wire.decoding import METRIC_LENGTH_MAX
from breaker_actors.store.mappings.model import (
    METRIC_CHARS_MAX,
    UNREADABLE_SERIES,
    UNREADABLE_TO,
    MappingTo,
    SeriesMatcher,
    problems,
)
from breaker_actors.store.rows import MappingRow

SHOP = "0b8f0e1c-6a52-4c0e-9d4b-2f9f1f7a3c11"
PAY = "1b8f0e1c-6a52-4c0e-9d4b-2f9f1f7a3c12"
TWIN_A, TWIN_B = "2b8f0e1c-6a52-4c0e-9d4b-2f9f1f7a3c13", "3b8f0e1c-6a52-4c0e-9d4b-2f9f1f7a3c14"
ROUTERS = Routers({SHOP: "shop", PAY: "pay.internal", TWIN_A: "twin", TWIN_B: "twin"})
ABSENT = "4b8f0e1c-6a52-4c0e-9d4b-2f9f1f7a3c15"


def series(name: str = "requests", **fields: Any) -> Series:
    """One series of a gauge, unless said."""
    plain: dict[str, Any] = {"labels": {}, "resource": {}, "type": "gauge", "temporality": None, "monotonic": False}
    told = plain | {"unit": ""} | fields
    identity = xxhash.xxh3_128_digest(msgspec.json.encode([name, told], order="deterministic"))
    return Series(name=name, identity=identity, **told)


def row(to: dict[str, Any], *matchers: tuple[str, str, str], **fields: Any) -> MappingRow:
    """A mapping of series named requests, unless said."""
    asked = matchers or (("name", "=", "requests"),)
    told: dict[str, Any] = {"id": "m-1", "name": "ours", "position": 1, "enabled": True, "version": 1} | fields
    return MappingRow(
        project_id="p",
        matchers=tuple(
            msgspec.convert(dict(zip(("field", "op", "value"), one, strict=True)), SeriesMatcher) for one in asked
        ),
        to=msgspec.convert(to, MappingTo),
        inserted_ms=0,
        updated_ms=0,
        **told,
    )


def become(one: Series, *rows: MappingRow, routers: Routers = ROUTERS) -> Outcome:
    return resolve(one, Mappings(rows), routers)


def target(one: Series, *rows: MappingRow) -> Target:
    found = become(one, *rows)
    assert isinstance(found, Target), found
    return found


def code(one: Series, *rows: MappingRow) -> str:
    found = become(one, *rows)
    assert isinstance(found, Refused), found
    return found.code


def test_a_metric_is_as_long_as_a_samples() -> None:
    assert METRIC_CHARS_MAX == METRIC_LENGTH_MAX


@pytest.mark.parametrize(
    ("field", "op", "value", "matches"),
    [
        ("name", "=", "requests", True),
        ("name", "=", "request", False),
        ("name", "!=", "other", True),
        ("name", "glob", "req*", True),
        ("name", "glob", "request", False),
        ("label.server.address", "=", "pay", True),
        ("label.server.address", "=", "PAY", False),
        ("label.server.address", "!=", "pay", False),
        ("label.server.address", "glob", "p?y", True),
        ("label.none", "=", "x", False),
        ("label.none", "!=", "x", True),
        ("label.none", "glob", "*", False),
        ("label.empty", "glob", "*", False),
        ("label.service.name", "=", "web", False),
        ("resource.service.name", "=", "web", True),
        ("resource.server.address", "glob", "*", False),
    ],
)
def test_what_a_matcher_says_of_a_series(field: str, op: str, value: str, matches: bool) -> None:
    one = series(labels={"server.address": "pay", "empty": ""}, resource={"service.name": "web"})
    assert isinstance(become(one, row({"router": SHOP}, (field, op, value))), Target) is matches


def test_the_first_mapping_that_matches_decides() -> None:
    first, second = row({"router": SHOP}, id="a"), row({"router": PAY}, ("name", "glob", "*"), id="b")
    assert target(series(), first, second).mapping_id == "a"
    assert target(series(), second, first).mapping_id == "b"
    assert target(series("other"), first, second).mapping_id == "b"
    assert target(series(), msgspec.structs.replace(first, enabled=False), second).mapping_id == "b"
    refusing = row({"router": ABSENT}, id="c")
    assert code(series(), refusing, second) == "router_not_found", "what matches and can't be used goes no further"


def test_all_matchers_have_to_match_and_two_names_match_nothing() -> None:
    both = row({"router": SHOP}, ("name", "=", "requests"), ("label.env", "=", "prod"))
    assert become(series(), both) == UNMATCHED
    assert isinstance(become(series(labels={"env": "prod"}), both), Target)
    assert become(series(), row({"router": SHOP}, ("name", "=", "requests"), ("name", "=", "other"))) == UNMATCHED


def test_what_a_target_says() -> None:
    to = {"router": SHOP, "metric": "latency", "scale": 1000, "temporality": "delta", "series_max": 7}
    found = target(series(type="sum", monotonic=True), row(to))
    assert found == Target(
        router_id=SHOP,
        metric="latency",
        scale=1000,
        take_as="observations",
        ok=True,
        temporality="delta",
        mapping_id="m-1",
        mapping="ours",
        series_max=7,
    )
    assert target(series(), row({"router": SHOP})).metric == "requests"


@pytest.mark.parametrize(
    ("kind", "monotonic", "said", "mapped", "temporality", "take_as"),
    [
        ("gauge", False, None, "delta", None, "value"),
        ("sum", False, "cumulative", None, None, "value"),
        ("sum", False, "delta", "cumulative", None, "value"),
        ("sum", True, "delta", "cumulative", "delta", "observations"),
        ("sum", True, None, "delta", "delta", "observations"),
        ("sum", True, None, None, "cumulative", "observations"),
        ("histogram", False, "delta", None, "delta", "observations"),
        ("histogram", False, None, None, "cumulative", "observations"),
        ("unknown", False, None, None, None, "value"),
        ("unknown", False, None, "cumulative", "cumulative", "observations"),
    ],
)
def test_how_points_are_taken(
    kind: Any, monotonic: bool, said: Any, mapped: Any, temporality: str | None, take_as: str
) -> None:
    one = series(type=kind, monotonic=monotonic, temporality=said)
    found = target(one, row({"router": SHOP, "temporality": mapped}))
    assert (found.temporality, found.take_as) == (temporality, take_as)
    risen = target(one, row({"router": SHOP, "temporality": mapped, "as": "value"}))
    assert risen.take_as == ("observations" if kind == "histogram" else "value")


@pytest.mark.parametrize(
    ("router", "labels", "found"),
    [
        (SHOP, {}, SHOP),
        (SHOP.upper().lower(), {}, SHOP),
        ("label.to", {"to": "shop"}, SHOP),
        ("label.to", {"to": SHOP.upper()}, SHOP),
        ("label.to", {"to": "Shop"}, "router_not_found"),
        ("label.to", {"to": "twin"}, "router_ambiguous"),
        ("label.to", {"to": TWIN_B}, TWIN_B),
        ("label.to", {}, "router_missing"),
        ("label.to", {"to": ""}, "router_missing"),
        ("resource.to", {"to": "shop"}, "router_missing"),
        (ABSENT, {}, "router_not_found"),
    ],
)
def test_which_router_a_mapping_means(router: str, labels: dict[str, str], found: str) -> None:
    outcome = become(series(labels=labels), row({"router": router}))
    assert (outcome.router_id if isinstance(outcome, Target) else outcome.code) == found  # type: ignore[union-attr]


def test_an_id_goes_before_a_name() -> None:
    routers = Routers({SHOP: "shop", PAY: SHOP})
    found = become(series(labels={"to": SHOP}), row({"router": "label.to"}), routers=routers)
    assert isinstance(found, Target)
    assert found.router_id == SHOP


GOOD: Sequence[tuple[dict[str, str], bool]] = [
    ({}, True),
    ({"error.type": "timeout"}, False),
    ({"error_type": "timeout"}, False),
    ({"error.type": ""}, True),
    ({"http.response.status_code": "499"}, True),
    ({"http.response.status_code": "500"}, False),
    ({"http_response_status_code": "503"}, False),
    ({"code": "502"}, False),
    ({"status": "500"}, False),
    ({"status": "error"}, True),
    ({"code": "nan"}, True),
    ({"code": "200", "status": "500"}, False),
    ({"rpc.grpc.status_code": "0"}, True),
    ({"rpc.grpc.status_code": "OK"}, True),
    ({"rpc.grpc.status_code": "14"}, False),
    ({"grpc_code": "Unavailable"}, False),
    ({"ok": "true"}, True),
    ({"ok": "False"}, False),
    ({"ok": "0"}, False),
    ({"ok": "maybe"}, True),
]


@pytest.mark.parametrize(("labels", "ok"), GOOD)
def test_what_is_good_by_the_conventions(labels: dict[str, str], ok: bool) -> None:
    assert target(series(labels=labels), row({"router": SHOP})).ok is ok
    assert target(series(resource=labels), row({"router": SHOP})).ok is ok
    assert target(series(labels={"router_id": "shop"} | labels)).ok is ok


@pytest.mark.parametrize(
    ("rules", "labels", "ok"),
    [
        ([{"absent": "failed"}], {}, True),
        ([{"absent": "failed"}], {"failed": "no"}, False),
        ([{"below": {"key": "code", "limit": 400}}], {"code": "404"}, False),
        ([{"below": {"key": "code", "limit": 400}}], {"code": "302"}, True),
        ([{"below": {"key": "code", "limit": 400}}], {}, True),
        ([{"below": {"key": "code", "limit": 400}}], {"code": "4xx"}, None),
        ([{"in": {"key": "outcome", "values": ["success", "skipped"]}}], {"outcome": "skipped"}, True),
        ([{"in": {"key": "outcome", "values": ["success"]}}], {"outcome": "failure"}, False),
        ([{"in": {"key": "outcome", "values": ["success"]}}], {}, True),
        ([{"label": "good"}], {"good": "YES"}, True),
        ([{"label": "good"}], {"good": "0"}, False),
        ([{"label": "good"}], {"good": "perhaps"}, None),
        ([{"label": "good"}], {"error.type": "timeout"}, True),
        ([{"absent": "failed"}, {"below": {"key": "code", "limit": 400}}], {"code": "500"}, False),
        ([{"absent": "failed"}, {"below": {"key": "code", "limit": 400}}], {"code": "200"}, True),
    ],
)
def test_what_is_good_by_rules(rules: list[Any], labels: dict[str, str], ok: bool | None) -> None:
    found = become(series(labels=labels), row({"router": SHOP, "ok": rules}))
    assert (found.ok if isinstance(found, Target) else None) is ok
    if isinstance(found, Refused):
        assert found.code == "invalid_ok"


def test_what_matches_and_cannot_be_used() -> None:
    mapping = row({"router": SHOP})
    assert code(series(type="summary"), mapping) == "unsupported_type"
    assert code(series("n" * 129), row({"router": SHOP}, ("name", "glob", "*"))) == "invalid_metric"
    assert isinstance(become(series("n" * 129), row({"router": SHOP, "metric": "m"}, ("name", "glob", "*"))), Target)
    assert code(series(""), row({"router": SHOP}, ("name", "!=", "x"))) == "invalid_metric"
    assert become(series("other", type="summary"), mapping) == UNMATCHED


def test_a_refusal_names_its_mapping_and_repeats_little() -> None:
    found = become(series(labels={"to": "x" * 5_000}), row({"router": "label.to"}))
    assert isinstance(found, Refused)
    assert (found.mapping_id, found.mapping) == ("m-1", "ours")
    assert len(found.message) < 200


@pytest.mark.parametrize(
    ("take_as", "scale", "value", "refused"),
    [
        ("value", 1, 1.5, None),
        ("value", 1, -1.5, None),
        ("value", 1, math.nan, "invalid_value"),
        ("value", 1, math.inf, "invalid_value"),
        ("value", 1e300, 1e300, "invalid_value"),
        ("observations", 1, 0.0, None),
        ("observations", 1, 3.0, None),
        ("observations", 1, 2.0**53, None),
        ("observations", 1, 2.0**54, "invalid_rise"),
        ("observations", 1, 0.5, "invalid_rise"),
        ("observations", 1, -1.0, "invalid_rise"),
    ],
)
def test_values_that_cannot_be_used(take_as: str, scale: float, value: float, refused: str | None) -> None:
    mapping = row({"router": SHOP, "as": take_as, "scale": scale})
    found = refusal(target(series(type="sum", monotonic=True), mapping), value)
    assert (found.code if isinstance(found, Refused) else found) == refused


# built-in ones


@pytest.mark.parametrize("key", ["router_id", "breakers.router_id", "breakers_router_id"])
def test_a_router_is_named_by_a_label_or_resource_attribute(key: str) -> None:
    for where in ("labels", "resource"):
        for name in ("shop", SHOP, SHOP.upper()):
            found = target(series("any", **{where: {key: name}}))
            assert (found.router_id, found.metric, found.mapping_id) == (SHOP, "any", None)
            assert found.mapping == "router_id"
        assert code(series(**{where: {key: "nobody"}})) == "router_not_found"
        assert code(series(**{where: {key: ABSENT}})) == "router_not_found", "another project's is none"
    both = series(labels={"router_id": "shop"}, resource={"router_id": "pay.internal"})
    assert target(both).router_id == SHOP, "the label is nearer"


def test_sums_of_classic_histograms_are_nobodys() -> None:
    """They add up values; a counter of the same name that says what happened since the last time counts as any."""
    labels, mine = {"router_id": "shop"}, row({"router": SHOP, "as": "value"}, ("name", "glob", "*_sum"))
    total = series("call_seconds_sum", labels=labels, type="sum", monotonic=True, temporality="cumulative")
    assert become(total) == UNMATCHED
    assert target(total, mine).take_as == "value"
    assert target(replace(total, temporality="delta")).router_id == SHOP
    assert target(replace(total, name="call_seconds_count")).router_id == SHOP


@pytest.mark.parametrize("name", READY)
def test_ready_mappings_take_their_series_to_the_router_of_that_name(name: str) -> None:
    for spelled in (name, f"{name}_seconds", name.replace(".", "_") + "_seconds", name.replace(".", "_")):
        for key in ("server.address", "server_address"):
            found = target(series(spelled, labels={key: "pay.internal"}, type="histogram"))
            assert (found.router_id, found.metric, found.mapping) == (PAY, spelled, name)
            assert (found.scale, found.take_as) == (1, "observations")
            assert become(series(spelled, labels={key: "elsewhere"})) == UNMATCHED
            assert code(series(spelled, labels={key: "twin"})) == "router_ambiguous"
        assert become(series(spelled)) == UNMATCHED
        assert become(series(f"{spelled}_bucket", labels={"server.address": "shop"})) == UNMATCHED
    counter = series(name.replace(".", "_") + "_seconds_count", labels={"server_address": "shop"}, type="unknown")
    assert (target(counter).temporality, target(counter).take_as) == ("cumulative", "observations")
    quantile = series(name, labels={"server.address": "shop"}, type="unknown")
    assert (target(quantile).temporality, target(quantile).take_as) == (None, "value"), "it may be no counter"


def test_a_server_is_looked_for_by_its_address_then_by_its_service() -> None:
    name = "http.server.request.duration"
    one = series(name, labels={"server.address": "shop.example"}, resource={"service.name": "shop"})
    assert target(one).router_id == SHOP
    assert (
        target(series(name, labels={"server.address": "pay.internal"}, resource={"service.name": "shop"})).router_id
        == PAY
    )
    client = series("http.client.request.duration", resource={"service.name": "shop"})
    assert become(client) == UNMATCHED, "its own service is not the dependency"


def test_own_mappings_go_before_the_built_in_ones() -> None:
    one = series(labels={"router_id": "pay.internal"})
    assert target(one, row({"router": SHOP})).router_id == SHOP
    assert target(one, row({"router": SHOP}, ("name", "=", "other"))).router_id == PAY


# bounds


def test_a_mapping_takes_no_more_series_than_it_may() -> None:
    mapping = row({"router": SHOP, "series_max": 2})
    many = [series(labels={"n": str(n)}) for n in (1, 2, 1, 3, 2)]
    found = list(resolve_all(many, Mappings([mapping]), ROUTERS))
    assert [isinstance(one, Target) for one in found] == [True, True, True, False, True]
    assert isinstance(found[3], Refused)
    assert (found[3].code, found[3].mapping_id) == ("too_many_series", "m-1")


def test_hostile_labels_and_globs_take_bounded_work() -> None:
    globs = [("label.path", "glob", "*a?" * 8 + "b")] * 20
    rows = [row({"router": SHOP}, *globs, id=str(n)) for n in range(200)]
    compiled, one = Mappings(rows), series(labels={"path": "a" * 100_000})
    begun = perf_counter()
    found = resolve(one, compiled, ROUTERS)
    assert perf_counter() - begun < 0.5
    assert isinstance(found, Refused)
    assert found.code == "too_much_to_match"
    assert EFFORT < 2_000_000


def test_the_work_of_a_request_is_bounded_whatever_its_series_are() -> None:
    """Twenty thousand of them, each within what one may take: what is left when the request's is spent is refused."""
    mapping = row({"router": SHOP, "series_max": 10_000}, ("label.path", "glob", "*" + "a" * 240 + "b*"))
    many = [series(labels={"path": "a" * 2_600 + str(n)}) for n in range(5_000)]
    begun = perf_counter()
    found = list(resolve_all(many, Mappings([mapping]), ROUTERS))
    assert perf_counter() - begun < 2
    codes = [one.code if isinstance(one, Refused) else "" for one in found]
    first = codes.index("too_much_to_match")
    assert 100 <= first < 1_000
    assert set(codes[:first]) == {""}
    assert set(codes[first:]) == {"too_much_to_match"}


def test_a_text_that_comes_again_and_again_is_matched_once() -> None:
    """As that of a resource does, which all of its series have."""
    glob = "*" + "a" * 240 + "b*"
    mapping = row({"router": SHOP, "series_max": 10_000}, ("label.path", "glob", glob))
    text = "a" * 2_600
    many = [series(labels={"path": text, "n": str(n)}) for n in range(5_000)]
    found = list(resolve_all(many, Mappings([mapping]), ROUTERS))
    assert not any(isinstance(one, Refused) and one.code == "too_much_to_match" for one in found)


def test_what_cannot_be_read_of_a_stored_mapping_takes_nothing() -> None:
    plain = row({"router": SHOP})
    assert (
        become(series(labels={"unreadable": ""}), msgspec.structs.replace(plain, matchers=UNREADABLE_SERIES))
        == UNMATCHED
    )
    assert code(series(), msgspec.structs.replace(plain, to=UNREADABLE_TO)) == "router_missing"


def test_each_reason_has_words() -> None:
    assert all(words and not words.endswith(".") for words in WORDS.values())


@pytest.mark.parametrize(
    ("matcher", "to", "field"),
    [
        (("name", "glob", "*a" * 9), {}, "matchers[0].value"),
        (("name", "=", "x"), {"scale": math.inf}, "to.scale"),
        (("name", "=", "x"), {"ok": [{}]}, "to.ok[0]"),
        (("name", "=", "x"), {"ok": [{"label": "ok"}, {"label": "ok", "absent": "x"}]}, "to.ok[1]"),
        (("name", "=", "x"), {"ok": [{"below": {"key": "x", "limit": math.nan}}]}, "to.ok[0].below.limit"),
    ],
)
def test_mappings_that_are_none(matcher: tuple[str, str, str], to: dict[str, Any], field: str) -> None:
    made = row({"router": SHOP} | to, matcher)
    assert [place for place, _ in problems(made.matchers, made.to)] == [field]


def test_nothing_is_compared_with_an_empty_text() -> None:
    with pytest.raises(msgspec.ValidationError):
        row({"router": SHOP}, ("label.x", "!=", ""))


@pytest.mark.parametrize("router", ["", "shop", "label.", "labels.x", "resource", SHOP[:-1], SHOP + "\n"])
def test_routers_that_no_mapping_can_name(router: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        row({"router": router})


# against a naive reading


NAMES, KEYS, TEXTS = (
    st.sampled_from("ab"),
    st.sampled_from("xy"),
    st.sampled_from(("", "a", "ab", "shop", "twin", SHOP)),
)
FIELDS = st.one_of(st.just("name"), KEYS.map(lambda key: f"label.{key}"), KEYS.map(lambda key: f"resource.{key}"))
MATCHERS = st.tuples(FIELDS, st.sampled_from(("=", "!=", "glob")), st.sampled_from(("a", "ab", "*", "a*", "?")))
LABELS = st.dictionaries(KEYS, TEXTS)
MANY = st.builds(
    series,
    name=NAMES,
    labels=LABELS,
    resource=LABELS,
    type=st.sampled_from(("gauge", "sum", "histogram", "summary", "unknown")),
    monotonic=st.booleans(),
    temporality=st.sampled_from((None, "delta", "cumulative")),
)
ROWS = st.lists(
    st.builds(
        lambda matchers, router, enabled: row({"router": router}, *matchers, enabled=enabled),
        st.lists(MATCHERS, min_size=1, max_size=3),
        st.sampled_from((SHOP, PAY, ABSENT, "label.x", "resource.y")),
        st.booleans(),
    ),
    max_size=6,
)


def naive(one: Series, rows: Sequence[MappingRow]) -> int | None:
    """The number of the mapping that decides, read off the page."""

    def text(field: str) -> str | None:
        kind, _, key = field.partition(".")
        return one.name if kind == "name" else ((one.labels if kind == "label" else one.resource).get(key) or None)

    def holds(matcher: SeriesMatcher) -> bool:
        found = text(matcher.field)
        if matcher.op == "!=":
            return found != matcher.value
        like = fnmatchcase if matcher.op == "glob" else str.__eq__
        return found is not None and bool(like(found, matcher.value))

    return next((n for n, row in enumerate(rows) if row.enabled and all(map(holds, row.matchers))), None)


@settings(max_examples=400, deadline=None)
@given(MANY, ROWS)
def test_the_mapping_that_decides_is_the_first_that_matches(one: Series, rows: list[MappingRow]) -> None:
    numbered = [msgspec.structs.replace(row, id=str(n)) for n, row in enumerate(rows)]
    found, expected = become(one, *numbered), naive(one, rows)
    assert found == become(one, *numbered), "the same again"
    if expected is None:
        assert isinstance(found, Unmatched)
        return
    assert not isinstance(found, Unmatched)
    assert found.mapping_id == str(expected)
    if isinstance(found, Target):
        assert found.router_id in ROUTERS.names
        assert one.type != "summary"
        assert (found.temporality is None) == (one.type == "gauge" or (one.type == "sum" and not one.monotonic)) or (
            one.type == "unknown"
        )
        assert found.temporality is not None or found.take_as == "value"
