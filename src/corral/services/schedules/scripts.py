"""Running the scripts of schedules.

A script runs outside of any transaction; its outcome is recorded in one.
"""

import os
from typing import TYPE_CHECKING

from corral import config
from corral.adapters.sandbox.checks import run_check
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.alerts import ops as alerts
from corral.domain.mail.model import session_id_of
from corral.domain.projects import ops as projects
from corral.domain.schedules import occurrences
from corral.domain.schedules.model import (
    Occurrence,
    OccurrenceState,
    Schedule,
    ScriptResult,
    parse_script_result,
)
from corral.domain.sessions import ops as sessions
from corral.kernel.errors import Conflict, NotFound
from corral.services.identity import check_environment

if TYPE_CHECKING:
    from corral.db.database import Database


def run_next(database: "Database", owner: str) -> Occurrence | None:
    """Run the script that waits the longest and record its outcome; None when none waits."""
    claimed = database.write(lambda tx: _claim(tx, owner))
    if claimed is None:
        return None
    result, exit_code, output = _run(database, claimed)
    try:
        return database.write(lambda tx: _record(tx, claimed, result, exit_code, output))
    except Conflict:
        # The lease expired while the script ran, and another process took the occurrence over.
        return claimed.occurrence


def _claim(tx: Tx, owner: str) -> occurrences.ClaimedScript | None:
    claimed, given_up = occurrences.claim_script(tx, owner=owner)
    for occurrence in given_up:
        _alert_failure(tx, occurrence)
    return claimed


def _run(
    database: "Database", claimed: occurrences.ClaimedScript
) -> tuple[ScriptResult, int | None, str]:
    schedule = claimed.schedule
    assert schedule.script is not None
    try:
        dir = database.read(lambda tx: _choose_working_dir(tx, schedule))
    except NotFound as error:  # its session was deleted, so it could wake no agent
        return ScriptResult(False, error.message, failed=True), None, ""
    if dir is None:
        dir = str(config.home() / "workspaces" / schedule.id)
        config.make_private_folder(config.home() / "workspaces" / schedule.id)
    if not os.path.isdir(dir):
        reason = f"the directory {dir} does not exist on this machine"
        return ScriptResult(False, reason, failed=True), None, ""
    scheduled_at = claimed.occurrence.scheduled_at
    check = run_check(
        schedule.script,
        dir,
        timeout_ms=claimed.timeout_ms,
        environment={
            "CORRAL_SCHEDULE": schedule.id,
            "CORRAL_SCHEDULED_AT": str(scheduled_at) if scheduled_at is not None else "",
        }
        | check_environment(database),
    )
    return parse_script_result(check.exit_code, check.output), check.exit_code, check.output


def _choose_working_dir(tx: Tx, schedule: Schedule) -> str | None:
    """Return the project's directory, or else the workspace of the session's agent.

    None when there is neither: the script then gets a folder of its own. Raises NotFound when its
    session was deleted.
    """
    project = schedule.project_id
    agent = None
    if (session_id := session_id_of(schedule.mailbox)) is not None:
        session = sessions.get(tx, session_id)
        project, agent = project or session.project_id, session.agent_id
    try:
        if project is not None:
            return projects.get(tx, project).dir
        return agents.get(tx, agent).workspace if agent is not None else None
    except NotFound:
        return None


def _record(
    tx: Tx,
    claimed: occurrences.ClaimedScript,
    result: ScriptResult,
    exit_code: int | None,
    output: str,
) -> Occurrence:
    ended = occurrences.record_script_result(
        tx, claimed, result, exit_code=exit_code, output=output
    )
    _alert_failure(tx, ended)
    return ended


def _alert_failure(tx: Tx, ended: Occurrence) -> None:
    """Alert the operator, once, about an occurrence whose script failed permanently."""
    if ended.state is OccurrenceState.FAILED:
        alerts.raise_alert(
            tx,
            "failed",
            ended.id,
            edge=ended.id,
            data={"schedule": ended.schedule_id, "reason": (ended.reason or "")[:200]},
        )
