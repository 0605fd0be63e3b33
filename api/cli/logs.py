"""`breakers logs`: what the processes of a service say, all in one; and the lines that `serve` prints on stdout."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.errors import one_line_errors
from api.cli.output import put, put_json
from api.cli.store_access import DataDir, settings_of
from breaker_actors.clock import SystemClock
from breaker_actors.errors import Invalid, NotFound

if TYPE_CHECKING:
    from api.launch.log_lines import Line, LogLines

EVERY_S = 0.25
"""How often files are looked at for more."""
UNTOLD = ("channel_silent", "channel_answers", "notification_dead", "notifications_unsent")
"""Events of alerts that reach nobody."""
UNSTORED = ("log_unwritable", "log_writable")
"""Events of a log of samples that takes no writes, as of a full disk, and of one that does again."""
TOLD = ("transition", "transitions_unlogged", "change", "changes_unlogged", *UNTOLD, *UNSTORED)
"""Events that people run such a service for; each process has more of its own."""
WHY_MAX = 300
QUIET_S, CHANNELS_KNOWN = 60.0, 1_000
"""Of alerts of one channel that are not sent `serve` says so once in this time; so many channels are kept apart."""


class Level(StrEnum):
    """How loud a line is, the quietest first."""

    info = "info"
    warning = "warning"
    error = "error"


class Role(StrEnum):
    """Who speaks."""

    api = "api"
    breaker = "breaker"
    directory = "directory"
    journal = "journal"
    notifier = "notifier"
    router = "router"
    serve = "serve"


_LEVELS = [level.value for level in Level]


def logs(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is written, until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Begin with so many of the last lines.")] = 50,
    role: Annotated[list[Role] | None, typer.Option(help="Only processes of this role; may be repeated.")] = None,
    level: Annotated[Level, typer.Option(help="Only this level and above.")] = Level.info,
    told: Annotated[
        bool,
        typer.Option("--told", help="Only transitions, changes, alerts that are not sent, and samples not stored."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print each line as JSON.")] = False,
    folder: Annotated[
        Path | None, typer.Option(help="Where Ray keeps the files, on a node of a cluster: SESSION/logs.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Show the log lines of all processes of a service on this machine, by time: of one that runs, or of the last run.

    Of each process the last 256 KiB are looked at.
    """
    with one_line_errors():
        from api.launch.log_lines import LogLines

        found = LogLines(folder or _folder(settings_of(data_dir).data_dir))
    wanted = _filter(frozenset(role or Role), level, told)
    show = put_json if json else _put_text
    for line in [line for line in found.last() if wanted(line)][-lines:] if lines else ():
        show(line)
    with contextlib.suppress(KeyboardInterrupt):
        if follow:
            _follow(found, wanted, show, threading.Event())


def _filter(roles: frozenset[Role], level: Level, told: bool) -> Callable[[Line], bool]:
    loud = {*_LEVELS[_LEVELS.index(level) :], "critical"}

    def wanted(line: Line) -> bool:
        by = str(line.get("process", "")).partition("-")[0]
        return line["level"] in loud and by in roles and (not told or line["event"] in TOLD)

    return wanted


def _follow(
    found: LogLines, wanted: Callable[[Line], bool], show: Callable[[Line], None], stop: threading.Event
) -> None:
    while True:
        for line in found.new():
            if wanted(line):
                show(line)
        sys.stdout.flush()
        if stop.wait(EVERY_S):
            return


def tell_on_stdout(folder: Path, stop: threading.Event) -> None:
    """Prints what is TOLD as it is written, until `stop`: as text on a terminal, else as JSON."""
    from api.launch.log_lines import LogLines

    show = _put_text if sys.stdout.isatty() else put_json
    sparing, clock = Sparing(), SystemClock()
    _follow(LogLines(folder), lambda line: line["event"] in TOLD and sparing.lets(line, clock.monotonic()), show, stop)


