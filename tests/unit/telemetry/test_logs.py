"""Log lines: their form, and that no secret gets into one, wherever it stands."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from breaker_actors.telemetry import logs
from breaker_actors.telemetry.guard import run_supervised
from breaker_actors.telemetry.meters import Meters
from tests.support.fake_gateway import FakeClock

HEX = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
SECRETS = [
    "eb_user_kJ2h-5fQ_xyz0123456789abcdefghij",
    "eb_admin_kJ2h5fQxyz0123456789abcdefghij",
    "eb_pk_kJ2h5fQxyz0123456789abcdefghij",
    HEX,
    "hunter2-of-the-database",
    "T0123/B0456/slackhookpath",
    "tok-in-a-query",
    "some-other-bearer-token",
    "eb_ingest_0123456789abcdef0123456789abcdef",
    "YW55OmViX2luZ2VzdF8wMTIzNDU2Nzg5YWJjZGVm",
]
TEXTS = [
    f"key {SECRETS[0]} is not known",
    f'{{"admin_key": "{SECRETS[1]}"}}',
    f"Authorization: Bearer {SECRETS[2]}",
    f"v1={HEX}",
    f"secret {HEX}, again",
    f"can't connect to postgresql://service:{SECRETS[4]}@db.example:5432/breakers?x=1",
    f"can't connect to postgresql://{SECRETS[4]}@db.example",
    f"POST https://hooks.slack.example/services/{SECRETS[5]} answered 500",
    f"<https://example.org?token={SECRETS[6]}> timed out",
    f"header 'authorization: bearer {SECRETS[7]}'",
    f"http://any:{SECRETS[8]}@127.0.0.1:7117/v1/projects refused {SECRETS[8]}",
    f'{{"Authorization": "Basic {SECRETS[9]}=="}}',
    f"authorization=basic%20{SECRETS[9]}",
]


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before, handlers = structlog.get_config(), list(logging.getLogger().handlers)
    yield
    structlog.configure(**before)
    logging.getLogger().handlers[:] = handlers


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_line_is_one_json_object_with_the_same_fields_first(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("router-0", clock=FakeClock(1_795_242_600_123))
    structlog.get_logger().info("log_trimmed", records=3, text="two\nlines")
    (line,) = lines(capsys)
    assert list(line.items()) == [
        ("ts", "2026-11-21T06:30:00.123Z"),
        ("level", "info"),
        ("event", "log_trimmed"),
        ("process", "router-0"),
        ("records", 3),
        ("text", "two\nlines"),
    ]


def test_a_line_carries_the_id_of_the_request_it_was_logged_in(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("api")
    mark = logs.request_id.set("abc")
    structlog.get_logger().info("inside")
    logs.request_id.reset(mark)
    structlog.get_logger().info("outside")
    inside, outside = lines(capsys)
    assert inside["request_id"] == "abc"
    assert "request_id" not in outside


def test_what_is_below_the_level_is_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("serve", level=logging.WARNING)
    structlog.get_logger().info("quiet")
    structlog.get_logger().warning("heard")
    assert [line["event"] for line in lines(capsys)] == ["heard"]


def test_warnings_and_errors_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    meters = Meters("api", "api")
    logs.configure("api", meters=meters)
    log = structlog.get_logger()
    for say in (log.info, log.warning, log.error, log.error, log.critical):
        say("something")
    logging.getLogger("some.library").warning("of a library")
    assert meters.value("breakers_log_lines_total", level="warning") == 2
    assert meters.value("breakers_log_lines_total", level="error") == 3
    assert len(lines(capsys)) == 6


@pytest.mark.parametrize("text", TEXTS)
def test_no_secret_stays_in_a_text(text: str) -> None:
    cleaned = logs.clean(text)
    assert "****" in cleaned
    assert not [secret for secret in SECRETS if secret in cleaned], cleaned


def test_what_is_no_secret_stays_as_it_is() -> None:
    for text in (
        "breaker 0b9e6a1e-6f0c-4c11-8f6e-7d1f2a3b4c5d moved to open",
        "File \"breaker_actors/breaker/host.py\", line 12, in deliver\n    raise Unavailable('no answer')",
        "serving on http://127.0.0.1:7117",
        "round 3/4 took 0.5 s; see eb_ and 2026-11-21T06:30:00Z",
    ):
        assert logs.clean(text) == text


@pytest.mark.parametrize("text", TEXTS)
def test_no_secret_gets_into_a_line_wherever_it_stands(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("api")
    log = structlog.get_logger()
    log.warning(text)
    log.warning("a_field", error=text, nested={"deep": [text, {text: text}]}, bound=(text,))
    log.warning("an_object", error=ValueError(text))
    try:
        raise OSError(text)
    except OSError:
        log.exception("with_trace")
        logging.getLogger("a.library").exception("failed at %s", text)
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 5
    assert not [secret for secret in SECRETS if secret in said], said


def test_fields_named_like_secrets_are_masked_whatever_they_look_like(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("api")
    structlog.get_logger().warning("odd", password="abc", routing_key="R0123456789", config={"token": "xyz"})
    (line,) = lines(capsys)
    assert (line["password"], line["routing_key"], line["config"]) == ("****", "****", {"token": "****"})


async def test_a_failed_round_tells_its_trace_without_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("router-0")

    async def fail() -> None:
        raise OSError(TEXTS[5])

    await run_supervised("upkeep", fail())
    (line,) = lines(capsys)
    assert (line["event"], line["loop"], line["level"]) == ("round_failed", "upkeep", "error")
    assert "in fail" in str(line["trace"])
    assert SECRETS[4] not in json.dumps(line)


def test_a_terminal_gets_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    logs.configure("serve", clock=FakeClock(1_795_242_600_123))
    structlog.get_logger().error("odd", key=TEXTS[0], n=1, name="a\nb", traceback="line 1\nline 2")
    said = capsys.readouterr().err
    assert said.startswith("2026-11-21T06:30:00.123Z error   odd process=serve key=****")
    assert said.endswith(" n=1 name=a\\nb\n    line 1\n    line 2\n")


def test_configuring_again_replaces(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("first")
    logs.configure("second")
    logging.getLogger("a.library").error("once")
    assert [line["process"] for line in lines(capsys)] == ["second"]
