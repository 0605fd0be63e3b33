"""Pages and parts of pages out of templates: escaped everywhere, with times, spans and figures shown one way."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from quart import Response, g, request, url_for

from api.admission.intake import Turn
from api.auth import RIGHTS
from api.console.assets import address
from api.context.current import acting_key, callers
from api.context.replica import replica
from api.wire.http import text_bytes
from breaker_actors.clock import rfc3339
from breaker_actors.core.model import Rule, View
from breaker_actors.core.rule_remarks import stuck
from breaker_actors.notify.channels.wording import REASONS, amount, figure, rule_words
from breaker_actors.store.rows import PENDING_COUNTED

TEMPLATES = Path(__file__).parent / "templates"
HTML = "text/html; charset=utf-8"
POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""Nothing of any other host, nothing inline, in nobody's frame."""


SLICE = 100
"""Pieces of a page, a few dozen to a row of a table, that are made before others have their turn: some 2 ms."""
UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def span(ms: float | None) -> str:
    """A span of time: its two largest units."""
    if ms is None:
        return "–"
    if ms < 1_000:
        return f"{round(ms)} ms"
    left, parts = round(ms / 1_000), list[str]()
    for size, unit in UNITS:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {unit}")
        if len(parts) == 2 or (parts and not count):
            break
    return " ".join(parts)


def shown_figure(value: float | None) -> str:
    """A number for people."""
    return "–" if value is None else figure(value)


def when(ms: int | None) -> Markup:
    """A point in time: UTC here, the reader's own time once the page's script has seen it."""
    if ms is None:
        return Markup("–")
    utc = rfc3339(ms)
    return Markup('<time datetime="{}" data-ms="{}">{} UTC</time>').format(utc, ms, utc[:19].replace("T", " "))


Grid = tuple[int, int] | None
"""What comes again by itself, without a word of it: when next, and how long after that each time. The page's script
tells the last or the next of those."""


def ago(ms: int | None, grid: Grid = None) -> Markup:
    """How long ago, or ahead, a point in time is; the page's script keeps it true."""
    if ms is None:
        return Markup("–")
    away = replica().clock.now_ms() - ms
    text = f"{span(away)} ago" if away >= 0 else f"in {span(-away)}"
    return _time(ms, "relative", grid, text)


def rule_line(rule: Rule) -> str:
    """A rule in words."""
    return rule_words(msgspec.to_builtins(rule))


def reason_words(reason: str | None) -> str:
    """Why a breaker moved."""
    return "–" if reason is None else REASONS.get(reason, reason.replace("_", " "))


def amount_of(value: float | None, rule: Rule | Mapping[str, Any] | None) -> str:
    """A value of what a rule measures, with its unit."""
    if isinstance(rule, Rule):
        rule = {"kind": rule.kind, "kind_params": rule.kind_params}
    return "–" if value is None else amount(rule or {}, value)


def share(rate: float) -> str:
    """How much of the calls is let through."""
    return f"{figure(round(100 * rate, 2))} %"


def waiting(n: int) -> str:
    """How many wait, of what is counted up to PENDING_COUNTED."""
    return f"{n:,} or more" if n >= PENDING_COUNTED else str(n)


def lasting(ms: int) -> Markup:
    """How long something has been so."""
    text = span(max(0, replica().clock.now_ms() - ms))
    return _time(ms, "lasting", None, text)


def ahead(ms: int, grid: Grid = None) -> Markup:
    """How long it is until a point in time; what was to come by now is due."""
    text = f"in {span(left)}" if (left := ms - replica().clock.now_ms()) > 0 else "now"
    return _time(ms, "ahead", grid, text)


def _time(ms: int, kind: str, grid: Grid, text: str) -> Markup:
    again = Markup(' data-next="{}" data-every="{}"').format(*grid) if grid else ""
    return Markup('<time datetime="{}" data-ms="{}"{} data-{}>{}</time>').format(rfc3339(ms), ms, again, kind, text)


def next_step(view: View, rule: Rule) -> Markup:
    """What comes next by itself, and when."""
    override = view.override
    if override is not None:
        return Markup("override ends {}").format(ahead(override.until_ms))
    if view.deadline_ms is not None:
        return Markup("{} {}").format("probe" if view.machine_state == "open" else "open", ahead(view.deadline_ms))
    if view.state == "half_open":
        steps = rule.recovery_allow_rate_ramp_steps
        waits = view.verdict == "indeterminate" and rule.half_open_indeterminate_policy == "conservative"
        before = "waits for samples at " if waits else ""
        return Markup("{}step {} of {}").format(before, round(view.allow_rate * steps), steps)
    return Markup("{}").format("waits for samples" if view.state == "open" else "–")


@cache
def environment() -> Environment:
    """The templates, compiled once."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= {
        "span": span,
        "stuck": stuck,
        "figure": shown_figure,
        "when": when,
        "ago": ago,
        "rule": rule_line,
        "next_step": next_step,
        "ahead": ahead,
        "lasting": lasting,
        "reason": reason_words,
        "amount": amount_of,
        "waiting": waiting,
        "share": share,
    }
    made.globals |= {"asset": address, "url_for": url_for}
    return made


def is_part() -> bool:
    """Whether the page's script asks for the live part alone."""
    return request.headers.get("HX-Request") == "true"


async def page(name: str, status: int = 200, **given: Any) -> Response:
    """A page out of its template, made in its caller's turns; its block `live` alone where the page's script asks for
    that. Raises Overloaded where too many wait for their turns."""
    template = environment().get_template(name)
    context = template.new_context({**_common(), **given})
    whole = not is_part() or "live" not in template.blocks
    pieces = template.root_render_func(context) if whole else template.blocks["live"](context)
    if status >= 400:
        return _answer("".join(pieces), status)  # small, and never refused
    texts = list[str]()
    async with Turn(replica().intake.turns, callers()) as turn:
        await turn.next()
        for number, piece in enumerate(pieces, 1):
            texts.append(piece)
            if number % SLICE == 0:
                await turn.next()
    return _answer("".join(texts), status)


async def part(name: str, status: int = 200, **given: Any) -> Response:
    """A piece of a page out of a template of its own."""
    return _answer(environment().get_template(name).render({**_common(), **given}), status)


def _answer(text: str, status: int) -> Response:
    response = text_bytes(text.encode(), HTML)
    response.status_code = status
    return response


def _common() -> dict[str, Any]:
    """What every page knows: who is signed in, and what its forms have to bring back."""
    key = acting_key()
    return {
        "key": key,
        "may_act": key is not None and "manage" in RIGHTS[key.kind],
        "projects": g.get("projects", []),
        "csrf": g.get("csrf", ""),
        "now_ms": replica().clock.now_ms(),
        "here": request.path,
    }


def secured(response: Response) -> Response:
    """With what keeps a page to itself."""
    response.headers.update(
        {
            "Content-Security-Policy": POLICY,
            "X-Frame-Options": "DENY",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
    )
    response.headers.setdefault("Cache-Control", "no-store")
    return response
