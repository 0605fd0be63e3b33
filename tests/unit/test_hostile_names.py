"""The same hostile names through every medium that the service writes to: in none of them they are more than a name."""

from __future__ import annotations

import asyncio
import io
import json
import re
import sys
from collections.abc import Callable
from email import policy
from email.message import EmailMessage
from email.parser import BytesHeaderParser
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
import structlog
from rich.console import Console
from typer.testing import CliRunner

from api.cli.errors import one_line_errors
from api.cli.main import app
from api.cli.status_table import show
from api.stream.sse import encode_state
from breaker_actors.errors import Invalid
from breaker_actors.notify.channels import alertmanager, apprise, pagerduty, slack, webhook
from breaker_actors.notify.channels import email as mail
from breaker_actors.notify.model import Attempt, Message
from breaker_actors.persistence import make_store
from breaker_actors.settings import Settings
from breaker_actors.store.rows import Subject
from breaker_actors.telemetry import logs
from breaker_actors.telemetry.catalog import OTHER
from breaker_actors.telemetry.meters import Meters
from pipelines.backfill.validation import REJECTS
from pipelines.sources.atomic_files import csv_of
from tests.contract.outbox_world import OutboxWorld
from tests.contract.store_world import World as Stored
from tests.support.hostile import LINKS, NAMES, formulas, is_plain
from tests.support.receivers import MailReceiver
from tests.support.web_world import RULE, World
from tests.unit.api.app.conftest import defaults, populated, settings, world  # noqa: F401 - fixtures
from tests.unit.api.cli.test_admin import breakers, lines
from tests.unit.api.cli.test_cluster_commands import ACTOR, STATUS
from tests.unit.notify.attempts import ROUTING_KEY, send, sender, to
from tests.unit.notify.messages import NOW, TRIP, changed

ADDRESS = "ops@example.com"


def hostile(name: str) -> Message:
    """A trip in which all that a caller chooses is the name."""
    rule = TRIP.rule | {"metric": name}
    return changed(name=name, project_name=name, reason=name, rule=rule, trace_url=name, delivery_id=name)


# ------------------------------------------------------------------ what receivers get


async def test_mail() -> None:
    """On the wire: the headers of any other mail, a subject that is one harmless line, and the whole text."""
    async with MailReceiver() as server, sender(smtp_host="127.0.0.1", smtp_port=server.port, smtp_tls="none") as out:
        assert await send(out, to("email", to=ADDRESS)) == Attempt(result="sent", status=250)
        for name in NAMES:
            assert await send(out, to("email", to=ADDRESS), hostile(name)) == Attempt(result="sent", status=250), name
        usual, *sent = server.mails
        for name, got in zip(NAMES, sent, strict=True):
            head, _, body = got.raw.partition(b"\r\n\r\n")
            assert not set(b"\r\n") & set(head.replace(b"\r\n", b""))
            names = BytesHeaderParser(policy=policy.compat32).parsebytes(head).keys()
            assert sorted(names) == sorted(usual.message.keys()), name
            assert b"Closed" in body or b"closed" in body, "the text is there"
            assert got.to == [ADDRESS]
            assert got.message.defects == []
            subject = str(got.message["Subject"])
            assert "is open" in subject
            assert is_plain(subject, allowed="\u200b\ufeff"), subject
            html = got.message.get_body(("html",))
            assert html is not None
            assert set(re.findall(r"<(\w+)", html.get_content())) <= {
                "html",
                "body",
                "h3",
                "p",
                "table",
                "tr",
                "th",
                "td",
            }


@pytest.mark.parametrize("local", ["=?utf-8?q?=0d=0aBcc=3a_v?=", "a=?utf-8?q?=0a?=", "=?us-ascii?b?DQo=?="])
async def test_mail_to_an_address_with_an_encoded_word(local: str) -> None:
    async with MailReceiver() as server, sender(smtp_host="127.0.0.1", smtp_port=server.port, smtp_tls="none") as out:
        attempt = await send(out, to("email", to=[f"{local}@x.example"]))
        assert attempt == Attempt(result="refused", error="config.to item 1 is not an e-mail address")
        assert server.mails == []


def test_a_mail_whose_head_is_not_what_was_set_is_not_written() -> None:
    """Whatever `email` makes of a header, on older Pythons and on those that raise HeaderWriteError."""
    made = EmailMessage(policy.SMTP)
    made["To"] = ADDRESS
    made["Subject"] = NAMES[0]
    with pytest.raises(ValueError, match="head"):
        mail.to_bytes(made)


