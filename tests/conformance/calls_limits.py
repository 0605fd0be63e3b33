"""Rows of every limit: at its edge, below and above."""

from __future__ import annotations

from collections.abc import Iterator

from tests.conformance.calls_routers import STAMPED, sample
from tests.conformance.rows import Row
from tests.conformance.service_harness import RULE

B, R = "P/breakers/{breaker_id}", "P/routers/{router_id}"
MS_MAX, DAY_MS = 2_147_483_647, 86_400_000


def pairs(count: int) -> dict[str, str]:
    return {f"k{number}": "v" for number in range(count)}


def at_edge(
    limit: str, line: str, ok: int, inside: object, outside: object, field: str, **more: object
) -> Iterator[Row]:
    """A row on each side of an edge; `inside` and `outside` are values of `field`."""
    base: dict[str, object] = dict(more.pop("base", {}))  # type: ignore[call-overload]
    for note, value, status in (("at", inside, ok), ("above", outside, 422)):
        yield Row(
            f"{line} {status}",
            f"{limit}: {note} the edge",
            {**base, field: value},
            field=field if status == 422 else "",
            **more,
        )  # type: ignore[arg-type]


def metadata() -> Iterator[Row]:
    """Metadata of breakers and routers, in creates, changes and merges."""
    edges = {
        "metadata keys": (pairs(20), pairs(21)),
        "metadata key length": ({"k" * 64: "v"}, {"k" * 65: "v"}),
        "metadata value length": ({"k": "v" * 255}, {"k": "v" * 256}),
    }
    for limit, (inside, outside) in edges.items():
        of = (" of a breaker", " of a router") if limit == "metadata keys" else ("", " (router)")
        yield from at_edge(limit + of[0], "POST P/breakers", 201, inside, outside, "metadata", base=RULE)
        yield from at_edge(limit + of[0], f"PATCH {B}", 200, inside, outside, "metadata")
        yield from at_edge(limit + of[1], "POST P/routers", 201, inside, outside, "metadata")
        yield from at_edge(limit + of[1], f"PATCH {R}", 200, inside, outside, "metadata")
        yield from at_edge(limit + of[0], f"PATCH {B}/metadata", 200, inside, outside, "metadata", key="admin")
        yield from at_edge(limit + of[1], f"PATCH {R}/metadata", 200, inside, outside, "metadata", key="admin")
    for path in (B, R):
        before = ((f"PATCH {path}/metadata", {"metadata": pairs(20)}),)
        line, limit = f"PATCH {path}/metadata", "metadata keys after a merge"
        yield Row(f"{line} 200", f"{limit}: same keys", {"metadata": pairs(3)}, key="admin", before=before)
        yield Row(
            f"{line} 200", f"{limit}: one for one", {"metadata": {"k0": None, "new": "v"}}, key="admin", before=before
        )
        yield Row(f"{line} 422", f"{limit}: one more", {"metadata": {"new": "v"}}, key="admin", before=before)


def breakers() -> Iterator[Row]:
    """Numbers of a rule. (field, least, most, what else is needed)."""
    edges: tuple[tuple[str, int, int, dict[str, object]], ...] = (
        ("recovery_allow_rate_ramp_steps", 1, 10, {}),
        ("window_ms", 1, DAY_MS, {}),
        ("eval_interval_ms", 1, MS_MAX // 6, {}),
        ("min_count", 0, MS_MAX, {}),
        ("min_state_duration_ms", 0, MS_MAX, {}),
        ("cooldown_ms", 0, MS_MAX, {}),
        ("half_open_backoff_cap_ms", 0, MS_MAX, {}),
    )
    for field, least, most, base in edges:
        yield from at_edge(f"{field} to {most}", "POST P/breakers", 201, most, most + 1, field, base={**RULE, **base})
        yield from at_edge(
            f"{field} from {least}", "POST P/breakers", 201, least, least - 1, field, base={**RULE, **base}
        )
        yield from at_edge(f"{field} to {most}", f"PATCH {B}", 200, most, most + 1, field, base=base)
    yield from at_edge("metric length", "POST P/breakers", 201, "m" * 128, "m" * 129, "metric", base=RULE)
    yield from at_edge("metric not empty", "POST P/breakers", 201, "m", "", "metric", base=RULE)
    yield from at_edge("name length", "POST P/breakers", 201, "n" * 255, "n" * 256, "name", base=RULE)
    for share, wrong in ((100, 101), (0.1, 0)):
        base = {**RULE, "kind": "percentile"}
        inside, outside = {"percentile": share}, {"percentile": wrong}
        yield from at_edge(f"percentile {wrong}", "POST P/breakers", 201, inside, outside, "kind_params", base=base)
    free = {**RULE, "kind": "consecutive_failures", "window_ms": 0}
    yield Row("POST P/breakers 201", "window_ms 0 for consecutive_failures", free)
    advice = {**RULE, "window_ms": 1000, "eval_interval_ms": 1000}
    yield Row("POST P/breakers 201", "window_ms below 3 x eval_interval_ms is advice", advice)


def names() -> Iterator[Row]:
    """Names of everything: 255 characters."""
    yield from at_edge("name length", "POST P/routers", 201, "n" * 255, "n" * 256, "name")
    yield from at_edge("name length", "POST P/keys", 201, "n" * 255, "n" * 256, "name")
    base = {"workspace_id": "{workspace_id}"}
    yield from at_edge("name length", "POST /v1/projects", 201, "n" * 255, "n" * 256, "name", base=base)


def ingest() -> Iterator[Row]:
    def one(limit: str, status: int, code: str, **fields: object) -> Row:
        def check(_: object, body: dict[str, dict[str, list[dict[str, str]]]]) -> bool:
            return status == 202 or body["details"]["errors"][0]["code"] == code

        return Row(f"POST P/ingest {status}", limit, [sample(**fields)], key=None, headers=STAMPED, check=check)

    yield one("MetricSample.metric length: at the edge", 202, "", metric="m" * 128)
    yield one("MetricSample.metric length: above the edge", 422, "invalid_metric", metric="m" * 129)
    yield one("MetricSample.tags keys: at the edge", 202, "", tags=pairs(32))
    yield one("MetricSample.tags keys: above the edge", 422, "invalid_tags", tags=pairs(33))
    many = [sample()] * 1000
    yield Row(
        "POST P/ingest 202",
        "samples: at the edge",
        many,
        key=None,
        headers=STAMPED,
        check=lambda r, b: b["accepted"] == 1000,
    )
    yield Row("POST P/ingest 413", "samples: above the edge", [*many, sample()], key=None, headers=STAMPED)


def events() -> Iterator[Row]:
    for limit in (1, 199, 200):
        yield Row("GET P/events 200", f"events limit {limit}", query=f"limit={limit}")
    for limit in (-1, 0, 201):
        yield Row("GET P/events 400", f"events limit {limit}", query=f"limit={limit}", field="limit")


LIMITS = (*metadata(), *breakers(), *names(), *ingest(), *events())
