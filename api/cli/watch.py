"""`breakers watch`: states as they change, from the state stream: a live table, lines, or JSON lines."""

from __future__ import annotations

import json as json_text
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from api.cli.breaker_client import BreakerClient, DataDir, Insecure, Project, Url, open_client
from api.cli.errors import one_line_errors
from api.cli.output import note, put_json, put_rows
from breaker_actors.clock import Clock, SystemClock, rfc3339
from breaker_actors.errors import Unavailable

PAUSE_S, PAUSE_MAX_S = 0.5, 10.0
ASKED_S = 1.0
ATTEMPTS_MAX = 30
"""Attempts in a row without a message; about five minutes. Then the command fails."""
DELETED = "deleted"
HEARTBEAT = ": heartbeat"
COLOURS = {"closed": "green", "half_open": "yellow", "open": "red"}

Message = dict[str, Any]


def watch(
    name: Annotated[str | None, typer.Argument(help="Name or id of the breaker; default: all.", metavar="NAME")] = None,
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each change.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Show states as they are and as they change, until Ctrl-C. Connects again when the service goes away for a while.

    A live table on a terminal, elsewhere one line for each change: time, breaker, state, allow rate. Of a breaker that
    is deleted the last state is `deleted`; the table leaves it out."""
    with one_line_errors(), open_client(url, project, data_dir, insecure_http) as client:
        wanted = None if name is None else client.find(name)["id"]
        try:
            with _screen(json) as show:
                told = Told(Names(client), show, wanted, json)
                for message in changes(client, on_heartbeat=told.look_again):
                    told.take(message)
        except KeyboardInterrupt:
            return


class Names:
    """Names of the breakers that there are, as the stream tells them: that of the first one of a name, the ids of
    others. It tells of deleted ones, too, as closed, for gates that still ask for them."""

    def __init__(self, client: BreakerClient, clock: Clock | None = None) -> None:
        self._client = client
        self._monotonic = (clock or SystemClock()).monotonic
        self._known: dict[str, dict[str, Any]] = {}
        self._asked_s = -ASKED_S
        self.is_sure = True
        """Whether what `has` said last is from a list that was asked for since the message came."""

    def has(self, message: Message) -> bool:
        """Asks for a name that is not known, and for one that is closed, as it may have been deleted; not more than
        once in ASKED_S."""
        doubtful = message["state"] == "closed" or message["breaker"] not in self._known
        self.is_sure = not doubtful or self._monotonic() - self._asked_s >= ASKED_S
        if doubtful and self.is_sure:
            self.ask()
        return message["breaker"] in self._known

    def ask(self) -> None:
        rows = self._client.breakers()
        self._known = {row["id"]: row for row in rows} | {row["name"]: row for row in reversed(rows)}
        self._asked_s = self._monotonic()

    def still_has(self, name: str) -> bool:
        """What the last list said."""
        return name in self._known

    def id_of(self, message: Message) -> str:
        """The breaker of a message that `has` passed."""
        return str(self._known[message["breaker"]]["id"])

    def shown(self, message: Message) -> str:
        """Its name, with the id where the name is an older breaker's."""
        row = self._known[message["breaker"]]
        return row["name"] if message["breaker"] == row["name"] else f"{row['name']} ({row['id']})"


class Told:
    """What was shown of each breaker by its name in the stream, so that a change is shown once, and that it went. The
    stream says `closed` of one that went, again where it was closed before; a list of the breakers tells."""

    def __init__(self, there: Names, show: Callable[[Message], None], wanted: str | None, as_json: bool) -> None:
        """`wanted`: the id of the only breaker that is shown."""
        self._there, self._show, self._wanted, self._as_json = there, show, wanted, as_json
        self._last: dict[str, Message] = {}
        self._labels: dict[str, str] = {}
        self._doubted: dict[str, Message] = {}

    def take(self, message: Message) -> None:
        there = self._there.has(message)
        self._doubted.pop(message["breaker"], None)
        if not self._there.is_sure:
            self._doubted[message["breaker"]] = message
        self._judge(message, there)

    def look_again(self) -> None:
        """Asks once for all that came too soon after another list; nothing where there is none."""
        if self._doubted:
            self._there.ask()
        for name, message in self._doubted.items():
            self._judge(message, self._there.still_has(name))
        self._doubted.clear()

    def _judge(self, message: Message, there: bool) -> None:
        name = message["breaker"]
        if not there:
            self._went(name)
            return
        is_wanted = self._wanted is None or self._there.id_of(message) == self._wanted
        if not is_wanted or self._last.get(name) == message:
            return
        self._last[name], self._labels[name] = message, name if self._as_json else self._there.shown(message)
        self._show(message | {"breaker": self._labels[name]})

    def _went(self, name: str) -> None:
        if self._last.pop(name, None) is not None:
            self._show({"breaker": self._labels.pop(name), "state": DELETED, "allow_rate": None})


def changes(
    client: BreakerClient, sleep: Callable[[float], None] = time.sleep, on_heartbeat: Callable[[], None] = lambda: None
) -> Iterator[Message]:
    """The states there are, then each change; all states again after an interruption. `on_heartbeat` is called every
    few seconds in which the stream is there. Raises Unavailable when the service can't be reached at first, or for
    ATTEMPTS_MAX attempts in a row later."""
    known = False
    failed, pause_s = 0, PAUSE_S
    while True:
        try:
            with client.stream() as lines:
                for message in messages(lines, on_heartbeat):
                    failed, pause_s, known = 0, PAUSE_S, True
                    yield message
            reason = "the stream ended"
        except Unavailable as error:
            if not known and not failed:
                raise
            reason = str(error)
        failed += 1
        if failed > ATTEMPTS_MAX:
            raise Unavailable(reason)
        note(f"breakers: {reason}; again in {pause_s:g} s")
        sleep(pause_s)
        pause_s = min(PAUSE_MAX_S, 2 * pause_s)


def messages(lines: Iterable[str], on_heartbeat: Callable[[], None] = lambda: None) -> Iterator[Message]:
    """The state messages of a stream; what is unknown is passed over."""
    for line in lines:
        if line.startswith(HEARTBEAT):
            on_heartbeat()
        if not line.startswith("data:"):
            continue
        try:
            found = json_text.loads(line.removeprefix("data:"))
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and isinstance(found.get("breaker"), str) and isinstance(found.get("state"), str):
            yield found


@contextmanager
def _screen(json: bool) -> Iterator[Callable[[Message], None]]:
    """What shows a message."""
    clock = SystemClock()

    def say(message: Message) -> None:
        at = rfc3339(clock.now_ms())
        if json:
            put_json({"seen_at": at, **message})
        else:
            put_rows([(at, message["breaker"], message["state"], message.get("allow_rate"))])
        sys.stdout.flush()

    if json or not sys.stdout.isatty():
        yield say
        return
    from rich.live import Live

    rows: dict[str, tuple[str, Message]] = {}
    with Live(auto_refresh=False, transient=False) as live:

        def draw(message: Message) -> None:
            rows[message["breaker"]] = rfc3339(clock.now_ms()), message
            if message["state"] == DELETED:
                del rows[message["breaker"]]
            live.update(_table(rows), refresh=True)

        yield draw


def _table(rows: dict[str, tuple[str, Message]]) -> Any:
    """The table of what is known, those that are not closed first."""
    from rich.table import Table
    from rich.text import Text

    from breaker_actors.text.escaping import for_rich, for_terminal

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("breaker", "state", "allow rate", "seen"):
        table.add_column(title, overflow="fold")
    for name, (at, message) in sorted(rows.items(), key=lambda row: (row[1][1]["state"] == "closed", row[0])):
        state, rate = message["state"], message.get("allow_rate")
        colour = COLOURS.get(state, "")
        table.add_row(for_rich(name), Text(for_terminal(state), colour), for_rich(str(rate or "-")), for_rich(at))
    return table
