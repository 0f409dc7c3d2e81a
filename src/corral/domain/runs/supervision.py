"""The supervisor's operations on its run: start, heartbeat, restart, park, requeue.

Each one carries the fence of the lease. A supervisor whose run was taken over is rejected.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from corral.db.transitions import transition
from corral.db.tx import Tx
from corral.domain.charges import budgets
from corral.domain.nodes import ops as nodes
from corral.domain.outputs import ops as outputs
from corral.domain.projects import ops as projects
from corral.domain.runs import dispatch, sql
from corral.domain.runs import ops as runs
from corral.domain.runs.denials import Denial
from corral.domain.runs.model import Attention, Dialog, ResourceSample, Run
from corral.domain.runs.outcome import MAX_REASON, compute_backoff_ms, sanitize
from corral.domain.runs.spec import SupervisedProcess
from corral.domain.settings import ops as settings
from corral.kernel.clock import SECOND
from corral.kernel.errors import Conflict, CorralError, IllegalMove, Invalid, NoRoom, NotFound
from corral.kernel.exit_status import ExitStatus
from corral.kernel.lease import lease_expiry, stale_fence_error
from corral.kernel.money import check_micros
from corral.kernel.validation import MAX_NAME, check_int, check_text, encode_json

LEASE_MS = 60 * SECOND
LEFTOVER_GRACE_MS = 2_000  # between SIGTERM and SIGKILL for processes that an agent left behind


def acquire(tx: Tx, id: str, process: SupervisedProcess, *, lease_ms: int | None = None) -> Run:
    """Take a queued run for a supervisor, with the identity of the process that becomes the agent.

    Of several supervisors exactly one succeeds; the others get IllegalMove and must exit. Raises
    NoRoom when no slot is free. `lease_ms` defaults to the setting `runs.lease_ms`.
    """
    # Before the read: a later supervisor must see the state that this one sets.
    tx.serialize("runs")
    run = sql.RUNS.get(tx, id)
    if not dispatch.count_free_slots(tx, host=process.host):
        raise NoRoom(
            "No slot is free: the limit runs.max_concurrent or the slots of this machine are used "
            "up.",
            id=id,
        )
    if run.agent_id is not None and not dispatch.has_agent_capacity(tx, run.agent_id):
        raise NoRoom("The agent's limit of concurrent runs (max_runs) is reached.", id=id)
    started = transition(
        tx,
        sql.RUNS,
        "start",
        id,
        expected_fence=run.fence,
        fence=run.fence + 1,
        attempts=run.attempts + 1,
        lease_until=_compute_lease_end(tx, lease_ms),
        seen_at=tx.now,
        started_at=run.started_at if run.started_at is not None else tx.now,
        attention=None,
        dialog=None,
        reason=None,
        event_data={"pid": process.pid, "host": process.host, "attempt": run.attempts + 1},
        **_to_process_columns(tx, process),
    )
    outputs.begin(tx, id, host=process.host, folder=process.folder, mode=started.mode)
    if started.project_id is not None:
        projects.touch(tx, started.project_id)
    budget = runs.get_launch(tx, id).budget_micros
    # Shared budgets cover agents only: the spending of a plain command cannot be measured.
    if started.provider != "plain" or started.agent_id is not None or budget is not None:
        budgets.reserve_budget(
            tx,
            id,
            project_id=started.project_id,
            agent_id=started.agent_id,
            budget_micros=budget,
        )
    return started


def _compute_lease_end(tx: Tx, lease_ms: int | None) -> int:
    duration = settings.get_value(tx, "runs.lease_ms") if lease_ms is None else lease_ms
    return lease_expiry(tx.now, duration)


def _to_process_columns(tx: Tx, process: SupervisedProcess) -> dict[str, Any]:
    """Return the columns of the run; the folder belongs to the row of the output."""
    columns: dict[str, Any] = msgspec.to_builtins(process)
    del columns["folder"]
    node = nodes.daemon_of(tx, process.host)
    return columns | {"node_id": node.id if node is not None else None}


def launch(tx: Tx, run: Run) -> Run:
    """Record that the agent's program was executed."""
    return transition(tx, sql.RUNS, "launch", run.id, expected_fence=run.fence, seen_at=tx.now)


def restart(
    tx: Tx, run: Run, process: SupervisedProcess, exit_status: ExitStatus, *, quick_failures: int
) -> Run:
    """Begin another attempt of the same run, after the last one ended with `exit_status`.

    The fence is incremented, so that late writes about the last attempt are rejected.
    """
    return transition(
        tx,
        sql.RUNS,
        "restart",
        run.id,
        expected_fence=run.fence,
        fence=run.fence + 1,
        attempts=run.attempts + 1,
        quick_failures=quick_failures,
        pid=process.pid,
        start_token=process.start_token,
        seen_at=tx.now,
        attention=None,
        dialog=None,
        event_data={
            "attempt": run.attempts + 1,
            "pid": process.pid,
            "after": {"exit_code": exit_status.exit_code, "signal": exit_status.signal},
        },
    )


