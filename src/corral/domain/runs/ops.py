"""Asking for runs, keeping them, and saying how they ended."""

from collections.abc import Sequence

from corral.db.retention import EVERYBODY, Whose
from corral.db.transitions import create, move
from corral.db.tx import Tx
from corral.domain.charges import ops as charges
from corral.domain.outputs import ops as outputs
from corral.domain.outputs.model import Output
from corral.domain.projects import ops as projects
from corral.domain.runs import outcome, sql
from corral.domain.runs.dispatch import CLAIM_MS
from corral.domain.runs.model import LIVE, Launch, Mode, Run, RunState, Sample, Stop
from corral.domain.runs.spec import MAX_ARGS, Order, check_order
from corral.kernel.errors import Conflict, Invalid, NotFound
from corral.kernel.exit_status import End
from corral.kernel.lease import taken_over
from corral.kernel.pagination import LAST_ID, Page, check_limit, decode_cursor, page_of
from corral.kernel.text import MAX_NAME, abridged, check_int, clean_text, encode_json

MAX_REASON_BYTES = 4 * outcome.MAX_REASON


def request(tx: Tx, order: Order) -> Run:
    """Ask for a run. It is queued, and starts when a keeper takes it."""
    check_order(order)
    if order.name is not None and (same := _live_named(tx, order.name)) is not None:
        raise Conflict(
            f"{same.id} is named {order.name!r} and is {same.state}; give another name.",
            id=same.id,
            name=order.name,
        )
    run = create(
        tx,
        sql.RUNS,
        {
            "id": tx.new_id("run"),
            "name": order.name,
            "title": order.title,
            "project_id": order.project_id,
            "session_id": order.session_id,
            "agent_id": order.agent_id,
            "agent_version": order.agent_version,
            "parent_id": order.parent_id,
            "provider": order.provider,
            "mode": order.mode,
            "command": order.command,
            "args": encode_json(list(order.args), "The arguments", most=MAX_ARGS),
            "cwd": order.cwd,
            "host": order.host,
            "fence": 0,
            "attempts": 0,
            "quick_failures": 0,
            "due_at": tx.now if order.due_at is None else order.due_at,
            "output_bytes": 0,
            "lease_until": tx.now + CLAIM_MS if order.claimed else None,
            "created_at": tx.now,
        },
        note={"command": order.command, "cwd": order.cwd},
    )
    assert run is not None
    tx.run(
        sql.ADD_LAUNCH,
        run_id=run.id,
        host=order.host,
        labels=encode_json(sorted({*order.labels}), "The labels"),
        prompt=order.prompt,
        resume_session=order.resume_session,
        env=encode_json(order.env, "The environment"),
        secrets=encode_json(order.secrets, "The secrets"),
        approvals=encode_json(list(order.approvals), "The approvals"),
        raw=int(order.raw),
        interactive=int(order.interactive),
        timeout_ms=order.timeout_ms,
        idle_ms=order.idle_ms,
        grace_ms=order.grace_ms,
        restarts=order.restarts,
        budget_micros=order.budget_micros,
        output_cap=order.output_cap,
        sandbox=order.sandbox,
        environment="{}",
    )
    return run


