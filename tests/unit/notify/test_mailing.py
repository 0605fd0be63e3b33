"""Mails to a real SMTP server on loopback: TLS, login, refusals, timeouts."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest
import trustme

from breaker_actors.notify.egress.http import trusted
from breaker_actors.notify.model import Attempt
from tests.support.receivers import MailReceiver
from tests.unit.notify.attempts import GROWING_MS, send, sender, serving, to, trusting
from tests.unit.notify.messages import ALL, HOSTILE, RECOVER, TRIP

OPS = to("email", to="ops@example.com")
ALL_REFUSED = "mail server refused 3 of 3 recipients:"
PASSWORD = "h4rd-T0-Gue55-pass"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def at(server: MailReceiver, **more: Any) -> dict[str, Any]:
    return {"smtp_host": "127.0.0.1", "smtp_port": server.port, "smtp_tls": server.mode} | more


async def test_a_mail_arrives_at_all_its_recipients() -> None:
    async with MailReceiver() as server, sender(**at(server, smtp_from="Breakers <alerts@breakers.example>")) as out:
        channel = to("email", to=["ops@example.com", "info@bücher.example", "ops@example.com"])
        assert await send(out, channel) == Attempt(result="sent", status=250)
        (mail,) = server.mails
        assert mail.sender == "alerts@breakers.example"
        assert mail.to == ["ops@example.com", "info@xn--bcher-kva.example"]
        got = mail.message
        assert got["From"] == "Breakers <alerts@breakers.example>"
        assert got["Message-ID"] == "<d-0001@breakers.example>"
        text, html = got.get_body(("plain",)), got.get_body(("html",))
        assert text is not None
        assert html is not None
        assert "error rate of latency above 50 %" in text.get_content()
        assert "closed → open" in html.get_content()


@pytest.mark.parametrize("case", ALL)
async def test_every_message_is_a_mail_that_servers_take(case: str) -> None:
    async with MailReceiver() as server, sender(**at(server)) as out:
        assert await send(out, OPS, ALL[case]) == Attempt(result="sent", status=250)
        assert server.mails[0].to == ["ops@example.com"]
        assert server.mails[0].message.defects == []


async def test_trip_and_recovery_thread() -> None:
    async with MailReceiver() as server, sender(**at(server)) as out:
        await send(out, OPS, TRIP)
        await send(out, OPS, RECOVER)
        trip, recover = (mail.message for mail in server.mails)
        assert trip["References"] == recover["References"]
        assert str(recover["Subject"]) == "[Shop] checkout has recovered after 4 minutes 12 seconds"


# TLS


@pytest.mark.parametrize("mode", ["starttls", "tls"])
async def test_tls_is_used_and_verified(mode: Any, authority: trustme.CA) -> None:
    server_side = serving(authority, "127.0.0.1")
    async with MailReceiver(mode, server_side) as server:
        async with sender(trusting(authority), **at(server)) as out:
            assert await send(out, OPS) == Attempt(result="sent", status=250)
        async with sender(**at(server)) as out:
            attempt = await send(out, OPS)
            assert attempt == Attempt(result="retry", error="mail server: its certificate could not be verified")
        assert len(server.mails) == 1


@pytest.mark.parametrize("mode", ["starttls", "tls"])
async def test_a_certificate_for_another_name_is_not_taken(mode: Any, authority: trustme.CA) -> None:
    async with MailReceiver(mode, serving(authority, "mail.example")) as server:
        async with sender(trusting(authority), **at(server)) as out:
            attempt = await send(out, OPS)
            assert attempt == Attempt(result="retry", error="mail server: its certificate could not be verified")
        assert server.mails == []


async def test_starttls_is_not_given_up_for_a_server_without_it() -> None:
    """Nothing is sent in the clear because somebody on the way has taken the offer out."""
    async with MailReceiver() as server, sender(**at(server, smtp_tls="starttls")) as out:
        attempt = await send(out, OPS)
        assert attempt.result == "refused"
        assert "STARTTLS" in str(attempt.error)
        assert "BREAKERS_SMTP_TLS=none" in str(attempt.error)
        assert server.mails == []


# login


@pytest.mark.parametrize("mode", ["none", "starttls", "tls"])
async def test_login(mode: Any, authority: trustme.CA, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    tls = serving(authority, "127.0.0.1")
    async with MailReceiver(mode, tls, login=("alerts", PASSWORD)) as server:
        good = at(server, smtp_username="alerts", smtp_password=PASSWORD)
        async with sender(trusting(authority), **good) as out:
            assert (await send(out, OPS)).result == "sent"
        async with sender(
            trusting(authority), **at(server, smtp_username="alerts", smtp_password="wr0ng-Pa55word")
        ) as out:
            attempt = await send(out, OPS)
            assert (attempt.result, attempt.status) == ("refused", 535)
            assert str(attempt.error).startswith("mail server refused the login: 535")
            assert "wr0ng" not in repr(attempt)
        async with sender(trusting(authority), **at(server)) as out:
            attempt = await send(out, OPS)
            assert (attempt.result, attempt.status) == ("refused", 530)
        assert len(server.mails) == 1
    assert PASSWORD not in caplog.text
    assert "wr0ng" not in caplog.text


async def test_a_login_that_the_server_does_not_offer_is_refused() -> None:
    async with MailReceiver() as server:
        async with sender(**at(server, smtp_username="alerts", smtp_password=PASSWORD)) as out:
            attempt = await send(out, OPS)
            assert attempt.result == "refused"
            assert PASSWORD not in repr(attempt)


# refusals


@pytest.mark.parametrize(
    ("replies", "expected"),
    [
        (
            {"b@example.com": "550 5.1.1 no such user"},
            Attempt(result="sent", status=250, error="mail server refused 1 of 3 recipients: b@example.com (550)"),
        ),
        (
            {"a@example.com": "550 no", "b@example.com": "450 later", "c@example.com": "550 no"},
            Attempt(
                result="retry",
                status=450,
                error=f"{ALL_REFUSED} a@example.com (550), b@example.com (450), c@example.com (550)",
            ),
        ),
        (
            dict.fromkeys(("a@example.com", "b@example.com", "c@example.com"), "550 no"),
            Attempt(
                result="refused",
                status=550,
                error=f"{ALL_REFUSED} a@example.com (550), b@example.com (550), c@example.com (550)",
            ),
        ),
        (
            {"DATA": "451 4.3.0 disk full"},
            Attempt(result="retry", status=451, error="mail server answered: 451 4.3.0 disk full"),
        ),
        (
            {"DATA": "554 5.7.1 looks like spam"},
            Attempt(result="refused", status=554, error="mail server answered: 554 5.7.1 looks like spam"),
        ),
    ],
)
async def test_refusals(replies: dict[str, str], expected: Attempt) -> None:
    async with MailReceiver(replies=replies) as server, sender(**at(server)) as out:
        channel = to("email", to="a@example.com, b@example.com, c@example.com")
        assert await send(out, channel) == expected


async def test_many_refused_recipients_are_counted() -> None:
    everybody = [f"u{i}@example.com" for i in range(10)]
    async with MailReceiver(replies=dict.fromkeys(everybody[1:], "550 no")) as server, sender(**at(server)) as out:
        attempt = await send(out, to("email", to=everybody))
        assert attempt.result == "sent"
        assert str(attempt.error).endswith(
            "u1@example.com (550), u2@example.com (550), u3@example.com (550) and 6 more"
        )


async def test_a_server_that_repeats_the_password_is_not_quoted() -> None:
    async with MailReceiver(replies={"DATA": f"554 what is {PASSWORD}?"}, login=("alerts", PASSWORD)) as server:
        async with sender(**at(server, smtp_username="alerts", smtp_password=PASSWORD)) as out:
            assert await send(out, OPS) == Attempt(result="refused", status=554, error="mail server answered: 554")


# time and network


async def test_a_server_that_says_nothing_is_tried_again() -> None:
    async with MailReceiver(how="hang") as server, sender(**at(server, notify_timeout_ms=150)) as out:
        assert await send(out, OPS) == Attempt(result="retry", error="mail server: no answer in time")


async def test_a_good_bye_that_never_comes_does_not_send_twice() -> None:
    for timeout_ms in GROWING_MS:
        async with MailReceiver(quits=False) as server, sender(**at(server, notify_timeout_ms=timeout_ms)) as out:
            attempt = await send(out, OPS)
        if attempt.result == "sent":
            break
    assert attempt == Attempt(result="sent", status=250)
    assert len(server.mails) == 1


async def test_no_server(unknown: list[str]) -> None:
    async with MailReceiver() as gone:
        settings = at(gone)
    async with sender(**settings) as out:
        assert await send(out, OPS) == Attempt(result="retry", error="mail server: the connection was refused")
    async with sender(smtp_host="nowhere.invalid") as out:
        attempt = await send(out, OPS)
        assert attempt == Attempt(result="retry", error="mail server: its name could not be resolved")
    assert unknown == ["nowhere.invalid"]
    for host in ("bad\r\nhost", "x" * 70 + ".example"):
        async with sender(smtp_host=host, smtp_tls="none") as out:
            attempt = await send(out, OPS)
            assert attempt == Attempt(
                result="retry", error="the mail server's settings are not valid (BREAKERS_SMTP_HOST)"
            )
    async with sender(smtp_host="127.0.0.1", smtp_from="nobody") as out:
        attempt = await send(out, OPS)
        assert attempt == Attempt(result="retry", error="the sender's address is not one (BREAKERS_SMTP_FROM)")


async def test_the_mail_server_is_the_operators_and_may_be_private() -> None:
    async with MailReceiver() as server, sender(**at(server, allow_private_destinations=False)) as out:
        assert (await send(out, OPS, HOSTILE)).result == "sent"


async def test_mails_at_once() -> None:
    async with MailReceiver() as server, sender(**at(server)) as out:
        attempts = await asyncio.gather(*(send(out, OPS) for _ in range(20)))
        assert {attempt.result for attempt in attempts} == {"sent"}
        assert len(server.mails) == 20


def test_the_default_trusts_authorities_and_checks_names() -> None:
    context = trusted()
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.cert_store_stats()["x509_ca"] > 50