async def test_a_mail_that_cannot_be_written_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried again it would fail for an hour."""
    monkeypatch.setattr(mail, "for_header", lambda text, limit=0: text)
    async with MailReceiver() as server, sender(smtp_host="127.0.0.1", smtp_port=server.port, smtp_tls="none") as out:
        attempt = await send(out, to("email", to=ADDRESS), hostile(NAMES[0]))
        assert attempt == Attempt(result="refused", error="the mail can't be written")
        assert server.mails == []


@pytest.mark.parametrize("name", NAMES)
def test_slack(name: str) -> None:
    """Of the marks that Slack reads only ours are left."""
    shown = slack.render(hostile(name))
    for text in (shown["text"], *_blocks(shown["blocks"])):
        ours = re.sub(r"<!date\^\d+\^\{date_short_pretty\} \{time_secs\}\|[^|<>]*>", "", text)
        assert not set("<>") & set(ours), text
        assert is_plain(text, allowed="\n\u200b\ufeff"), text


@pytest.mark.parametrize("name", NAMES)
def test_pagerduty(name: str) -> None:
    event = pagerduty.render(hostile(name), {"routing_key": ROUTING_KEY})
    assert "links" not in event
    assert all(is_plain(text, allowed="\u200b\ufeff") for text in _texts(event))


@pytest.mark.parametrize("name", [*NAMES, *LINKS])
def test_alertmanager(name: str) -> None:
    """As names and values of labels, too: the names are such that an Alertmanager takes them."""
    subject = Subject(breaker=name, metric=name, kind=name, project=name, router=name, metadata={name: name, "x": name})
    told = msgspec.structs.replace(hostile(name), subject=subject)
    alert = alertmanager.render(told, {"url": "https://a.example/", "generator_url": "https://b.example"}, NOW, 60_000)
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", label) for label in alert["labels"])
    assert all(is_plain(text, allowed="\u200b\ufeff") for text in _texts(alert["labels"]))
    assert all(is_plain(text, allowed="\n\u200b\ufeff") for text in _texts(alert["annotations"]))
    assert "trace_url" not in alert["annotations"]


@pytest.mark.parametrize("name", [*NAMES, *LINKS])
def test_apprise(name: str) -> None:
    """Nobody is called; marks of the service are apprise's to escape."""
    told = apprise.render(hostile(name))
    for text in (told.title, told.body):
        assert is_plain(text, allowed="\n\u200b\ufeff"), text
        assert not re.search(r"[@<][^ \u200b]", text), text
    assert "Newest trace" not in told.body


@pytest.mark.parametrize("name", [*NAMES, *LINKS])
def test_webhook(name: str) -> None:
    """Names are data in JSON; what is a link there can be clicked, and headers hold nothing of them."""
    message = hostile(name)
    body = webhook.render(message)
    told = json.loads(body)
    assert (told["name"], told["rule"]["metric"]) == (name, name)
    assert told["trace_url"] is None
    sent = webhook.headers({"secret": "s"}, message, body, NOW)
    assert all(re.fullmatch(r"[A-Za-z0-9=._:-]+", value) for value in sent.values())


def _blocks(value: Any) -> list[str]:
    """The texts of Slack that have marks; the others, of type plain_text, are shown as they are."""
    if isinstance(value, dict) and value.get("type") == "mrkdwn":
        assert value["verbatim"] is True
        return [value["text"]]
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in inside for text in _blocks(item)]


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in inside for text in _texts(item)]


# ------------------------------------------------------------------ terminals


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A data directory in which everything has a hostile name, and a channel with a delivery for each."""
    folder = tmp_path_factory.mktemp("named")

    async def make() -> dict[str, Any]:
        store = make_store(Settings(data_dir=folder))
        await store.open()
        told = OutboxWorld(await Stored.make(store))
        await told.open()
        channel = await told.channel()
        project = await store.get_project(told.world.project_id)
        assert project is not None
        for name in NAMES:
            await store.create_org(name, 1)
            await store.create_key(project.org_id, "user", name, 1)
            await store.create_project(project.org_id, project.workspace_id, name, 1)
            row = await told.breaker(name)
            commit = told.commit(row.id, "open")
            events = tuple(msgspec.structs.replace(event, name=name) for event in commit.events)
            assert await told.world.write(msgspec.structs.replace(commit, events=events)) == ["ok"]
        await told.send_all(channel.id, "dead", status=404, error=NAMES[4])
        await store.close()
        return {
            "folder": folder,
            "org": project.org_id,
            "place": ["--project", project.id, "--channel", channel.id],
        }

    return asyncio.run(make())


@pytest.mark.parametrize(("command", "columns"), [("orgs", 2), ("keys", 6), ("projects", 3), ("deliveries", 10)])
def test_lists_on_a_terminal(named: dict[str, Any], command: str, columns: int) -> None:
    """One row each, whose cells are the names with what can't be seen made visible."""
    more = named["place"] + ["--limit", "200"] if command == "deliveries" else []
    more = ["--org", named["org"]] if command in ("keys", "projects") else more
    result = breakers(named["folder"], command, "list", *more)
    rows = lines(result)
    assert {len(row) for row in rows} == {columns}
    assert len(rows) - len(NAMES) in (0, 1, 2, 3)
    assert is_plain(result.stdout, allowed="\t\n")
    shown = {cell for row in rows for cell in row}
    assert {"[red]shop[/red] [link=https://evil.example]pay[/link] [/] [bold", ":bomb: :boom:"} <= shown
    assert "shop\\nforged-id\\tforged-workspace\\tforged-name" in shown
    assert "shop\\x1b[2J\\x1b[1;31mroot" in shown


