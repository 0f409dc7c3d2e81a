"""Resuming a run: queue a new run that continues an earlier run or a session."""

from contextlib import suppress

import msgspec

from corral.db.tx import Tx
from corral.domain.projects import ops as projects
from corral.domain.runs import ops as runs
from corral.domain.runs.model import Run, RunMode
from corral.domain.sessions import ops as sessions
from corral.kernel.errors import Conflict, NotFound, Refused
from corral.services.runs.request import ANY_HOST, RunRequest, coalesce, request_run


def resume_run(
    tx: Tx, run_or_session: str, request: RunRequest, *, caller_run: str | None = None
) -> Run:
    """Queue a run that continues an earlier run or a session.

    Limits, variables and agent are those of the earlier run unless the request has its own. A
    command without a conversation is started again. The first prompt is not repeated. Raises
    Conflict while the earlier run is live.
    """
    before = _find_latest_run(tx, run_or_session)
    if before is None:
        request = msgspec.structs.replace(request, session=run_or_session)
        return request_run(tx, request, caller_run=caller_run)
    if (live := _find_live_run(tx, before)) is not None:
        raise Conflict(
            f"Cannot resume {live.id}: it is {live.state}. Wait for its end (`corral wait "
            f"{live.id}`), or stop it (`corral stop {live.id}`).",
            id=live.id,
        )
    launch = runs.get_launch(tx, before.id)
    if launch.has_session_sandbox and request.sandbox is None:
        raise Refused(
            f"Cannot resume {before.id}: its sandboxed agent reads only its chat. Write to it "
            "there, or set chat.sandbox to off first.",
            id=before.id,
            reason="sandboxed",
        )
    if launch.raw and before.session_id is None and request.prompt:
        raise Refused(
            f"Cannot give {before.id} a prompt: it ran a command, not an agent. Run the command "
            f"again with `corral resume {before.id}`, or start an agent with `corral run`.",
            id=before.id,
            reason="no_agent",
        )
    has_directory = bool(request.project or request.dir)
    worktree_project = None if has_directory else _find_worktree_project(tx, before)
    command = [before.command, *before.args] if launch.raw else None
    return request_run(
        tx,
        msgspec.structs.replace(
            request,
            command=command,
            agent=request.agent or (None if command else _find_current_agent(tx, before)),
            project=request.project or worktree_project or (None if request.dir else before.cwd),
            dir=before.cwd if worktree_project else request.dir,
            session=before.session_id,
            name=request.name or before.name,
            timeout_ms=coalesce(request.timeout_ms, launch.timeout_ms),
            idle_ms=coalesce(request.idle_ms, launch.idle_ms),
            grace_period_ms=coalesce(request.grace_period_ms, launch.grace_period_ms),
            budget_micros=coalesce(request.budget_micros, launch.budget_micros),
            max_restarts=coalesce(request.max_restarts, launch.max_restarts),
            max_output_bytes=coalesce(request.max_output_bytes, launch.max_output_bytes),
            env={**launch.env, **request.env},
            secrets={**launch.secrets, **request.secrets},
            approvals=request.approvals or launch.approvals,
            sandbox=request.sandbox or launch.sandbox,
            acp=request.acp or before.mode is RunMode.ACP,
            # The provider stores its conversation on the machine that ran it.
            host=request.host
            or launch.host
            or (None if before.mode is RunMode.RECORDED else ANY_HOST),
            labels=request.labels or launch.labels,
        ),
        caller_run=caller_run,
    )


def _find_latest_run(tx: Tx, run_or_session: str) -> Run | None:
    """Return a run, or the latest run of a session; None for a session without runs."""
    if not run_or_session.startswith("ses_"):
        return runs.get(tx, run_or_session)
    session = sessions.get(tx, run_or_session)
    return next(iter(runs.list_runs(tx, session=session.id, limit=1).items), None)


def _find_live_run(tx: Tx, run: Run) -> Run | None:
    """Return the live run of a run's conversation; None when all its runs have ended.

    Serialized, so that only one of several concurrent callers resumes the conversation.
    """
    if run.session_id is not None:
        tx.serialize(f"resume:{run.session_id}")
        latest = runs.list_runs(tx, session=run.session_id, limit=1).items
        if latest and latest[0].is_live:
            return latest[0]
    return run if run.is_live else None


def _find_worktree_project(tx: Tx, before: Run) -> str | None:
    """Return the project of a run that worked outside the project's directory."""
    with suppress(NotFound):
        project = projects.get(tx, before.project_id) if before.project_id else None
        return project.id if project is not None and project.dir != before.cwd else None
    return None


def _find_current_agent(tx: Tx, before: Run) -> str | None:
    """Return the agent that has the conversation now: it may have been handed off since."""
    if before.session_id is not None:
        owner = sessions.get(tx, before.session_id).agent_id
        if owner is not None:
            return owner
    return before.agent_id or before.provider
