"""`breakers plan` and `apply` from Python, as frames.

from api.cli.planning import plan

found = plan("rules", backtest="7d")
found.changes     # a polars frame: one row per thing that would change
found.fields      # one row per field of them, before and after
found.backtest    # one row per changed rule: what it would have done; None unless asked for
found.apply()     # does what this very plan says, or nothing
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from api.cli.breaker_client import open_client
from api.cli.spans import span_ms
from api.cli.store_access import settings_of
from breaker_actors.errors import Invalid
from breaker_actors.persistence import check_in_use
from breaker_actors.settings import Settings
from pipelines.backtest import BacktestWarning
from pipelines.frames import to_pandas
from pipelines.planned import Changed, consequences, without_page
from pipelines.rules.files import read
from pipelines.rules.model import RuleSet
from pipelines.rules.secrets import resolved, resolved_as_far

__all__ = ["Plan", "plan"]

Schema = dict[str, pl.DataType | type[pl.DataType]]
CHANGES: Schema = {
    "act": pl.String, "kind": pl.String, "name": pl.String, "id": pl.String, "fields": pl.List(pl.String),
    "by_hand": pl.List(pl.String), "who": pl.String, "at_ms": pl.Int64, "owner": pl.String, "message": pl.String,
}  # fmt: skip
FIELDS: Schema = {
    "kind": pl.String, "name": pl.String, "field": pl.String, "before": pl.String, "after": pl.String,
    "secret": pl.Boolean,
}  # fmt: skip
BACKTEST: Schema = {
    "breaker": pl.String, "trips_before": pl.Int64, "trips_after": pl.Int64, "first_ms": pl.Int64,
    "open_before_ms": pl.Int64, "open_after_ms": pl.Int64, "samples": pl.Int64, "told": pl.String,
}  # fmt: skip


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """What files would change, as polars frames; nothing is changed yet.

    - `changes`: act, kind, name, id, fields (names), by_hand (those changed since they
      were applied; null for none), who and at_ms of that, owner, message.
    - `fields`: kind, name, field, before, after (as JSON; null where there is none, or it is a secret), secret.
    - `backtest`: breaker, trips_before, trips_after, first_ms, open_before_ms, open_after_ms, samples, told.
    - `missing`: secrets that the files refer to and that are not here: an apply needs them.
    """

    answer: dict[str, Any]
    missing: tuple[str, ...]
    tried: list[dict[str, Any]] | None
    _apply: Callable[[bool], dict[str, Any]] = field(repr=False)

    @property
    def version(self) -> str:
        """Of what would be done, as `breakers apply --if-plan` takes it."""
        return str(self.answer["version"])

    @property
    def changes(self) -> pl.DataFrame:
        rows = []
        for one in self.answer["changes"]:
            hand, names = one["by_hand"] or {}, [each["field"] for each in one["fields"]]
            who = hand.get("name") or hand.get("who")
            told = hand.get("fields"), who, hand.get("at_ms"), one["owner"], one["message"]
            rows.append((one["act"], one["kind"], one["name"], one["id"], names, *told))
        return pl.DataFrame(rows, CHANGES, orient="row")

    @property
    def fields(self) -> pl.DataFrame:
        rows = [
            (one["kind"], one["name"], each["field"], _text(each["before"]), _text(each["after"]), each["secret"])
            for one in self.answer["changes"]
            for each in one["fields"]
        ]
        return pl.DataFrame(rows, FIELDS, orient="row")

    @property
    def backtest(self) -> pl.DataFrame | None:
        if self.tried is None:
            return None
        return pl.DataFrame([{name: row.get(name) for name in BACKTEST} for row in self.tried], BACKTEST, orient="row")

    def apply(self, *, allow_destructive: bool = False) -> dict[str, Any]:
        """Carries it out, whole or not at all; what was done. Raises an error, and changes nothing, where it would be
        another plan by now, or a secret is missing."""
        return self._apply(allow_destructive)

    def to_pandas(self) -> dict[str, Any]:
        """The frames by name, for pandas."""
        frames = {"changes": self.changes, "fields": self.fields, "backtest": self.backtest}
        return {name: to_pandas(frame) for name, frame in frames.items() if frame is not None}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, as `breakers plan --json` prints them."""
        return self.answer | ({} if self.tried is None else {"backtest": self.tried})

    def __repr__(self) -> str:
        return f"Plan({len(self.answer['changes'])} changes)\n{self.changes}"


def _text(value: Any) -> str | None:
    return None if value is None else json.dumps(value)


def plan(
    paths: str | Path | Sequence[str | Path] = "rules",
    *,
    backtest: str | None = None,
    report: str | Path | None = None,
    url: str | None = None,
    project: str | None = None,
    data_dir: str | Path | None = None,
    insecure_http: bool = False,
) -> Plan:
    """What files of rules would change. Raises Invalid, and what the service answers.

    - paths: files and folders, one set.
    - backtest: try each changed rule on the samples of the service on this machine, so far back: "7d". `report`: write
      a page that shows it there.
    - url, project, data_dir, insecure_http: as the options of `breakers plan`; BREAKERS_URL, BREAKERS_KEY and
      BREAKERS_PROJECT count, and then credentials.json of the data directory.
    """
    if report is not None and backtest is None:
        raise Invalid("report= shows what backtest= finds: give both")
    folder = None if data_dir is None else Path(data_dir).expanduser()
    settings = None if backtest is None else settings_of_samples(folder)
    files = read([Path(paths)] if isinstance(paths, str | Path) else [Path(one) for one in paths])
    document, missing = resolved_as_far(files, os.environ)
    where = url or os.environ.get("BREAKERS_URL"), project or os.environ.get("BREAKERS_PROJECT"), folder, insecure_http
    with open_client(*where) as client:
        answer, project_id = client.plan_rules(document), client.project_id()
    tried = None
    if backtest is not None and settings is not None:
        page = None if report is None else Path(report)
        tried = consequences(changed_rules(answer, files), project_id, settings, span_ms(backtest), page)
        if words := without_page(page, tried):
            warnings.warn(words, BacktestWarning, stacklevel=2)

    def apply(allow_destructive: bool) -> dict[str, Any]:
        with open_client(*where) as client:
            return client.apply_rules(resolved(files, os.environ), answer["version"], allow_destructive)

    return Plan(answer, tuple(map(str, missing)), tried, apply)


def changed_rules(planned: Mapping[str, Any], files: RuleSet) -> list[Changed]:
    """The breakers that a plan would make or change, of which there may be samples: their own, or those of a router
    that is there."""
    changes = [change for change in planned["changes"] if change["act"] in ("create", "update", "adopt")]
    there = {(change["kind"], change["name"]): change["id"] for change in changes if change["act"] != "create"}
    of_router = {
        name: there["routers", one.name]
        for one in files.routers.values()
        if there.get(("routers", one.name)) is not None
        for name in one.fields.get("breakers", ())
    }
    return [
        Changed(name, there.get(("breakers", name)), rule, of_router.get(name, ""))
        for change in changes
        if change["kind"] == "breakers"
        if (rule := files.breakers[name := change["name"]].rule) is not None
        if there.get(("breakers", name)) is not None or name in of_router
    ]


def settings_of_samples(data_dir: Path | None) -> Settings:
    """The settings of a service's data. Raises Invalid where there is none: nothing is made there."""
    settings = settings_of(data_dir, whole=True)
    try:
        check_in_use(settings)
    except Invalid as error:
        words = f"a backtest reads what the service keeps; {error}: give its data directory, or run it there"
        raise Invalid(words) from None
    return settings
