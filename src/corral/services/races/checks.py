"""The gates of a race: commands that are run in a worktree, and what they found."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from corral.adapters import test_reports
from corral.adapters.checks import Confined, run_check
from corral.adapters.output.opening import open_regular
from corral.adapters.sandbox import TASKS_PER_PROCESS, Kind, ResourceLimits, probe
from corral.db.database import Database
from corral.db.tx import Tx
from corral.domain.races.model import Attempt, Check, Race, Tally
from corral.domain.settings import ops as settings
from corral.services.identity import check_mark

MAX_OUTPUT = 4_000  # of what a check printed, in the store
MAX_REPORT = 16 * 1024 * 1024


def run_gates(database: Database, race: Race, top: str, attempt: Attempt | None) -> list[Check]:
    """The checks of a race in a worktree, in their order; the first that fails is the last that
    is run: it is lost then."""
    dir = place_in(race, top)
    found: list[Check] = []
    timeout_ms = check_ms(database, race)
    port = attempt.port if attempt is not None else None
    given = environment(race, attempt, port) if attempt is not None else {}
    for command in race.plan.checks:
        before = _reports(race, dir)
        began = time.monotonic()
        ended = run_check(
            command,
            dir,
            timeout_ms=timeout_ms,
            environment=given | check_mark(database),
            kept_in=top,
            by=keeper_of(race, attempt),
            repository=race.repository,
            confined=confined_to(database, race),
        )
        took = int((time.monotonic() - began) * 1_000)
        found.append(
            Check(
                command,
                ended.exit_code,
                took,
                tests=_tests(race, dir, before, ended.output),
                output=ended.output[-MAX_OUTPUT:],
            )
        )
        if ended.exit_code != 0:
            break
    return found


def place_in(race: Race, top: str) -> str:
    """The directory in a worktree that stands for the project's."""
    return os.path.join(top, race.inside) if race.inside else top


def sandbox_of(race: Race) -> Kind:
    """What keeps the attempts of a race in their worktrees."""
    return probe().kind if race.plan.sandbox == "auto" else Kind(race.plan.sandbox)


def keeper_of(race: Race, attempt: Attempt | None) -> Kind:
    """What keeps the commands of a race in a worktree: what an agent wrote is run by them."""
    if race.plan.commands_outside:
        return Kind.NONE
    same = attempt.sandbox if attempt is not None else None
    return Kind(same) if same is not None else sandbox_of(race)


def confined_to(database: Database, race: Race) -> Confined:
    """Return what sandboxed set-up commands and checks may use besides their worktree."""

    def look(tx: Tx) -> Confined:
        def setting(name: str) -> Any:
            return settings.value(tx, f"sandbox.{name}", project=race.project_id)

        limits = ResourceLimits(
            processes=int(setting("processes")) * TASKS_PER_PROCESS,
            file_bytes=int(setting("disk_bytes")),
        )
        return Confined(tuple(setting("reads")), bool(setting("network")), limits)

    return database.read(look)


def check_ms(database: Database, race: Race) -> int:
    """How long a check or a set-up command may take."""
    if race.plan.check_timeout_ms is not None:
        return race.plan.check_timeout_ms
    return database.read(
        lambda tx: int(settings.value(tx, "races.check_timeout_ms", project=race.project_id))
    )


def _reports(race: Race, dir: str) -> dict[str, int]:
    """The JUnit reports that are there, each with the moment at which it was written."""
    found = {}
    for name in race.plan.reports:
        with suppress(OSError):
            found[name] = os.stat(os.path.join(dir, name)).st_mtime_ns
    return found


def _tests(race: Race, dir: str, before: dict[str, int], output: str) -> Tally | None:
    """The counts of a check: of a report that it wrote, else of what it printed."""
    for name, written in _reports(race, dir).items():
        if before.get(name) == written:
            continue
        with suppress(OSError), open(open_regular(Path(dir, name)), "rb") as file:
            if (told := test_reports.from_junit(file.read(MAX_REPORT))) is not None:
                return _as_tests(told)
    printed = test_reports.from_output(output)
    return _as_tests(printed) if printed is not None else None


def _as_tests(told: test_reports.Counts) -> Tally:
    known = [told.passed or 0, told.failed or 0, told.errors or 0, told.skipped or 0]
    return Tally(told.total if told.total is not None else sum(known), *known)


def environment(race: Race, attempt: Attempt, port: int | None) -> dict[str, str]:
    """What an attempt, its set-up and its checks find in their environment."""
    given = {"CORRAL_RACE": race.id, "CORRAL_ATTEMPT": attempt.id}
    return given | ({"PORT": str(port)} if port is not None else {})
