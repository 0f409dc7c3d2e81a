"""Enqueue runs, record how they end, find and delete them."""

from collections.abc import Sequence

from corral.db.transitions import create, transition
from corral.db.tx import Tx
from corral.domain.charges import budgets
from corral.domain.outputs import ops as outputs
from corral.domain.outputs.model import Output
from corral.domain.projects import ops as projects
from corral.domain.runs import outcome, sql
from corral.domain.runs.dispatch import CLAIM_MS
from corral.domain.runs.model import LIVE, Launch, ResourceSample, Run, RunMode, RunState, StopKind
from corral.domain.runs.spec import MAX_ARGS, RunSpec, check_spec
from corral.kernel.errors import Conflict, Invalid, NotFound
from corral.kernel.exit_status import ExitStatus
from corral.kernel.lease import stale_fence_error
from corral.kernel.pagination import Page, check_limit
from corral.kernel.validation import MAX_NAME, check_choice, check_int, check_text, encode_json

PRUNABLE = sql.PRUNABLE
MAX_REASON_BYTES = 4 * outcome.MAX_REASON


def enqueue(tx: Tx, spec: RunSpec) -> Run:
    """Create a queued run. It starts when a supervisor takes it."""
    check_spec(spec)
    if spec.name is not None and (other := _find_live_named(tx, spec.name)) is not None:
        raise Conflict(
            f"The name {spec.name!r} is used by {other.id}, which is {other.state}. Choose another "
            "name.",
            id=other.id,
            name=spec.name,
        )
    run = create(
        tx,
        sql.RUNS,
        {
            "id": tx.new_id("run"),
            "name": spec.name,
            "title": spec.title,
            "project_id": spec.project_id,
            "session_id": spec.session_id,
            "agent_id": spec.agent_id,
            "agent_version": spec.agent_version,
            "parent_id": spec.parent_id,
            "provider": spec.provider,
            "mode": spec.mode,
            "command": spec.command,
            "args": encode_json(list(spec.args), "The arguments", max_bytes=MAX_ARGS),
            "cwd": spec.cwd,
            "host": spec.host,
            "fence": 0,
            "attempts": 0,
            "quick_failures": 0,
            "due_at": tx.now if spec.due_at is None else spec.due_at,
            "output_bytes": 0,
            "lease_until": tx.now + CLAIM_MS if spec.claimed else None,
            "created_at": tx.now,
        },
        event_data={"command": spec.command, "cwd": spec.cwd},
    )
    tx.run(
        sql.ADD_LAUNCH,
        run_id=run.id,
        host=spec.host,
        labels=encode_json(sorted({*spec.labels}), "The labels"),
        prompt=spec.prompt,
        resume_session=spec.resume_session,
        env=encode_json(spec.env, "The environment"),
        secrets=encode_json(spec.secrets, "The secrets"),
        approvals=encode_json(list(spec.approvals), "The approvals"),
        raw=int(spec.raw),
        interactive=int(spec.interactive),
        timeout_ms=spec.timeout_ms,
        idle_ms=spec.idle_ms,
        grace_period_ms=spec.grace_period_ms,
        max_restarts=spec.max_restarts,
        budget_micros=spec.budget_micros,
        max_output_bytes=spec.max_output_bytes,
        sandbox=spec.sandbox,
        environment="{}",
    )
    return run


def _find_live_named(tx: Tx, name: str) -> Run | None:
    tx.serialize(f"run:{name}")
    return next((run for run in tx.all(sql.BY_NAME, name=name) if run.is_live), None)


def record(
    tx: Tx,
    *,
    pid: int,
    host: str,
    boot_id: str,
    start_token: str,
    command: str,
    args: Sequence[str],
    cwd: str,
    project_id: str | None,
) -> Run:
    """Record a process that Corral did not start."""
    run = enqueue(
        tx,
        RunSpec(command=command, args=args, cwd=cwd, project_id=project_id, mode=RunMode.RECORDED),
    )
    adopted = transition(
        tx,
        sql.RUNS,
        "adopt",
        run.id,
        pid=pid,
        host=host,
        boot_id=boot_id,
        start_token=start_token,
        attempts=1,
        fence=1,
        started_at=tx.now,
        seen_at=tx.now,
    )
    if project_id is not None:
        projects.touch(tx, project_id)
    return adopted