@pytest.mark.parametrize("name", NAMES)
def test_errors_on_a_terminal(name: str, tmp_path: Path) -> None:
    import typer

    command = typer.Typer()

    @command.command()
    def fail() -> None:
        with one_line_errors():
            raise Invalid(f"there is no project {name}")

    for result in (CliRunner().invoke(command), breakers(tmp_path, "backfill", "none.csv", "--project", name)):
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1
        assert is_plain(result.stderr, allowed="\n")


def test_status_on_a_terminal() -> None:
    told = STATUS | {
        "nodes": [{"id": name, "address": name, "cpus": 1.0, "head": True} for name in NAMES],
        "actors": [ACTOR | {"name": name, "node_id": name, "state": "up"} for name in NAMES],
        "limits": [{"org_id": name, "project_id": None, "limit": name, "used": 1, "max": 1} for name in NAMES],
    }
    out = io.StringIO()
    show(told, Console(file=out, width=600))
    assert is_plain(out.getvalue(), allowed="\n")
    assert len(out.getvalue().splitlines()) == 3 * len(NAMES) + 3
    assert "[red]shop[/red] [link=https://evil.example]pay[/link] [/] [bold" in out.getvalue()
    assert ":bomb: :boom:" in out.getvalue()


# ------------------------------------------------------------------ backtest, backfill