class Sparing:
    """Lets one line about dead alerts of each channel through in QUIET_S: an outage has many, and `deliveries list` has
    them all. Of a log that takes no writes, which each of its processes says again and again, it lets the first line
    through, and the first one that it does."""

    def __init__(self) -> None:
        self._said: dict[str, float] = {}
        self._unstored = False
        self._unstored_s = -QUIET_S

    def lets(self, line: Line, now_s: float) -> bool:
        """Whether the line is to be shown at this time."""
        if line["event"] in UNSTORED:
            return self._lets_unstored(line["event"] == "log_unwritable", now_s)
        if line["event"] not in ("notification_dead", "notifications_unsent"):
            return True
        channel_id = str(line.get("channel_id"))
        if now_s - self._said.get(channel_id, -QUIET_S) < QUIET_S:
            return False
        if len(self._said) >= CHANNELS_KNOWN:
            self._said.clear()
        self._said[channel_id] = now_s
        return True

    def _lets_unstored(self, fails: bool, now_s: float) -> bool:
        if fails == self._unstored or (fails and now_s - self._unstored_s < QUIET_S):
            return False
        self._unstored = fails
        if fails:
            self._unstored_s = now_s
        return True


def text_of(line: Line) -> str:
    """A line for eyes: what is TOLD as sentences, others as `time level event name=value ...`."""
    sentences = {"transition": _transition, "change": _change}
    sentences |= dict.fromkeys(UNTOLD, _untold) | dict.fromkeys(UNSTORED, _unstored)
    told = sentences.get(line["event"])
    if told is not None:
        return f"{line['ts']} {told(line)}"
    rest = {name: value for name, value in line.items() if name not in ("ts", "level", "event")}
    fields = " ".join(f"{name}={value}" for name, value in rest.items())
    return f"{line['ts']} {line['level']:7} {line['event']} {fields}"


def _transition(line: Line) -> str:
    from breaker_actors.notify.channels.wording import figure

    found = line.get("value")
    value = f" at {figure(found)}" if isinstance(found, int | float) else ""
    by = ": ".join(str(line[word]) for word in ("by", "comment") if line.get(word))
    hand = f" by {by}" if by else ""
    return f"{line.get('name')}: {line.get('prev')} -> {line.get('curr')}{value} ({line.get('reason')}){hand}"


def _change(line: Line) -> str:
    name = f" {line['name']}" if line.get("name") else ""
    return f"{line.get('action')}{name} ({line.get('target_id')}) by {line.get('who_name') or line.get('who')}"


def _untold(line: Line) -> str:
    id_ = line.get("channel_id")
    look = f"breakers deliveries list --channel {id_}"
    match line["event"]:
        case "channel_answers":
            return f"channel {id_} answers again"
        case "channel_silent":
            return f"channel {id_} can't be told, its alerts wait: {_why(line)} (`{look}`)"
        case "notifications_unsent":
            count = line.get("count")
            alerts = f"{count} alert{'' if count == 1 else 's'}"
            return f"channel {id_}: {alerts} ended unsent, {line.get('state')} (`{look}`)"
    what = f"the {line.get('kind')} of {line.get('name')}"
    return f"channel {id_}: {what} was not sent: {_why(line)} (`{look} --state dead`)"


def _unstored(line: Line) -> str:
    if line["event"] == "log_writable":
        return "samples are stored again"
    return f"samples can't be stored: {_why(line)} (`breakers doctor`)"


def _why(line: Line) -> str:
    return str(line.get("error") or "no reason was given")[:WHY_MAX]


def _put_text(line: Line) -> None:
    put(text_of(line))


def _folder(data_dir: Path) -> Path:
    """Of the service that runs, else of the last run. Raises Invalid where there is but a folder that others may write:
    after a power loss the link leads to where another user may have made one since."""
    from api.launch.ray_environment import LOGS_KEPT, LOGS_LINK, check_logs

    foreign: Invalid | None = None
    for folder in (data_dir / LOGS_LINK, data_dir / LOGS_KEPT):
        try:
            check_logs(folder)
            if folder.is_dir():
                return folder
        except OSError:
            continue
        except Invalid as error:
            foreign = foreign or error
    if foreign is not None:
        raise foreign
    raise NotFound(
        f"no service has run in {data_dir}; for a cluster name the folder of Ray's logs on this node by --folder"
    )
