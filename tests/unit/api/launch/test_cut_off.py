"""What a start says of channels that nobody is told on as its settings are."""

from __future__ import annotations

from typing import Any

from api.launch.cut_off import unsent_words
from breaker_actors.settings import Settings
from breaker_actors.store.rows import ChannelKind

ENABLED: list[tuple[str, str, ChannelKind, dict[str, Any]]] = [
    ("p", "hook", "webhook", {"url": "http://127.0.0.1:9/"}),
    ("p", "mails", "email", {"to": "a@b.example"}),
]


def test_a_start_names_the_settings_that_are_missing() -> None:
    barred, mails = unsent_words(ENABLED, Settings())
    assert "BREAKERS_ALLOW_PRIVATE_DESTINATIONS" in barred
    assert mails.startswith("1 e-mail channel, and no mail server: ")
    assert "BREAKERS_SMTP_HOST" in mails
    assert unsent_words(ENABLED, Settings(smtp_host="mail.example")) == [barred]
    assert unsent_words(ENABLED, Settings(allow_private_destinations=True)) == [mails]
    assert unsent_words(ENABLED[:1], Settings(allow_private_destinations=True)) == []
