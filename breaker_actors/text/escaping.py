"""What text from outside becomes in each medium it is put into: the one place that escapes. Pure.

Names, metrics, reasons, trace ids and error texts are whatever somebody sent. JSON of answers, webhooks, Parquet and
NDJSON carry them as they are: there they are data. Everywhere else they pass one of the functions below.
"""

from __future__ import annotations

import hashlib
import html
import re
import unicodedata
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from rich.text import Text

LINE_MAX, LINK_MAX, SLACK_MAX = 300, 2000, 3000
PLACEHOLDER = "{{value}}"
_FORMULA = re.compile('(^|[;\t\r\n])([\\s"]*)(?=[=+@\uff1d\uff0b\uff0d\uff20-])')
"""Where in a cell something begins that spreadsheets may calculate, wide forms included: at its start, and behind what
ends a cell where another separator is read."""
_STRIPPED = ("\t", "\r", "\n")
"""What spreadsheets take away at the start of a cell before they look at it."""
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DIRECTIONS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that turn the direction of what follows: a name could make a line read differently from what it says."""
_SLACK = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_CALLS = re.compile("[@<](?=[^ ])")
_LINK = re.compile(r"https?://[^\s/?#<>\"|\\^`{}\x00-\x1f\x7f]+[^\s<>\"|\\^`{}\x00-\x1f\x7f]*", re.IGNORECASE)
_AUTHORITY = re.compile(r"https?://([^/?#]*)", re.IGNORECASE)
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,128}")
_LINE_ENDS = {"\u0085": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def cut(text: str, limit: int) -> str:
    """Return at most `limit` characters; an ellipsis stands for what is missing."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def for_database(text: str) -> str:
    """Return the text of a column: U+FFFD stands for U+0000, which PostgreSQL does not keep."""
    return text.replace("\0", "\ufffd")


def for_line(text: str, limit: int = LINE_MAX) -> str:
    """Return a line of plain text for people (mails, PagerDuty, plain text of Slack, the page of a backtest): no
    control characters, line ends, surrogates and characters that turn the direction; at most `limit` characters."""
    shown = "".join(" " if _is_control(c) else c for c in text if c not in _DIRECTIONS)
    return cut(" ".join(shown.split()), limit)


def _is_control(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")


def for_ascii(text: str) -> str:
    """Return a line of printable ASCII; runs of anything else are a space."""
    return " ".join("".join(c if " " <= c <= "~" else " " for c in text).split())


def for_header(text: str, limit: int = LINE_MAX) -> str:
    """Return the text of a mail header: a line in which no encoded word (RFC 2047) can begin. `email` decodes such
    words when a header is set, line ends included, so `=?` is taken apart."""
    return cut(for_line(text, limit).replace("=?", "= ?"), limit)


def for_token(text: str) -> str:
    """Return an id as it may stand in an HTTP header or a Message-ID: itself, or a hash of one with other signs."""
    if _TOKEN.fullmatch(text):
        return text
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def for_slack(text: str, limit: int = SLACK_MAX) -> str:
    """Return mrkdwn that shows `text` as it is, of at most `limit` characters; no escape is cut in half. Its block
    asks for `verbatim`, which keeps "@here" and bare addresses from becoming mentions and links."""
    parts = [_SLACK.get(character, character) for character in text]
    if sum(map(len, parts)) <= limit:
        return "".join(parts)
    length = kept = 0
    while length + len(parts[kept]) < limit:
        length += len(parts[kept])
        kept += 1
    return "".join(parts[:kept]) + "…"


def for_people(text: str) -> str:
    """Return plain text that calls nobody where a chat reads "@everyone", "<@id>" or "<!channel>" out of it: behind
    each sign that begins such a call is a space without width."""
    return _CALLS.sub(lambda sign: sign[0] + "\u200b", text)


def for_html(text: str) -> str:
    """Return HTML that shows `text`, in an element or in a quoted attribute."""
    return html.escape(text, quote=True)


def for_script(text: str) -> str:
    """Return JSON that can't end the script element it stands in."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def for_sse(text: bytes) -> bytes:
    """Return JSON (UTF-8) as one `data:` line for every reader: JSON escapes CR and LF itself, but some readers also
    end lines at U+0085, U+2028 and U+2029."""
    if text.isascii():
        return text
    for character, escape in _LINE_ENDS.items():
        text = text.replace(character.encode(), escape.encode())
    return text


def for_terminal(text: str) -> str:
    """Return a line for a terminal: everything that is not printable (ESC, C1, line ends, tabs, characters that turn
    the direction or are not seen) is shown as its escape, such as \\x1b."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def for_rich(text: str) -> Text:
    """Return `for_terminal` as a Text of rich, in which "[red]", "[link=...]" and ":bomb:" are nothing but text."""
    from rich.text import Text

    return Text(for_terminal(text))


def for_log(text: str) -> str:
    """Return a block of a log for eyes: its lines stay lines (a traceback has them) but are indented, so that none
    looks like a line of the log."""
    return "".join(f"\n    {for_terminal(line)}" for line in text.split("\n"))


def for_csv(text: str) -> str:
    """Return a cell that spreadsheets take for text: an apostrophe stands before what could be a formula (OWASP's
    advice). A text that is a plain number stays: it can't call anything."""
    if _NUMBER.fullmatch(text):
        return text
    marked = _FORMULA.sub(r"\1\2'", text)
    return "'" + marked if marked.startswith(_STRIPPED) else marked


def link(url: str | None) -> str | None:
    """Return an address that may be clicked: http(s) with a host, plain characters, at most LINK_MAX; else None."""
    return url if url is not None and len(url) <= LINK_MAX and _LINK.fullmatch(url) else None


def link_template(template: str | None) -> str | None:
    """Return a template of links if all it can make are http(s) addresses of one host, which it names itself without
    a user or password; else None."""
    found = _AUTHORITY.match(template or "")
    if template is None or found is None or "@" in found[1] or PLACEHOLDER in found[1]:
        return None
    return template if _LINK.fullmatch(template.replace(PLACEHOLDER, "x")) else None


def link_of(template: str | None, value: str | None) -> str | None:
    """Return a template's link with the value as one piece of it; None without a usable template or a value, and when
    it would be longer than LINK_MAX."""
    usable = link_template(template)
    return link(usable.replace(PLACEHOLDER, quote(value, safe=""))) if usable and value else None