def heartbeat(
    tx: Tx,
    run: Run,
    *,
    output_bytes: int,
    cpu_ms: int | None = None,
    peak_bytes: int | None = None,
    lease_ms: int = LEASE_MS,
) -> Run:
    """Renew the supervisor's lease. The returned state says whether the run is to be stopped.

    Raises Held when another supervisor took the run over or a recovery ended it. It writes no
    event.
    """
    renewed = tx.first(
        sql.HEARTBEAT,
        id=run.id,
        fence=run.fence,
        now=tx.now,
        until=lease_expiry(tx.now, lease_ms),
        output_bytes=check_int(output_bytes, "The output's size"),
        cpu_ms=cpu_ms,
        peak_bytes=peak_bytes,
    )
    if renewed is None:
        raise _stale_error(tx, run)
    return renewed


def take_over(tx: Tx, run: Run, *, owner: str, supervisor_pid: int, supervisor_token: str) -> Run:
    """Take over a run whose process outlived its supervisor, for a new supervisor."""
    taken = tx.first(
        sql.TAKE_OVER,
        id=run.id,
        fence=run.fence,
        owner=check_text(owner, "The owner", max_bytes=MAX_NAME),
        supervisor_pid=supervisor_pid,
        supervisor_token=supervisor_token,
        now=tx.now,
        until=_compute_lease_end(tx, None),
    )
    if taken is None:
        raise _stale_error(tx, run)
    tx.emit(
        "run", "take_over", run.id, project_id=run.project_id, data={"supervisor": supervisor_pid}
    )
    return taken


def _stale_error(tx: Tx, run: Run) -> CorralError:
    """Return the error of a supervisor whose write matched no row."""
    current = sql.RUNS.get(tx, run.id)
    if current.fence == run.fence:
        return Conflict(f"{run.id} is {current.state}.", id=run.id, state=current.state)
    return stale_fence_error(run.id, yours=run.fence, current=current.fence, owner=current.owner)


def set_attention(
    tx: Tx, run: Run, attention: Attention | None, *, dialog: Dialog | None = None
) -> Run:
    """Set or clear the reason why a run needs a person, with the question that it asks.

    Idempotent: setting the same attention and dialog again changes nothing and sends no alert.
    """
    changed = tx.first(
        sql.SET_ATTENTION,
        id=run.id,
        fence=run.fence,
        attention=attention,
        dialog=None if dialog is None else encode_json(dialog, "The dialog"),
        now=tx.now,
    )
    if changed is None:
        current = sql.RUNS.get(tx, run.id)
        if current.fence != run.fence:
            raise _stale_error(tx, run)
        return current
    tx.emit(
        "run",
        "set_attention" if attention else "clear_attention",
        run.id,
        project_id=run.project_id,
        data=_build_attention_data(attention, dialog),
    )
    if attention in (Attention.NEEDS_INPUT, Attention.STUCK):
        runs.raise_alert(tx, changed, attention, tx.now)
    return changed


def _build_attention_data(
    attention: Attention | None, dialog: Dialog | None
) -> dict[str, Any] | None:
    if attention is None:
        return None
    data: dict[str, Any] = {"attention": attention}
    return data if dialog is None else data | {"question": dialog.question}


def update_details(
    tx: Tx,
    run: Run,
    *,
    model: str | None = None,
    provider_version: str | None = None,
    tokens: int | None = None,
    cost_micros: int | None = None,
    screen_rows: int | None = None,
    screen_columns: int | None = None,
) -> Run:
    """Update what the agent reports and the size of its terminal; None leaves a value unchanged.

    Raises Held when the run was taken over or has ended.
    """
    updated = tx.first(
        sql.SET_DETAILS,
        id=run.id,
        fence=run.fence,
        model=_sanitize(tx, model),
        provider_version=_sanitize(tx, provider_version),
        tokens=None if tokens is None else _check_tokens(tokens),
        cost_micros=None if cost_micros is None else check_micros(cost_micros, "The cost"),
        screen_rows=None if screen_rows is None else check_int(screen_rows, "The rows"),
        screen_columns=None if screen_columns is None else check_int(screen_columns, "The columns"),
    )
    if updated is None:
        raise _stale_error(tx, run)
    return updated


