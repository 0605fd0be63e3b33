"""Steps of a backfill as tasks: on which nodes of a cluster each may run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import ray

from api.cli.backfill_cluster import Tasks
from pipelines.backfill.manifest import begin
from pipelines.backfill.steps import carry_out, survey
from pipelines.sources.object_store import Folder
from tests.support import recorded
from tests.support.recorded import Kept

NODE = "0" * 56


class Calls:
    """Takes the place of Ray: tasks are done where they are made, and `made` has the step and the node of each; None
    stands for any."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[str, str | None]] = []
        self._strategy: Any = None
        fakes: dict[str, Callable[..., Any]] = {
            "get_runtime_context": lambda: self,
            "remote": lambda function: self._task(function),
            "put": lambda given: given,
            "get": lambda done: done,
            "wait": lambda running: (running[:1], running[1:]),
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(ray, name, fake)

    def get_node_id(self) -> str:
        return NODE

    def _task(self, function: Callable[..., Any]) -> Any:
        class Task:
            @staticmethod
            def options(*, scheduling_strategy: Any, **_: Any) -> Any:
                self._strategy = scheduling_strategy
                return Task

            @staticmethod
            def remote(work: partial[Any], item: Any) -> Any:
                is_bound = self._strategy != "SPREAD"
                assert not is_bound or not self._strategy.soft
                self.made.append((work.func.__name__, self._strategy.node_id if is_bound else None))
                return work(item)

        return Task


@pytest.mark.parametrize(("here", "replayed_on"), [(False, None), (True, NODE)])
def test_inputs_are_read_where_the_command_was_given(
    here: bool, replayed_on: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are files of that machine, wherever the history store is; what only needs the store goes anywhere, if the
    store can be reached from anywhere."""
    recorded.samples(2_000, 1).write_parquet(tmp_path / "s.parquet")
    plan = recorded.manifest([tmp_path / "s.parquet"], [recorded.router(0, 0)], [recorded.breaker(0, 0)])
    asked, _ = survey(plan.request, plan.norms())
    plan, place = msgspec.structs.replace(plan, request=asked), Folder(tmp_path / "history")
    begin(place, plan)
    calls = Calls(monkeypatch)
    carry_out(place, plan, Tasks(2, here=here), Kept())
    assert calls.made == [("stage", NODE), ("stage", NODE), ("replay", replayed_on)]