# -- outcomes -----------------------------------------------------------------------------------
# The final state depends on whether a stop was requested, so each of these locks the row first.
#
#   record_end    a supervisor or a recovery that knows the exit status
#   end_orphaned  a recovery, or the supervisor that it started, without an exit status
#   fail          a supervisor that cannot start a queued run
#   finish        a caller that reports the exit code of a recorded process
#   mark_lost     a caller that reports that a recorded process vanished


def request_stop(
    tx: Tx,
    id: str,
    *,
    reason: str | None = None,
    kind: StopKind = StopKind.REQUESTED,
    fence: int | None = None,
) -> Run:
    """Request that a run ends: a queued run is cancelled, a live one is ended by its supervisor.

    Idempotent: the first reason is kept; raises IllegalMove when the run has ended. A supervisor
    gives its `fence`; raises Held when another supervisor has the run.
    """
    run = sql.RUNS.get_for_update(tx, resolve_id(tx, id))
    if fence is not None and fence != run.fence:
        raise stale_fence_error(run.id, yours=fence, current=run.fence, owner=run.owner)
    text = outcome.DEFAULT_STOP_REASONS[kind] if reason is None else reason
    check_text(text, "The reason", max_bytes=MAX_REASON_BYTES)
    if run.state is RunState.QUEUED:
        return _end(tx, run, "cancel", ExitStatus(reason=text))
    if run.state is RunState.STOPPING:
        return run
    return transition(
        tx, sql.RUNS, "stop", run.id, stop_kind=kind, stop_reason=text, event_data={"reason": text}
    )


def record_end(
    tx: Tx, run: Run, exit_status: ExitStatus, *, output_bytes: int | None = None
) -> Run:
    """Record how a run ended. Idempotent: the first end is kept.

    Raises Held when the fence is stale: another supervisor or a recovery took the run over.
    """
    current = lock_fenced(tx, run)
    if not current.is_live:
        return current
    verb = outcome.end_verb(exit_status, current.stop_kind)
    return _end(tx, current, verb, exit_status, output_bytes=output_bytes)


def finish(tx: Tx, id: str, *, exit_code: int) -> Run:
    """Record the exit code of a recorded process: 0 completed, else failed. The first is kept.

    Raises Conflict when a supervisor has the run: only the supervisor sees its exit status.
    """
    run = _lock_unsupervised(tx, id)
    if not run.is_live:
        return run
    exit_status = ExitStatus(exit_code=check_int(exit_code, "The exit code"))
    return _end(tx, run, outcome.end_verb(exit_status, run.stop_kind), exit_status)


def fail(tx: Tx, id: str, *, reason: str) -> Run:
    """Record that a queued run cannot be started, or that a recorded process failed.

    A run that was being stopped ends as its stop demands, with the reason of the stop.
    Idempotent: a run that has ended is returned unchanged. A long reason is shortened. Raises
    Conflict when a supervisor has the run: its process may still run and must be stopped.
    """
    run = _lock_unsupervised(tx, id)
    if not run.is_live:
        return run
    exit_status = ExitStatus(reason=_shorten_reason(tx, reason))
    verb = "fail" if run.stop_kind is None else outcome.end_verb(exit_status, run.stop_kind)
    return _end(tx, run, verb, exit_status)


def _shorten_reason(tx: Tx, reason: str) -> str:
    """Shorten a reason: a long error message must not leave the run queued for ever."""
    short = tx.shorten_for_storage(reason, outcome.MAX_REASON)
    return check_text(short, "The reason", max_bytes=MAX_REASON_BYTES)


def mark_lost(tx: Tx, id: str, *, reason: str = "gone") -> Run:
    """Record that a recorded process vanished; a queued run is cancelled.

    Idempotent: the first end is kept. Raises Conflict when a supervisor has the run; `recover`
    finds out whether its process is gone.
    """
    run = _lock_unsupervised(tx, id)
    if not run.is_live:
        return run
    exit_status = ExitStatus(reason=_shorten_reason(tx, reason))
    verb = (
        "cancel" if run.state is RunState.QUEUED else outcome.end_verb(exit_status, run.stop_kind)
    )
    return _end(tx, run, verb, exit_status)


