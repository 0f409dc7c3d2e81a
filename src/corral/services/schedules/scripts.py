"""Scripts of schedules: run outside of any transaction, and what they say is told in one."""

import os
from typing import TYPE_CHECKING

from corral import config
from corral.adapters.checks import run_check
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.alerts import ops as alerts
from corral.domain.projects import ops as projects
from corral.domain.schedules import occurrences
from corral.domain.schedules.model import Occurrence, OccurrenceState, Schedule, Verdict, verdict
from corral.domain.sessions import ops as sessions
from corral.kernel.errors import Conflict, NotFound
from corral.services.identity import check_mark

if TYPE_CHECKING:
    from corral.db.database import Database


def run_next(database: "Database", owner: str) -> Occurrence | None:
    """Run the script that waits for longest, and do what it says; None when there is none."""
    begun = database.write(lambda tx: _begin(tx, owner))
    if begun is None:
        return None
    said, code, output = _ask(database, begun)
    try:
        return database.write(lambda tx: _conclude(tx, begun, said, code, output))
    except Conflict:
        return begun.occurrence  # another has it: this one was given up for dead meanwhile


def _begin(tx: Tx, owner: str) -> occurrences.Begun | None:
    begun, given_up = occurrences.begin_script(tx, owner=owner)
    for each in given_up:
        _tell(tx, each)
    return begun


def _ask(database: "Database", begun: occurrences.Begun) -> tuple[Verdict, int | None, str]:
    schedule = begun.schedule
    assert schedule.script is not None
    try:
        dir = database.read(lambda tx: _dir(tx, schedule))
    except NotFound as error:  # nobody would be woken by it
        return Verdict(False, error.message, failed=True), None, ""
    if dir is None:
        dir = str(config.home() / "workspaces" / schedule.id)
        config.make_private_folder(config.home() / "workspaces" / schedule.id)
    if not os.path.isdir(dir):
        return Verdict(False, f"{dir} is not on this machine", failed=True), None, ""
    moment = begun.occurrence.moment
    ended = run_check(
        schedule.script,
        dir,
        timeout_ms=begun.timeout_ms,
        environment={
            "CORRAL_SCHEDULE": schedule.id,
            "CORRAL_MOMENT": str(moment) if moment is not None else "",
        }
        | check_mark(database),
    )
    return verdict(ended.exit_code, ended.output), ended.exit_code, ended.output


def _dir(tx: Tx, schedule: Schedule) -> str | None:
    """Where a script is run: in the project, else where the session's agent works; None: in a
    folder of its own. NotFound when its session was forgotten."""
    project = schedule.project_id
    agent = None
    if schedule.mailbox.startswith("session:"):
        session = sessions.get(tx, schedule.mailbox.removeprefix("session:"))
        project, agent = project or session.project_id, session.agent_id
    try:
        if project is not None:
            return projects.get(tx, project).dir
        return agents.get(tx, agent).workspace if agent is not None else None
    except NotFound:
        return None


def _conclude(
    tx: Tx, begun: occurrences.Begun, said: Verdict, exit_code: int | None, output: str
) -> Occurrence:
    ended = occurrences.conclude(tx, begun, said, exit_code=exit_code, output=output)
    _tell(tx, ended)
    return ended


def _tell(tx: Tx, ended: Occurrence) -> None:
    """A moment whose script failed for good is told to the operator, once."""
    if ended.state is OccurrenceState.FAILED:
        alerts.raise_alert(
            tx,
            "failed",
            ended.id,
            edge=ended.id,
            data={"schedule": ended.schedule_id, "reason": (ended.reason or "")[:200]},
        )
