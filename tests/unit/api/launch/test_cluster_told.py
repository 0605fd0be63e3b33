"""What `breakers deploy` says when Ray Serve does not start: one line, whatever another process' traceback was."""

from __future__ import annotations

import pytest

from api.launch.cluster import _serve_told
from api.launch.ray_environment import NotStarted
from breaker_actors.errors import Invalid

BOUND = """Proxy actor failed:
  File "haproxy.py", line 1212, in _start
RuntimeError: HAProxy crashed: [ALERT] (7): Starting frontend: cannot bind socket (Address already in use)
for [127.0.0.1:7405]
"""


def told(error: Exception) -> str:
    with pytest.raises(NotStarted) as caught, _serve_told(7405):
        raise error
    assert caught.value.__suppress_context__
    return str(caught.value)


def test_a_port_that_somebody_has() -> None:
    line = told(RuntimeError(BOUND))
    assert line.startswith("port 7405 is in use on a node of the cluster; ")
    assert "\n" not in line


@pytest.mark.parametrize(("error", "last"), [(ValueError("a\n\n  b\n"), "b"), (TimeoutError(), "TimeoutError")])
def test_anything_else_is_its_last_line(error: Exception, last: str) -> None:
    assert told(error) == f"Ray Serve did not start: {last}"


def test_our_own_errors_pass() -> None:
    with pytest.raises(Invalid, match="as it is"), _serve_told(1):
        raise Invalid("as it is")