def end_orphaned(
    tx: Tx,
    run: Run,
    *,
    verb: str,
    reason: str,
    survivors: tuple[int, ...] = (),
    may_have_survivors: bool = False,
    output_bytes: int | None = None,
) -> Run:
    """End a run whose supervisor is gone, as a recovery has proven; raises Held otherwise.

    `survivors` are processes that could not be killed. With `may_have_survivors`, there may be some
    that cannot be found. In both cases, and when the run was being stopped, `outcome.end_verb`
    chooses the verb instead. `output_bytes` defaults to the size at the last heartbeat.
    """
    current = lock_fenced(tx, run)
    if not current.is_live:
        return current
    exit_status = ExitStatus(
        reason=reason, survivors=survivors, may_have_survivors=may_have_survivors
    )
    if current.stop_kind is not None or survivors or may_have_survivors:
        verb = outcome.end_verb(exit_status, current.stop_kind)
    return _end(tx, current, verb, exit_status, output_bytes=output_bytes)


def lock_fenced(tx: Tx, run: Run) -> Run:
    """Lock a run for its supervisor; raises Held when it is live and was taken over.

    A run that has ended is returned as it is, whatever its fence.
    """
    current = sql.RUNS.get_for_update(tx, run.id)
    if current.is_live:
        check_fence(current, run)
    return current


def check_fence(current: Run, run: Run) -> None:
    """Raise Held when `run` has another fence than the store: the run was taken over or ended."""
    if current.fence != run.fence:
        raise stale_fence_error(run.id, yours=run.fence, current=current.fence, owner=current.owner)


def _lock_unsupervised(tx: Tx, id: str) -> Run:
    """Lock a run that has no supervisor; raises Conflict when it is live and has one.

    A supervised process may still run, so it must be stopped rather than declared as ended.
    """
    run = sql.RUNS.get_for_update(tx, resolve_id(tx, id))
    is_supervised = run.state is not RunState.QUEUED and run.mode is not RunMode.RECORDED
    if run.is_live and is_supervised:
        raise Conflict(
            f"{run.id} is {run.state} and has a supervisor. Stop it with `corral stop {run.id}`.",
            id=run.id,
            state=run.state,
            reason="run_active",
        )
    return run


def _end(
    tx: Tx, run: Run, verb: str, exit_status: ExitStatus, *, output_bytes: int | None = None
) -> Run:
    reason = outcome.end_reason(exit_status, run.stop_reason)
    if reason is not None and reason != run.stop_reason:
        reason = tx.shorten_for_storage(reason, outcome.MAX_REASON)
    ended = transition(
        tx,
        sql.RUNS,
        verb,
        run.id,
        expected_fence=run.fence,
        fence=run.fence + 1,  # rejects the next write of the old supervisor
        exit_code=exit_status.exit_code,
        signal=exit_status.signal,
        reason=reason,
        ended_at=max(tx.now, run.started_at or run.created_at),  # the clock may have jumped back
        lease_until=None,
        attention=None,
        dialog=None,
        output_bytes=run.output_bytes if output_bytes is None else output_bytes,
        cpu_ms=_pick_larger(run.cpu_ms, exit_status.cpu_ms),
        peak_bytes=_pick_larger(run.peak_bytes, exit_status.peak_bytes),
        event_data={
            "exit_code": exit_status.exit_code,
            "signal": exit_status.signal,
            "reason": reason,
        },
    )
    budgets.release_budget(tx, run.id)
    raise_alert(tx, ended, outcome.choose_alert_kind(ended.state, run.stop_kind), "end")
    return ended


def _pick_larger(one: int | None, other: int | None) -> int | None:
    values = [value for value in (one, other) if value is not None]
    return max(values) if values else None


def raise_alert(tx: Tx, run: Run, kind: str | None, dedup_key: str | int) -> None:
    """Send an alert to its subscribers, at most once per `dedup_key`; None: no alert."""
    if kind is not None:
        from corral.domain.alerts import ops as alerts

        alerts.raise_alert(
            tx,
            kind,
            run.id,
            edge=dedup_key,
            project_id=run.project_id,
            agent_id=run.agent_id,
            data={
                "state": run.state,
                "name": run.name,
                "command": run.command,
                "exit_code": run.exit_code,
                "reason": run.reason,
            },
        )


# -- queries ------------------------------------------------------------------------------------