def record_denials(tx: Tx, run: Run, counts: Mapping[str, int]) -> Run:
    """Record how often each tool was denied in the current attempt.

    Idempotent: the counts replace those of the same attempt. Raises Held when the run was taken
    over or has ended.
    """
    current = sql.RUNS.get_for_update(tx, run.id)
    runs.check_fence(current, run)
    denials = [denial for denial in current.denials or [] if denial.attempt != run.attempts]
    for tool, count in counts.items():
        name = _sanitize(tx, tool) or "?"
        denials.append(Denial(run.attempts, name, check_int(count, "The number of denials")))
    changed = tx.one(
        sql.SET_DENIALS, id=run.id, denials=encode_json(msgspec.to_builtins(denials), "The denials")
    )
    tx.emit(
        "run", "record_denials", run.id, project_id=run.project_id, data={"denied": changed.denied}
    )
    return changed


def link_session(tx: Tx, run: Run, session_id: str) -> Run:
    """Link a run to the session that its CLI has recorded. Idempotent.

    Raises Held when the run was taken over or has ended.
    """
    current = sql.RUNS.get_for_update(tx, run.id)
    runs.check_fence(current, run)
    if current.session_id == session_id:
        return current
    linked = tx.one(
        sql.LINK_SESSION,
        id=run.id,
        session_id=check_text(session_id, "The session", max_bytes=MAX_NAME),
    )
    tx.emit("run", "link_session", run.id, project_id=run.project_id, data={"session": session_id})
    return linked


def _sanitize(tx: Tx, text: str | None) -> str | None:
    """Return an agent's text in a form that can be stored, with at most MAX_NAME characters."""
    clean = sanitize(text)
    return None if clean is None else tx.shorten_for_storage(clean, MAX_NAME)


def _check_tokens(tokens: int) -> int:
    if check_int(tokens, "The number of tokens") < 0:
        raise Invalid(f"Invalid token count {tokens}: it must not be negative.")
    return tokens


def record_environment(tx: Tx, run: Run, environment: Mapping[str, Any]) -> None:
    """Record the environment of a run: commit, branch, versions, variables.

    Raises Held when the run was taken over or has ended.
    """
    changed = tx.run(
        sql.SET_ENVIRONMENT,
        run_id=run.id,
        fence=run.fence,
        environment=encode_json(environment, "The environment's record"),
    )
    if not changed:
        runs.check_fence(sql.RUNS.get(tx, run.id), run)


def add_sample(tx: Tx, run: Run, sample: ResourceSample) -> None:
    """Add a sample of the resource usage of a run's process tree. Idempotent by time.

    Raises Held when the run was taken over or has ended.
    """
    values = msgspec.structs.asdict(sample)
    if not tx.run(sql.ADD_SAMPLE, run_id=run.id, fence=run.fence, **values):
        # Either the time has a sample already, or the fence is stale.
        runs.check_fence(sql.RUNS.get(tx, run.id), run)


def park(tx: Tx, run: Run, *, until: int, reason: str) -> Run:
    """Requeue a run until its provider's quota resets; it resumes the same conversation then."""
    return _requeue(
        tx,
        run,
        _sanitize(tx, reason),
        {"until": until},
        due_at=max(until, tx.now),
        attention=Attention.PARKED,
        dialog=None,
        attention_at=tx.now,
    )


def retry(
    tx: Tx, run: Run, exit_status: ExitStatus, *, reason: str | None, quick_failures: int
) -> Run:
    """Requeue a run whose supervisor died with its agent, for the next attempt after a back-off.

    The host is kept, because the output is there.
    """
    if reason is not None:
        reason = tx.shorten_for_storage(reason, MAX_REASON)
    return _requeue(
        tx,
        run,
        reason,
        {
            "after": {"exit_code": exit_status.exit_code, "signal": exit_status.signal},
            "reason": reason,
        },
        due_at=tx.now + compute_backoff_ms(quick_failures),
        quick_failures=quick_failures,
        attention=None,
        dialog=None,
    )


def requeue(tx: Tx, run: Run, *, reason: str) -> Run:
    """Requeue a run whose machine went silent, so that another machine can start it.

    A run that is pinned to that machine waits until the machine comes back. Its output is
    unavailable until then.
    """
    with suppress(NotFound, IllegalMove):  # it has no output, or that is lost already
        outputs.mark_lost(tx, run.id, reason)
    return _requeue(
        tx,
        run,
        reason,
        {"reason": reason},
        due_at=tx.now,
        host=runs.get_launch(tx, run.id).host,
        node_id=None,
    )


def _requeue(
    tx: Tx, run: Run, reason: str | None, event_data: dict[str, Any], **columns: Any
) -> Run:
    """Return a run to the queue without a lease; the new fence rejects the old supervisor."""
    return transition(
        tx,
        sql.RUNS,
        "requeue",
        run.id,
        expected_fence=run.fence,
        fence=run.fence + 1,
        lease_until=None,
        reason=reason,
        event_data=event_data,
        **columns,
    )