def _live_named(tx: Tx, name: str) -> Run | None:
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
    """Take a process into the record that Corral did not start."""
    run = request(
        tx,
        Order(command=command, args=args, cwd=cwd, project_id=project_id, mode=Mode.RECORDED),
    )
    adopted = move(
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


# -- ends --------------------------------------------------------------------------------------
# What an end is called depends on whether somebody stopped the run; so each of these holds its row.


def stop(tx: Tx, id: str, *, reason: str | None = None, kind: Stop = Stop.ASKED) -> Run:
    """Ask a run to end: a queued one is cancelled at once, another one's keeper sees to it.

    Of several who want it to end, the first one's reason stands.
    """
    found = sql.RUNS.hold(tx, resolve(tx, id))
    given = outcome.REASONS[kind] if reason is None else reason
    why = clean_text(given, "The reason", most=MAX_REASON_BYTES)
    if found.state is RunState.QUEUED:
        return _close(tx, found, "cancel", End(reason=why))
    if found.state is RunState.STOPPING:
        return found
    return move(
        tx, sql.RUNS, "stop", found.id, stop_kind=kind, stop_reason=why, note={"reason": why}
    )


def end(tx: Tx, run: Run, how: End, *, output_bytes: int | None = None) -> Run:
    """A run is over. The first end stands: a second one changes nothing.

    Held when the run was taken over since: what a late keeper says of it counts no more.
    """
    found = sql.RUNS.hold(tx, run.id)
    if not found.is_live:
        return found
    if found.fence != run.fence:
        raise taken_over(run.id, yours=run.fence, found=found.fence, owner=found.owner)
    verb = outcome.verb_of(how, found.stop_kind)
    return _close(tx, found, verb, how, output_bytes=output_bytes)


def finish(tx: Tx, id: str, *, exit_code: int) -> Run:
    """Say how a recorded process ended: 0 completed, else failed. The first end stands."""
    found = sql.RUNS.hold(tx, resolve(tx, id))
    if not found.is_live:
        return found
    how = End(exit_code=check_int(exit_code, "The exit code"))
    return _close(tx, found, outcome.verb_of(how, found.stop_kind), how)


def fail(tx: Tx, id: str, *, reason: str) -> Run:
    """Record that a run failed: one that is queued and can never be started, or a process that
    Corral only records. The first end stands: a run that is over is returned as it is. A reason
    that is too long is cut: the sentence of an error must not leave the run queued for ever.

    Raises Conflict when a supervisor has the run: its process may still run and must be stopped.
    """
    found = sql.RUNS.hold(tx, resolve(tx, id))
    if not found.is_live:
        return found
    if found.state is not RunState.QUEUED and found.mode is not Mode.RECORDED:
        raise Conflict(
            f"{found.id} is {found.state} and has a supervisor. Stop it with "
            f"`corral stop {found.id}`.",
            id=found.id,
            state=found.state,
            reason="run_active",
        )
    return _close(tx, found, "fail", End(reason=_whole_reason(reason)))


def _whole_reason(reason: str) -> str:
    """The sentence of an error has no limit; a run must not stay queued for that."""
    return clean_text(abridged(reason, outcome.MAX_REASON), "The reason", most=MAX_REASON_BYTES)


def lose(tx: Tx, id: str, *, reason: str = "gone") -> Run:
    """Say that a run's process vanished. The first end stands, and its exit code with it."""
    found = sql.RUNS.hold(tx, resolve(tx, id))
    if not found.is_live:
        return found
    how = End(reason=_whole_reason(reason))
    verb = "cancel" if found.state is RunState.QUEUED else outcome.verb_of(how, found.stop_kind)
    return _close(tx, found, verb, how)


def give_up(
    tx: Tx,
    run: Run,
    *,
    verb: str,
    reason: str,
    survivors: tuple[int, ...] = (),
    unsure: bool = False,
) -> Run:
    """End a run whose supervisor is gone, as a recovery has proven; raises Held when it is not.
    `survivors` are its processes that could not be ended; `unsure`: there may be some."""
    found = sql.RUNS.hold(tx, run.id)
    if not found.is_live:
        return found
    if found.fence != run.fence:
        raise taken_over(run.id, yours=run.fence, found=found.fence, owner=found.owner)
    how = End(reason=reason, survivors=survivors, unsure=unsure)
    if found.stop_kind is not None or survivors:
        verb = outcome.verb_of(how, found.stop_kind)
    return _close(tx, found, verb, how)


def _close(tx: Tx, run: Run, verb: str, how: End, *, output_bytes: int | None = None) -> Run:
    reason = outcome.reason_of(how, run.stop_reason)
    ended = move(
        tx,
        sql.RUNS,
        verb,
        run.id,
        guard=run.fence,
        fence=run.fence + 1,  # whoever kept it is told by its next word
        exit_code=how.exit_code,
        signal=how.signal,
        reason=reason,
        ended_at=max(tx.now, run.started_at or run.created_at),  # a clock may have been set back
        lease_until=None,
        attention=None,
        dialog=None,
        output_bytes=run.output_bytes if output_bytes is None else output_bytes,
        cpu_ms=_larger(run.cpu_ms, how.cpu_ms),
        peak_bytes=_larger(run.peak_bytes, how.peak_bytes),
        note={"exit_code": how.exit_code, "signal": how.signal, "reason": reason},
    )
    charges.release(tx, run.id)
    alert(tx, ended, outcome.alert_of(ended.state, run.stop_kind), "end")
    return ended


def _larger(one: int | None, other: int | None) -> int | None:
    known = [value for value in (one, other) if value is not None]
    return max(known) if known else None


def alert(tx: Tx, run: Run, kind: str | None, edge: str | int) -> None:
    """Tell whoever wants to know; once per edge."""
    if kind is not None:
        from corral.domain.alerts import ops as alerts

        alerts.raise_alert(
            tx,
            kind,
            run.id,
            edge=edge,
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


# -- looking -----------------------------------------------------------------------------------


def resolve(tx: Tx, typed: str) -> str:
    """The whole id of a run that was named by its id, shortened or not, or by its name: the live
    run of that name, else the latest."""
    if typed.startswith("run_"):
        return sql.IDS.resolve(tx, typed)
    named = tx.all(sql.BY_NAME, name=clean_text(typed, "The run", most=MAX_NAME))
    if named:
        return next((run for run in named if run.is_live), named[0]).id
    try:
        return sql.IDS.resolve(tx, typed)
    except Invalid:
        raise NotFound(
            f"There is no run named {typed!r}; `corral ps -a` lists what there is.",
            kind="run",
            id=typed,
        ) from None


def get(tx: Tx, id: str) -> Run:
    """A run by its id, which may be shortened, or by its name."""
    return sql.RUNS.get(tx, resolve(tx, id))


def launch_of(tx: Tx, id: str) -> Launch:
    """What a run was started with."""
    found = tx.one(sql.LAUNCH, run_id=resolve(tx, id))
    if found is None:
        raise sql.RUNS.missing(id)
    return found


def by_pid(tx: Tx, pid: int) -> Run | None:
    """The newest run that has, or had, this pid."""
    return tx.one(sql.BY_PID, pid=check_int(pid, "The pid"))


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
    """Runs, newest first: all, of a project, a session or an agent, in a state, or not over.

    A project is given by its id, name or directory, an agent by its id or name, a session by its
    id; an id may be shortened.
    """
    if state is not None and state not in [*RunState]:
        raise Invalid(f"{state!r} is no state of a run; those are {', '.join(RunState)}.")
    wanted: dict[str, str] = {}
    if project is not None:
        wanted["project"] = projects.find_id(tx, project)
    if session is not None:
        from corral.domain.sessions import ops as sessions  # a supervisor lists no runs

        wanted["session"] = sessions.find_id(tx, session)
    if agent is not None:
        from corral.domain.agents import ops as agents

        wanted["agent"] = agents.find_id(tx, agent)
    if state is not None:
        wanted["state"] = state
    statement = sql.LISTS.get((*wanted, "live") if live else (*wanted,))
    if statement is None:
        raise Invalid(
            "Runs are listed by project and state, by session or by agent; leave the rest out."
        )
    (before,) = decode_cursor(after, LAST_ID)
    rows = tx.all(statement, before=before, limit=check_limit(limit) + 1, **wanted)
    return page_of(rows, limit, lambda run: (run.id,))


def asking(tx: Tx, *, limit: int = 50) -> list[Run]:
    """List the runs with an open dialog, newest first."""
    return tx.all(sql.ASKING, limit=check_limit(limit))


def active(tx: Tx, *, after: str = "", limit: int = 200) -> list[Run]:
    """Runs that are said to have a process, oldest first."""
    return tx.all(sql.ACTIVE, after=after, limit=check_limit(limit))


def samples(tx: Tx, id: str) -> list[Sample]:
    """What a run's process tree used over its time."""
    return tx.all(sql.SAMPLES, run_id=resolve(tx, id))


# -- forgetting --------------------------------------------------------------------------------


def delete(tx: Tx, id: str) -> Run:
    """Forget a run that is over. Its files are removed by the caller."""
    run = sql.RUNS.get(tx, resolve(tx, id))
    _check_over(run)
    outputs.erase(tx, run.id, "its run was deleted")
    for statement in (sql.DELETE_LAUNCH, sql.DELETE_SAMPLES, sql.DELETE):
        tx.run(statement, id=run.id)
    tx.note("run", "delete", run.id, project_id=run.project_id)
    return run


def delete_output(tx: Tx, id: str, reason: str) -> Output:
    """Delete what a run wrote, and its log, once it is over: its keeper needs the folder."""
    run = tx.one(sql.RUNS.held_by_key, key_=clean_text(id, "The run", most=MAX_NAME))
    if run is not None:
        _check_over(run)
    return outputs.delete(tx, id, reason)


def _check_over(run: Run) -> None:
    if run.state in LIVE:
        raise Conflict(
            f"{run.id} is {run.state}; stop it first (`corral stop {run.id}`).",
            id=run.id,
            state=run.state,
            reason="run_active",
        )


def ended_before(tx: Tx, *, before: int, limit: int = 200, whose: Whose = EVERYBODY) -> list[str]:
    """Runs whose end is longer ago than they are kept, by their ids."""
    found = sql.ENDED_BEFORE.run(tx, whose, before=before, limit=check_limit(limit))
    return [id for (id,) in found]


def count_ended_before(tx: Tx, *, before: int, whose: Whose = EVERYBODY) -> int:
    """How many those are."""
    return int(sql.COUNT_ENDED_BEFORE.value(tx, whose, before=before))