def resolve_id(tx: Tx, typed: str) -> str:
    """Return the full id of a run given by id, shortened or not, or by name.

    Of several runs with that name: the live one, else the latest.
    """
    if typed.startswith("run_"):
        return sql.IDS.resolve(tx, typed)
    named = tx.all(sql.BY_NAME, name=check_text(typed, "The run", max_bytes=MAX_NAME))
    if named:
        return next((run for run in named if run.is_live), named[0]).id
    try:
        return sql.IDS.resolve(tx, typed)
    except Invalid:
        raise NotFound(
            f"No run named {typed!r}. List all runs with `corral ps -a`.",
            kind="run",
            id=typed,
        ) from None


def get(tx: Tx, id: str) -> Run:
    """Return a run by its id, which may be shortened, or by its name."""
    return sql.RUNS.get(tx, resolve_id(tx, id))


def get_launch(tx: Tx, id: str) -> Launch:
    """Return the parameters with which a run is started."""
    launch = tx.first(sql.LAUNCH, run_id=resolve_id(tx, id))
    if launch is None:
        raise sql.RUNS.not_found(id)
    return launch


def find_by_pid(tx: Tx, pid: int) -> Run | None:
    """Return the newest run that has, or had, this pid."""
    return tx.first(sql.BY_PID, pid=check_int(pid, "The pid"))


def list_runs(
    tx: Tx,
    *,
    project: str | None = None,
    session: str | None = None,
    agent: str | None = None,
    state: str | None = None,
    live: bool = False,
    after: str | None = None,
    limit: int = 50,
) -> Page[Run]:
    """List runs, newest first, filtered by project, session, agent or state; `live`: not ended.

    A project is given by its id, name or directory, an agent by its id or name, a session by its
    id. Ids may be shortened.
    """
    filters: dict[str, str] = {}
    if project is not None:
        filters["project"] = projects.find_id(tx, project)
    if session is not None:
        from corral.domain.sessions import ops as sessions  # keeps the supervisor's imports small

        filters["session"] = sessions.find_id(tx, session)
    if agent is not None:
        from corral.domain.agents import ops as agents

        filters["agent"] = agents.find_id(tx, agent)
    if state is not None:
        filters["state"] = check_choice(state, RunState, "The state")
    listing = sql.LISTS.get((*filters, "live") if live else (*filters,))
    if listing is None:
        raise Invalid(
            "Unsupported combination of filters: use project and state, session, or agent."
        )
    return listing.page(tx, after=after, limit=limit, **filters)


def list_with_dialogs(tx: Tx, *, limit: int = 50) -> list[Run]:
    """List the runs with an open dialog, newest first."""
    return tx.all(sql.WITH_DIALOG, limit=check_limit(limit))


def list_active(tx: Tx, *, after: str = "", limit: int = 200) -> list[Run]:
    """List the runs that have a process according to their state, oldest first."""
    return tx.all(sql.ACTIVE, after=after, limit=check_limit(limit))


def list_samples(tx: Tx, id: str) -> list[ResourceSample]:
    """List the resource usage of a run's process tree over time."""
    return tx.all(sql.SAMPLES, run_id=resolve_id(tx, id))


# -- deletion -----------------------------------------------------------------------------------


def delete(tx: Tx, id: str) -> Run:
    """Delete a run that has ended. The caller removes its files."""
    run = sql.RUNS.get(tx, resolve_id(tx, id))
    _check_ended(run)
    outputs.delete_of_run(tx, run.id, "its run was deleted")
    for statement in (sql.DELETE_LAUNCH, sql.DELETE_SAMPLES, sql.DELETE):
        tx.run(statement, id=run.id)
    tx.emit("run", "delete", run.id, project_id=run.project_id)
    return run


def delete_output(tx: Tx, id: str, reason: str) -> Output:
    """Delete the output and log of a run that has ended: a supervisor needs the directory."""
    run = tx.first(sql.RUNS.by_key_for_update, key_=check_text(id, "The run", max_bytes=MAX_NAME))
    if run is not None:
        _check_ended(run)
    return outputs.delete(tx, id, reason)


def _check_ended(run: Run) -> None:
    if run.state in LIVE:
        raise Conflict(
            f"{run.id} is {run.state}. Stop it first with `corral stop {run.id}`.",
            id=run.id,
            state=run.state,
            reason="run_active",
        )