@pytest.fixture(scope="module")
def tested(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path | str]:
    """What `breakers backtest` shows and writes of breakers with these names, over samples with such trace ids."""
    folder = tmp_path_factory.mktemp("tested")
    rules = [RULE | {"name": name, "threshold": 5, "window_ms": 1_000, "min_state_duration_ms": 0} for name in NAMES]
    (folder / "rules.json").write_text(json.dumps(rules))
    samples = pl.DataFrame({"ts_ms": range(0, 60_000, 1_000), "value": [1.0, 9.0] * 30})
    samples.with_columns(trace_id=pl.Series((list(NAMES) * 3)[:60])).write_parquet(folder / "s.parquet")
    (folder / "w.json").write_text("[[0, 60000]]")
    given = ["--rule", str(folder / "rules.json"), str(folder / "s.parquet"), "--windows", str(folder / "w.json")]
    given += ["--sweep", "threshold=3:5:1", "--out", str(folder / "out.csv"), "--report", str(folder / "r.html")]
    result = CliRunner().invoke(app, ["backtest", *given], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return {"shown": result.stdout, "csv": folder / "out.csv", "page": folder / "r.html"}


def test_backtest_on_a_terminal(tested: dict[str, Any]) -> None:
    assert is_plain(tested["shown"], allowed="\n")
    assert "[red]shop[/red] [link=https://evil.example]pay[/link] [/] [bold" in tested["shown"]
    assert ":bomb: :boom:" in tested["shown"]


def test_csv_of_a_backtest(tested: dict[str, Any]) -> None:
    """Text stays text in a spreadsheet; numbers are numbers, and what is read back is the name behind its mark."""
    content = tested["csv"].read_bytes().decode()
    assert formulas(content) == []
    frame = pl.read_csv(tested["csv"])
    assert frame.schema["ts_ms"] == pl.Int64
    assert frame.schema["value"] == pl.Float64
    assert set(frame["breaker"].unique()) >= {"'=cmd|'/C calc'!A1", "'@SUM(1+1)*cmd|'/C calc'!A1", ":bomb: :boom:"}


def test_csv_of_rejected_rows() -> None:
    """As they were, but for an apostrophe before what would be a formula; a number that is text is no formula."""
    rows = [(name, 1, name, name, name, name, "-5", "1", "-1e9", name, name, "3") for name in NAMES]
    frame = pl.DataFrame(rows, dict.fromkeys(REJECTS, pl.String) | {"row": pl.Int64}, orient="row", strict=False)
    content = csv_of(frame).decode()
    assert formulas(content) == []
    again = pl.read_csv(io.BytesIO(content.encode()), infer_schema=False)
    assert again["ts_ms"].unique().to_list() == ["-5"]
    for name, row in zip(NAMES, again["file"], strict=True):
        assert row.replace("'", "") == name.replace("'", "")


def test_the_page_of_a_backtest(tested: dict[str, Any]) -> None:
    """Names are in one script element of JSON, which they can't end; the page's script makes text of nodes of them."""
    page = tested["page"].read_text(encoding="utf-8")
    (content,) = re.findall(r'<script type="application/json" id="content">(.*?)</script>', page, re.DOTALL)
    assert page.count("<script") == 3
    assert "<" not in content
    assert not re.search("innerHTML|insertAdjacent|document.write", page)
    rules = json.loads(content)["rules"]
    assert rules
    assert all(is_plain(rule["name"], allowed="\u200b\ufeff") for rule in rules)


# ------------------------------------------------------------------ logs, metrics, streams, answers


@pytest.mark.parametrize("terminal", [True, False])
def test_logs(terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One line each; of a traceback, which has lines, none looks like a line of the log."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    before = structlog.get_config()
    try:
        logs.configure("api")
        for name in NAMES:
            structlog.get_logger().warning(f"odd {name}", name=name)
        written = capsys.readouterr().err
        assert is_plain(written, allowed="\n")
        assert len(written.splitlines()) == len(NAMES)
        structlog.get_logger().error("failed", traceback=f"Traceback:\n  {NAMES[3]}\n2026-01-01 error forged")
        first, *rest = capsys.readouterr().err.splitlines()
        assert bool(rest) is terminal, "JSON is one line"
        assert all(line.startswith("    ") for line in rest)
        assert is_plain(first)
    finally:
        structlog.configure(**before)


def test_labels_of_metrics() -> None:
    """Labels have declared values only; all else counts as one."""
    meters = Meters("api", "api")
    for name in NAMES:
        meters.count("breakers_samples_rejected_total", reason=name)
    assert {key for key, n in meters.counters.items() if n} == {("breakers_samples_rejected_total", OTHER)}


@pytest.mark.parametrize("name", NAMES)
def test_messages_of_a_stream(name: str) -> None:
    """Two lines and an empty one, also for readers that take every line end of Unicode for one."""
    message = encode_state(name, "open", 0.0).decode()
    assert message.splitlines() == message.split("\n")[:-1]
    event, data, end = message.splitlines()
    assert (event, end) == ("event: state", "")
    assert json.loads(data.removeprefix("data: "))["breaker"] == name


async def test_answers(world: World) -> None:  # noqa: F811
    """JSON under its own type, the audit log's too; no header holds a name."""
    made: list[Callable[..., Any]] = []
    for name in NAMES:
        response = await world.call("POST", "breakers", json=RULE | {"name": name, "metadata": {"k": name}})
        assert response.status_code == 201
        assert (await response.get_json())["name"] == name
        made.append(response)
    audit = await world.call("GET", "audit?limit=200")
    seen = {
        entry["after"]["name"] for entry in (await audit.get_json())["entries"] if entry["action"] == "breaker.create"
    }
    assert seen == set(NAMES)
    for response in (*made, audit, await world.call("GET", "breakers"), await world.call("GET", "routers")):
        assert response.content_type == "application/json"
        assert {"Content-Disposition", "Link", "Location", "Refresh"}.isdisjoint(response.headers.keys())
        assert all(value.isascii() and value.isprintable() for _, value in response.headers.items())


def test_nothing_else_escapes() -> None:
    """One place: the libraries that escape are used there and nowhere else, and commands print through one module."""
    root = Path(__file__).parents[2]
    marks = re.compile(r"html\.escape|from html import|rich\.markup|unicodedata|markupsafe|unicode_escape")
    for package in ("breaker_actors", "api", "pipelines"):
        for path in (root / package).rglob("*.py"):
            text = path.read_text()
            # The console's templates escape by themselves; what it puts together is put together by the same library.
            escapes = path.name == "escaping.py" or (path.parent.name, path.name) == ("console", "looks.py")
            assert escapes or not marks.search(text), path
            assert path.relative_to(root) == Path("api/cli/output.py") or "typer.echo(" not in text, path
            assert path.name == "atomic_files.py" or ".write_csv(" not in text, path
