"""Whatever the API accepts, everybody is served afterwards, also by the next life of the service.

Every field of every body gets odd values: control characters, line ends, lone surrogates, huge numbers, empty ones,
values of other kinds. No answer may be a 5xx, and a bystander must be served before and after a restart.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support import virtual_time
from tests.support.bodies import fields, request_bodies
from tests.support.web_world import RULE
from tests.unit.engine.test_poison import Running, Tenant, bystander, running

Request = tuple[str, str, Any]
STRINGS = [
    *("", "\n", "static\n", "canary\r\n", "ok\n", "avg\n", "\x00", "\x1b[31m", "\u2028", "\u202e", "\ufeff", "\ud800"),
    *("\udfff\ud800", "é", "e\u0301", "🙂", "a" * 255, "a" * 256, "=?utf-8?q?=0d=0a?=", "NaN", "-0", "{value}", "%2f"),
    *("http://x.example/\n", "{{value}}", "canary:", "weight:\n", "null", "../..", "' OR 1=1 --"),
]
NUMBERS = [0, -1, 1, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), 10**30, 0.5, -0.0, 5e-324, 1e308, 1e-300]
odd_text = st.one_of(
    st.sampled_from(STRINGS), st.text(max_size=40), st.text(st.characters(max_codepoint=160), max_size=9)
)
odd_number = st.one_of(st.sampled_from(NUMBERS), st.floats(), st.integers())
odd = st.recursive(
    st.one_of(odd_text, odd_number, st.none(), st.booleans()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(odd_text, inner, max_size=3)),
    max_leaves=6,
)
SANE: dict[str, Any] = {
    **RULE,
    "name": "n",
    "mode": "canary",
    "enabled": True,
    "metadata": {"canary:n": "50", "team": "t"},
    "breaker_ids": ["{breaker}"],
    "breaker_id": "{breaker}",
    "router_ids": ["{router}"],
    "router_id": "{router}",
    "window_ms": 1_000,
    "eval_interval_ms": 200,
    "kind_params": {},
    "actions": {"a": 1},
    "channel": "webhook",
    "config": {"url": "https://hooks.example/x", "headers": {"a": "b"}},
    "events": ["trip"],
    "slug": "s",
    "workspace_id": "{workspace}",
    "enable_signed_ingest": False,
    "trace_id_url_template": "https://t.example/{{value}}",
    "slack_webhook_url": "https://hooks.slack.com/services/x",
    "value": 1.0,
    "ts_ms": "{now}",
    "ok": True,
    "tags": {"a": "b"},
    "trace_id": "t",
    "reason": "r",
    "comment": "c",
    "all": True,
    "matchers": [{"field": "name", "op": "glob", "value": "n*"}],
    "ends_ms": "{later}",
    "windows": [{"weekdays": ["mon"], "from": "22:00", "to": "06:00"}],
    "zone": "Europe/Berlin",
    "allow_rate": 0.5,
    "for_ms": 60_000,
    "then": "half_open",
    "shadow_of": "{breaker}",
    "to": {"router": "{router}", "metric": "m", "ok": {"label": "ok"}},
}
OTHERWISE: dict[str, dict[str, Any]] = {
    "OverrideSet": {"kind": "force_open"},
    "OverridesSet": {"kind": "throttle"},
    "BreakerCreate": {"mode": "observe"},
    "BreakerPatch": {"mode": "observe"},
    "BreakerItem": {"mode": "observe"},
    "RulesDocument": {
        "owner": "o",
        "labels": {"team": "t"},
        "breakers": {"n": RULE, "o": {**RULE, "mode": "observe", "metadata": {"a": "b"}}},
        "routers": {"r": {"breakers": ["n"], "mode": "canary", "metadata": {"canary:n": "50"}}},
        "mappings": {"m": {"matchers": [{"field": "name", "op": "=", "value": "x"}], "to": {"router": "label.r"}}},
        "channels": {"c": {"channel": "webhook", "config": {"url": "https://hooks.example/x"}, "events": ["trip"]}},
        "mutes": {"m": {"all": True, "comment": "c", "windows": [{"from": "22:00", "to": "06:00"}]}},
    },
    **{
        name: {"matchers": [{"field": "label.n", "op": "glob", "value": "n*"}], "id": None, "position": 1}
        for name in ("MappingCreate", "MappingPatch", "MappingSent")
    },
}
"""Fields that mean something else in a body than in the others."""
REQUIRED = (
    "metric",
    "kind",
    "op",
    "threshold",
    "channel",
    "config",
    "slug",
    "name",
    "workspace_id",
    "router_id",
    "value",
    "reason",
    "comment",
    "all",
    "ends_ms",
    "to",
)
BODIES: dict[tuple[str, str], str] = {
    ("POST", "routers"): "RouterCreate",
    ("PATCH", "routers/{router}"): "RouterPatch",
    ("POST", "routers/{router}/breakers"): "RouterLink",
    ("POST", "breakers"): "BreakerCreate",
    ("PATCH", "breakers/{breaker}"): "BreakerPatch",
    ("PUT", "breakers"): "BreakerItem",
    ("PATCH", "breakers/{breaker}/metadata"): "MetadataPatch",
    ("PATCH", "routers/{router}/metadata"): "MetadataPatch",
    ("POST", "notification-channels"): "ChannelCreate",
    ("PATCH", "notification-channels/{channel}"): "ChannelPatch",
    ("PATCH", "/v1/projects/{project}"): "ProjectPatch",
    ("POST", "/v1/projects"): "ProjectCreate",
    ("POST", "/v1/workspaces"): "WorkspaceCreate",
    ("PATCH", "/v1/workspaces/{workspace}"): "WorkspacePatch",
    ("POST", "/v1/projects/{project}/keys"): "ProjectKeyCreate",
    ("POST", "breakers/state:batch"): "StateBatch",
    ("PUT", "breakers/{breaker}/override"): "OverrideSet",
    ("POST", "overrides"): "OverridesSet",
    ("POST", "overrides:end"): "OverridesEnd",
    ("POST", "mutes"): "MuteCreate",
    ("PATCH", "mutes/{mute}"): "MutePatch",
    ("POST", "mappings"): "MappingCreate",
    ("PATCH", "mappings/{mapping}"): "MappingPatch",
    ("PUT", "mappings"): "MappingSent",
    ("POST", "rules:apply"): "RulesDocument",
    ("POST", "ingest"): "MetricSample",
}
NOTHING_STAYS = {"Samples", "BreakersReplace", "ProjectDelete", "Rebalance", "SlackConfig", "Matcher", "Window"}
NOTHING_STAYS |= {"OverrideMatch", "OverrideMatcher", "MutePreview", "ShadowMode"}
NOTHING_STAYS |= {"MappingToCreate", "MappingToPatch", "SeriesMatcher", "OkRule", "Below", "OneOf"}
NOTHING_STAYS |= {"MappingsReplace", "MappingsPreview", "PreviewedSeries"}
"""Parts of others, and bodies of which nothing is stored."""


def test_every_body_is_there() -> None:
    assert request_bodies() - NOTHING_STAYS == set(BODIES.values())


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """One request with sane values and, mostly, one odd one; now and then its odd place is deeper."""
    method, path = draw(st.sampled_from(list(BODIES)))
    names = fields(BODIES[method, path])
    given_names = {name for name in names if name in REQUIRED and method != "PATCH"}
    given_names |= {"matchers"} if "to" in given_names else set()
    given_names |= set(draw(st.lists(st.sampled_from(names), max_size=3)))
    sane_ones = SANE | OTHERWISE.get(BODIES[method, path], {})
    body = {name: sane_ones[name] for name in names if name in given_names and name in sane_ones}
    for name in draw(st.lists(st.sampled_from(names), max_size=2)):
        sane = sane_ones.get(name)
        if isinstance(sane, dict) and draw(st.booleans()):
            key = draw(st.one_of(st.sampled_from([*sane, "canary:x", "url", "to"]), odd_text))
            body[name] = {**sane, key: draw(st.one_of(odd, odd_text))}
        elif isinstance(sane, str) and not sane.startswith("{") and draw(st.booleans()):
            body[name] = sane + draw(st.sampled_from(["\n", "\r", "\x85", "\u2028", " ", "\x00"]))
        else:
            body[name] = draw(odd)
    if method == "PUT" and path in ("breakers", "mappings"):
        return method, path, {path: [body]}
    return method, path, {"samples": [body]} if path == "ingest" else body


async def send(run: Running, who: Tenant, made: dict[str, str], request: Request) -> int:
    """Carries one out; whatever it is, it gets an answer."""
    method, path, body = request
    known = {"breaker": who.breaker_id, "router": who.router_id, **made}
    known |= {"project": who.project_id, "workspace": who.workspace_id}

    def filled(text: str) -> str:
        return re.sub(r"\{(breaker|router|channel|mute|mapping|project|workspace)\}", lambda m: known[m[1]], text)

    full = filled(path if path.startswith("/") else f"/v1/projects/{who.project_id}/{path}")
    now_ms = run.cluster.gateway._clock.now_ms()
    text = filled(json.dumps(body)).replace('"{now}"', str(now_ms)).replace('"{later}"', str(now_ms + 3_600_000))
    key = "admin" if path.startswith("/") or "metadata" in path else "user"
    headers = {"Authorization": f"Bearer {who.keys[key]}", "Content-Type": "application/json"}
    answer = await run.app.test_client().open(full, method=method, headers=headers, data=text.encode())
    assert answer.status_code < 500, (request, await answer.get_data())
    return int(answer.status_code)


async def try_all(directory: Path, wanted: list[Request]) -> None:
    async with running(directory) as run:
        victim, attacker = await bystander(run), await bystander(run, "attacker")
        channel = {"channel": "email", "config": {"to": ["a@x.example"]}}
        _, made = await run.call(attacker, "POST", "notification-channels", channel)
        ends_ms = run.cluster.gateway._clock.now_ms() + 3_600_000
        _, mute = await run.call(attacker, "POST", "mutes", {"all": True, "ends_ms": ends_ms, "comment": "c"})
        named = {"matchers": [{"field": "name", "op": "=", "value": "m"}], "to": {"router": "label.router"}}
        _, mapping = await run.call(attacker, "POST", "mappings", named)
        known = {"channel": made["channel"]["id"], "mute": mute["mute"]["id"], "mapping": mapping["mapping"]["id"]}
        for request in wanted:
            await send(run, attacker, known, request)
        await run.serves(victim, "before")
    async with running(directory) as run:
        await run.serves(victim, "after a restart")
        status, listed = await run.call(attacker, "GET", "breakers")
        assert status == 200
        for path in ("routers", "notification-channels", "mutes", "mappings", "overrides", "status", "events", "audit"):
            assert (await run.call(attacker, "GET", path, key="admin"))[0] in (200, 404), path
        for breaker in listed["breakers"]:
            await run.state(attacker, breaker["id"])
        await run.cluster.retention.round()
        parts = [actor._asides for actor in run.cluster.net.actors.values() if hasattr(actor, "_asides")]
        assert len(parts) >= 2
        met = [dict(asides.counts) for asides in (*parts, run.store.asides) if asides.counts]
        assert (met, await run.asides()) == ([], []), "all that was accepted can be read"


def check(wanted: list[Request]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        virtual_time.run(try_all(Path(directory), wanted))


QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


POISONS: list[Request] = [
    ("POST", "routers", {"mode": "static\n"}),
    ("PATCH", "routers/{router}", {"mode": "canary\n"}),
    ("POST", "/v1/workspaces", {"name": "n", "slug": "ok\n"}),
]
"""What c930192 took."""


@example(POISONS)
@settings(max_examples=5, deadline=None, suppress_health_check=QUIET, derandomize=True)
@given(st.lists(requests(), min_size=40, max_size=60))
def test_whatever_is_accepted_everybody_is_served(wanted: list[Request]) -> None:
    check(wanted)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@settings(max_examples=200, deadline=None, suppress_health_check=QUIET)
@given(st.lists(requests(), min_size=40, max_size=60))
def test_much_that_is_accepted_harms_nobody(wanted: list[Request]) -> None:
    check(wanted)
