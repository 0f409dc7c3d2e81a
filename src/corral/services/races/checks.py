"""Check runs of a race: run the commands in a worktree, and collect their results."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from corral.adapters import test_reports
from corral.adapters.output.regular_file import open_regular_file
from corral.adapters.sandbox.checks import SandboxPermissions, run_check
from corral.adapters.sandbox.sandbox import (
    TASKS_PER_PROCESS,
    ResourceLimits,
    SandboxKind,
    probe_sandboxes,
)
from corral.db.database import Database
from corral.db.tx import Tx
from corral.domain.races.model import Attempt, CheckResult, CheckTally, Race
from corral.domain.settings import ops as settings
from corral.services.identity import check_environment

MAX_OUTPUT = 4_000
"""Maximum number of characters of a check's output in the store."""
MAX_REPORT = 16 * 1024 * 1024


def run_checks(
    database: Database, race: Race, top: str, attempt: Attempt | None
) -> list[CheckResult]:
    """Run the checks of a race in order, and stop after the first that fails.

    `top` is the worktree. Without an attempt (a graft) the checks get no port and no ids.
    """
    dir = get_project_dir(race, top)
    results: list[CheckResult] = []
    timeout_ms = get_check_timeout_ms(database, race)
    port = attempt.port if attempt is not None else None
    env = build_attempt_env(race, attempt, port) if attempt is not None else {}
    for command in race.plan.checks:
        before = _read_report_times(race, dir)
        began = time.monotonic()
        ended = run_check(
            command,
            dir,
            timeout_ms=timeout_ms,
            environment=env | check_environment(database),
            worktree=top,
            sandbox=choose_command_sandbox(race, attempt),
            repository=race.repository,
            permissions=get_sandbox_permissions(database, race),
        )
        duration_ms = int((time.monotonic() - began) * 1_000)
        results.append(
            CheckResult(
                command,
                ended.exit_code,
                duration_ms,
                tests=_count_tests(race, dir, before, ended.output),
                output=ended.output[-MAX_OUTPUT:],
            )
        )
        if ended.exit_code != 0:
            break
    return results


def get_project_dir(race: Race, top: str) -> str:
    """Return the directory in a worktree that corresponds to the project's directory."""
    return os.path.join(top, race.subdirectory) if race.subdirectory else top


def build_attempt_env(race: Race, attempt: Attempt, port: int | None) -> dict[str, str]:
    """Return the environment variables of an attempt, its set-up and its checks."""
    env = {"CORRAL_RACE": race.id, "CORRAL_ATTEMPT": attempt.id}
    return env | ({"PORT": str(port)} if port is not None else {})


def get_check_timeout_ms(database: Database, race: Race) -> int:
    """Return the timeout of a check or a set-up command."""
    if race.plan.check_timeout_ms is not None:
        return race.plan.check_timeout_ms
    return database.read(
        lambda tx: int(settings.get_value(tx, "races.check_timeout_ms", project=race.project_id))
    )


# -- sandbox -------------------------------------------------------------------------------------


def choose_agent_sandbox(race: Race) -> SandboxKind:
    """Return the sandbox for the agents of a race."""
    return probe_sandboxes().kind if race.plan.sandbox == "auto" else SandboxKind(race.plan.sandbox)


def choose_command_sandbox(race: Race, attempt: Attempt | None) -> SandboxKind:
    """Return the sandbox for set-up and checks, which run code that an agent wrote.

    It is the sandbox that the attempt's own agent had.
    """
    if race.plan.unsandboxed_commands:
        return SandboxKind.NONE
    kind = attempt.sandbox if attempt is not None else None
    return SandboxKind(kind) if kind is not None else choose_agent_sandbox(race)


def get_sandbox_permissions(database: Database, race: Race) -> SandboxPermissions:
    """Return what sandboxed set-up commands and checks may use besides their worktree."""

    def read(tx: Tx) -> SandboxPermissions:
        def setting(name: str) -> Any:
            return settings.get_value(tx, f"sandbox.{name}", project=race.project_id)

        limits = ResourceLimits(
            processes=int(setting("processes")) * TASKS_PER_PROCESS,
            file_bytes=int(setting("disk_bytes")),
        )
        return SandboxPermissions(tuple(setting("read_paths")), bool(setting("network")), limits)

    return database.read(read)


# -- test counts ---------------------------------------------------------------------------------


def _read_report_times(race: Race, dir: str) -> dict[str, int]:
    """Return the modification times of the JUnit reports that exist."""
    times = {}
    for name in race.plan.reports:
        with suppress(OSError):
            times[name] = os.stat(os.path.join(dir, name)).st_mtime_ns
    return times


def _count_tests(race: Race, dir: str, before: dict[str, int], output: str) -> CheckTally | None:
    """Return the test counts of a check: from a report that it wrote, or else from its output."""
    for name, modified in _read_report_times(race, dir).items():
        if before.get(name) == modified:
            continue  # left by an earlier check
        with suppress(OSError), open(open_regular_file(Path(dir, name)), "rb") as file:
            if (counts := test_reports.parse_junit(file.read(MAX_REPORT))) is not None:
                return _to_tally(counts)
    printed = test_reports.parse_output(output)
    return _to_tally(printed) if printed is not None else None


def _to_tally(counts: test_reports.ReportCounts) -> CheckTally:
    parts = [counts.passed or 0, counts.failed or 0, counts.errors or 0, counts.skipped or 0]
    return CheckTally(counts.total if counts.total is not None else sum(parts), *parts)
