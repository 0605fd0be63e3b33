"""`breakers doctor`: what is wrong with this machine, its data directory and its database, and what helps."""

from __future__ import annotations

import typer

from api.cli.errors import FAILED, one_line_errors
from api.cli.output import put_json, put_table
from api.cli.store_access import AsJson, DataDir, log_to_stderr, settings_of


def doctor(data_dir: DataDir = None, json: AsJson = False) -> None:
    """Look for what keeps the service from starting or serving well: versions, port, certificate, file modes, disk,
    Ray's folder and token, clocks, names, database, signed ingest. Each finding comes with its remedy; nothing is
    changed. Ends with 1 when there is an error."""
    log_to_stderr()
    with one_line_errors():
        settings = settings_of(data_dir)
        from api.launch.doctor import examine
        from breaker_actors.clock import SystemClock

        findings = examine(settings, SystemClock())
    failed = any(finding.level == "error" for finding in findings)
    if json:
        found = [{"check": f.check, "level": f.level, "message": f.message, "remedy": f.remedy} for f in findings]
        put_json({"ok": not failed, "findings": found})
    else:
        put_table(
            ("result", "check", "finding", "remedy"), [(f.level, f.check, f.message, f.remedy or "") for f in findings]
        )
    if failed:
        raise typer.Exit(FAILED)
