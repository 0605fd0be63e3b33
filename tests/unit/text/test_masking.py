"""What may be shown of secrets, and what a masked value means when it comes back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breaker_actors.errors import Invalid
from breaker_actors.text.redaction import MARK, mask, mask_text, unmask

URL = "https://user:pw@hooks.slack.example:8443/services/T0/B0/abcdefgh"


def test_of_an_address_only_its_host_is_left() -> None:
    assert mask_text(URL) == "https://hooks.slack.example:8443/****efgh"
    assert mask_text("https://x/y") == "https://x/****"
    assert [mask_text(f"http://127.0.0.1:9333{path}") for path in ("", "/")] == ["http://127.0.0.1:9333/****"] * 2
    assert mask_text("http://[broken") == MARK
    assert mask_text("tgram://123456:verysecret/chat") == "tgram://****chat"
    assert (mask_text("short"), mask_text("0123456789abcdef"), mask_text("")) == ("****", "****cdef", "")


@pytest.mark.parametrize(
    ("config", "shown"),
    [
        ({"webhook_url": URL}, {"webhook_url": mask_text(URL)}),
        ({"url": "x", "secret": "s", "note": "n"}, {"url": "****", "secret": "****", "note": "n"}),
        ({"headers": {"X-Team": "a"}, "retries": 3}, {"headers": {"X-Team": "****"}, "retries": 3}),
        ({"routing_key": "r"}, {"routing_key": "****"}),
        ({"routing_key": 12345678, "retries": 3}, {"routing_key": "****", "retries": 3}),
        ({"headers": {"X-Token": 9.5, "X-Debug": True}}, {"headers": {"X-Token": "****", "X-Debug": True}}),
        ({"to": ["a@b.example"], "from": "c"}, {"to": ["a@b.example"], "from": "c"}),
        ({"deep": [{"Authorization": ["x"]}]}, {"deep": [{"Authorization": ["****"]}]}),
        ({"odd": URL, "none": None, "flag": True}, {"odd": mask_text(URL), "none": None, "flag": True}),
    ],
)
def test_secrets_and_addresses_are_found_wherever_they_are(config: Any, shown: Any) -> None:
    assert mask(config) == shown


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["url", "a", "token"]), inner),
    max_leaves=8,
)


@given(_JSON)
def test_what_is_shown_can_be_sent_back(config: Any) -> None:
    """Masking and unmasking gives the stored value; so does sending the stored value itself."""
    assert unmask(mask(config), config) == config
    assert unmask(config, config) == config


@pytest.mark.parametrize("stored", [{}, {"url": "other"}, {"url": 5}, None])
def test_the_mask_of_something_else_is_refused(stored: Any) -> None:
    with pytest.raises(Invalid):
        unmask({"url": mask_text(URL)}, stored)
