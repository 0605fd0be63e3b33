"""Ray's token: who has it may run code as the service's user. One per service, in its data directory, mode 600.

A cluster's nodes and whoever deploys to it have the same token; what an operator says by Ray's own variables goes
first. Processes are told the path of the file, never the token: environments are shown by dumps and container tools.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

from api.launch import haproxy as ingress
from api.launch import private_files as private
from breaker_actors.errors import Invalid

TOKEN_FILE = "ray.token"  # nosec B105 # the name of the file
MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
_TOKEN = re.compile(rb"[!-~]{32,1024}\s*\Z")


def use_own_token(data_dir: Path) -> None:
    """This process and all below it take the token of the data directory and ask for it, whatever the environment said
    of tokens before. To be called before Ray is imported."""
    path = data_dir / TOKEN_FILE
    private.make_own(path, secrets.token_hex(32) + "\n")
    use_token(path)


def use_token(path: Path) -> None:
    """The same with the token of a file that is there. Raises Invalid when it is not this user's alone, or no token."""
    check(path)
    os.environ.pop(TOKEN, None)
    os.environ.update({MODE: "token", TOKEN_PATH: str(path)})


def of_node(data_dir: Path, head: bool) -> dict[str, str]:
    """What a node's environment needs beside what it says already. On the head the token is made if there is none;
    elsewhere it has to be the head's, and Invalid is raised when it is missing."""
    if _is_said():
        return {MODE: os.environ.get(MODE, "token")}
    private.keep_private()
    path = data_dir / TOKEN_FILE
    if not head and not os.path.exists(path):
        raise Invalid(
            f"{path} is missing: copy it from the head, where `breakers node-env --head` makes it; nodes with different"
            " tokens don't come together"
        )
    try:
        private.make_data_dir(data_dir)
        if head:
            private.make_own(path, secrets.token_hex(32) + "\n")
    except OSError as error:
        raise Invalid(f"data directory {data_dir} can't be used: {error.strerror}") from None
    check(path)
    return {MODE: "token", TOKEN_PATH: str(path)}


def use_of_cluster(data_dir: Path | None) -> None:
    """This process speaks to a cluster with the token of the data directory, if there is one."""
    if _is_said():
        os.environ.setdefault(MODE, "token")
    elif data_dir is not None and os.path.exists(data_dir / TOKEN_FILE):
        use_token(data_dir / TOKEN_FILE)


def current(environ: Mapping[str, str] = os.environ) -> str:
    """The token that Ray takes in a process with this environment, found as Ray finds it. Raises Invalid when there is
    none."""
    try:
        return ingress.ray_token(environ)
    except (OSError, ValueError):
        raise Invalid(f"Ray's token {environ.get(TOKEN_PATH) or '~/.ray/auth_token'} can't be read") from None


def _is_said() -> bool:
    return any(name in os.environ for name in (MODE, TOKEN, TOKEN_PATH))


def check(path: Path) -> None:
    """Raises Invalid when the file is not this user's alone, or holds no token."""
    try:
        content = private.read_own(path, private.OTHERS)
    except OSError as error:
        raise Invalid(f"Ray's token {path} can't be read: {error.strerror}") from None
    if _TOKEN.match(content) is None:
        raise Invalid(f"{path} holds no token; `openssl rand -hex 32` makes one")
