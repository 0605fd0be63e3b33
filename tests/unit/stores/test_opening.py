"""What a process loads for its store and its log."""

from __future__ import annotations

import subprocess
import sys

LOADED = """
import sys
from pathlib import Path
import breaker_actors.host, breaker_actors.router
from breaker_actors import actors
from breaker_actors.settings import Settings
from breaker_actors.stores.opening import make_log
make_log(Settings(data_dir=Path("nowhere")))
print(*sorted({"sqlalchemy", "alembic", "psycopg", "cryptography"} & sys.modules.keys()))
"""


def test_an_actor_that_only_logs_to_sqlite_loads_nothing_of_the_store() -> None:
    """There are many of them: it would cost each a third of a second of CPU to start, and 30 MB."""
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []
