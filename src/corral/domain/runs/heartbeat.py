"""What a keeper says of its run: that it takes it, that it goes on, that it begins anew or waits.

Whatever a keeper says carries the fence it was given; a keeper whose run was taken over is refused.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from corral.db.transitions import move
from corral.db.tx import Tx
from corral.domain.charges import ops as charges
from corral.domain.nodes import ops as nodes
from corral.domain.outputs import ops as outputs
from corral.domain.projects import ops as projects
from corral.domain.runs import dispatch, sql
from corral.domain.runs import ops as runs
from corral.domain.runs.model import Attention, Denial, Dialog, Run, Sample
from corral.domain.runs.outcome import pause_ms, storable
from corral.domain.runs.spec import Holding
from corral.domain.settings import ops as settings
from corral.kernel.clock import SECOND
from corral.kernel.errors import Conflict, IllegalMove, Invalid, NoRoom, NotFound
from corral.kernel.exit_status import End
from corral.kernel.lease import lease_end, taken_over
from corral.kernel.money import check_micros
from corral.kernel.text import MAX_NAME, check_int, clean_text, encode_json

LEASE_MS = 60 * SECOND


def start(tx: Tx, id: str, held: Holding, *, lease_ms: int | None = None) -> Run:
    """A keeper takes a queued run, with the identity of the process that will become the agent.

    Of several keepers exactly one succeeds; the others get IllegalMove and must not begin. The
    lease is as long as `runs.lease_ms` says, unless it is given.
    """
    found = sql.RUNS.get(tx, id)
    tx.serialize("runs")
    if not dispatch.room_for(tx, host=held.host):
        raise NoRoom(
            "As many runs are going as runs.max_at_once, or this machine's slots, allow.", id=id
        )
    if found.agent_id is not None and not dispatch.agent_has_room(tx, found.agent_id):
        raise NoRoom("Its agent has as many runs going as it may.", id=id)
    started = move(
        tx,
        sql.RUNS,
        "start",
        id,
        guard=found.fence,
        fence=found.fence + 1,
        attempts=found.attempts + 1,
        lease_until=_lease_end(tx, lease_ms),
        seen_at=tx.now,
        started_at=found.started_at if found.started_at is not None else tx.now,
        attention=None,
        dialog=None,
        reason=None,
        note={"pid": held.pid, "host": held.host, "attempt": found.attempts + 1},
        **_columns(tx, held),
    )
    outputs.begin(tx, id, host=held.host, folder=held.folder, mode=started.mode)
    if started.project_id is not None:
        projects.touch(tx, started.project_id)
    budget = runs.launch_of(tx, id).budget_micros
    # Shared budgets cover agents: what a plain command spends cannot be measured.
    if started.provider != "plain" or started.agent_id is not None or budget is not None:
        charges.reserve(
            tx,
            id,
            project_id=started.project_id,
            agent_id=started.agent_id,
            budget_micros=budget,
        )
    return started


def _lease_end(tx: Tx, lease_ms: int | None) -> int:
    lasts = settings.value(tx, "runs.lease_ms") if lease_ms is None else lease_ms
    return lease_end(tx.now, lasts)


def _columns(tx: Tx, held: Holding) -> dict[str, Any]:
    """What the row keeps of it; where the output is, its own row tells."""
    columns: dict[str, Any] = msgspec.to_builtins(held)
    del columns["folder"]
    node = nodes.serving(tx, held.host)
    return columns | {"node_id": node.id if node is not None else None}


def launch(tx: Tx, run: Run) -> Run:
    """The agent's program was executed."""
    return move(tx, sql.RUNS, "launch", run.id, guard=run.fence, seen_at=tx.now)


def restart(tx: Tx, run: Run, held: Holding, end: End, *, quick_failures: int) -> Run:
    """Another attempt of the same run, after the last one ended as `end` says.

    Its fence is a new one: whoever still thinks of the last attempt can say nothing of this one.
    """
    return move(
        tx,
        sql.RUNS,
        "restart",
        run.id,
        guard=run.fence,
        fence=run.fence + 1,
        attempts=run.attempts + 1,
        quick_failures=quick_failures,
        pid=held.pid,
        start_token=held.start_token,
        seen_at=tx.now,
        attention=None,
        dialog=None,
        note={
            "attempt": run.attempts + 1,
            "pid": held.pid,
            "after": {"exit_code": end.exit_code, "signal": end.signal},
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
    """Renew a keeper's lease; the answer tells whether the run is to be stopped.

    Held when another keeper took it over, or a recovery gave it up.
    """
    renewed = tx.one(
        sql.HEARTBEAT,
        id=run.id,
        fence=run.fence,
        now=tx.now,
        until=lease_end(tx.now, lease_ms),
        output_bytes=check_int(output_bytes, "The output's size"),
        cpu_ms=cpu_ms,
        peak_bytes=peak_bytes,
    )
    return renewed if renewed is not None else _refuse_late(tx, run)


def take_over(tx: Tx, run: Run, *, owner: str, keeper_pid: int, keeper_token: str) -> Run:
    """A new keeper for a run whose process lives on without one."""
    taken = tx.one(
        sql.TAKE_OVER,
        id=run.id,
        fence=run.fence,
        owner=clean_text(owner, "The owner", most=MAX_NAME),
        keeper_pid=keeper_pid,
        keeper_token=keeper_token,
        now=tx.now,
        until=_lease_end(tx, None),
    )
    if taken is None:
        return _refuse_late(tx, run)
    tx.note("run", "take_over", run.id, project_id=run.project_id, data={"keeper": keeper_pid})
    return taken


def _refuse_late(tx: Tx, run: Run) -> Run:
    found = sql.RUNS.get(tx, run.id)
    if found.fence == run.fence:
        raise Conflict(f"{run.id} is {found.state}.", id=run.id, state=found.state)
    raise taken_over(run.id, yours=run.fence, found=found.fence, owner=found.owner)


def call_for(tx: Tx, run: Run, attention: Attention | None, *, dialog: Dialog | None = None) -> Run:
    """Record that a run needs a person, with the question that it asks, or that it no longer does.

    Idempotent: the same attention and dialog again change nothing and cause no second alert.
    """
    changed = tx.one(
        sql.SET_ATTENTION,
        id=run.id,
        fence=run.fence,
        attention=attention,
        dialog=None if dialog is None else encode_json(dialog, "The dialog"),
        now=tx.now,
    )
    if changed is None:
        found = sql.RUNS.get(tx, run.id)
        return found if found.fence == run.fence else _refuse_late(tx, run)
    tx.note(
        "run",
        "call" if attention else "calm",
        run.id,
        project_id=run.project_id,
        data=_attention_data(attention, dialog),
    )
    if attention in (Attention.NEEDS_INPUT, Attention.STUCK):
        runs.alert(tx, changed, attention, tx.now)
    return changed


def _attention_data(attention: Attention | None, dialog: Dialog | None) -> dict[str, Any] | None:
    if attention is None:
        return None
    data: dict[str, Any] = {"attention": attention}
    return data if dialog is None else data | {"question": dialog.question}


def tell(
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
    """Record values of the agent's stream and its terminal's size; None leaves a value as it is."""
    told = tx.one(
        sql.SET_TOLD,
        id=run.id,
        model=storable(model),
        provider_version=storable(provider_version),
        tokens=None if tokens is None else _count(tokens),
        cost_micros=None if cost_micros is None else check_micros(cost_micros, "The cost"),
        screen_rows=None if screen_rows is None else check_int(screen_rows, "The rows"),
        screen_columns=None if screen_columns is None else check_int(screen_columns, "The columns"),
    )
    if told is None:
        raise sql.RUNS.missing(run.id)
    return told


def count_denials(tx: Tx, run: Run, counts: Mapping[str, int]) -> Run:
    """Record how often each tool was denied in the run's current attempt.

    Idempotent: the counts replace those of the same attempt.
    """
    found = sql.RUNS.hold(tx, run.id)
    kept = [denial for denial in found.denials or [] if denial.attempt != run.attempts]
    for tool, count in counts.items():
        name = storable(tool) or "?"
        kept.append(Denial(run.attempts, name, check_int(count, "The number of denials")))
    changed = tx.one(
        sql.SET_DENIALS, id=run.id, denials=encode_json(msgspec.to_builtins(kept), "The denials")
    )
    assert changed is not None
    tx.note("run", "deny", run.id, project_id=run.project_id, data={"denied": changed.denied})
    return changed


def link_session(tx: Tx, run: Run, session_id: str) -> Run:
    """Link a run with its session, once its CLI has recorded it. Idempotent."""
    found = sql.RUNS.hold(tx, run.id)
    if found.session_id == session_id:
        return found
    linked = tx.one(
        sql.LINK_SESSION,
        id=run.id,
        session_id=clean_text(session_id, "The session", most=MAX_NAME),
    )
    assert linked is not None
    tx.note("run", "link", run.id, project_id=run.project_id, data={"session": session_id})
    return linked


def _count(tokens: int) -> int:
    if check_int(tokens, "The number of tokens") < 0:
        raise Invalid(f"Nothing uses {tokens} tokens; leave it out when it is not known.")
    return tokens


def describe(tx: Tx, run: Run, environment: Mapping[str, Any]) -> None:
    """Write down what the run found where it runs: commit, branch, versions, variables."""
    tx.run(
        sql.DESCRIBE,
        run_id=run.id,
        environment=encode_json(environment, "The environment's record"),
    )


def add_sample(tx: Tx, run: Run, sample: Sample) -> None:
    """Keep what the run's process tree uses at a moment."""
    tx.run(sql.SAMPLE, run_id=run.id, **msgspec.structs.asdict(sample))


def park(tx: Tx, run: Run, *, until: int, reason: str) -> Run:
    """Let it wait for its provider's quota, and go on with the same conversation then."""
    return _back_in_line(
        tx,
        run,
        storable(reason),
        {"until": until},
        due_at=max(until, tx.now),
        attention=Attention.PARKED,
        dialog=None,
        attention_at=tx.now,
    )


def try_again(tx: Tx, run: Run, end: End, *, reason: str | None, quick_failures: int) -> Run:
    """Put a run back in line whose keeper died with its agent, for its next attempt: on the same
    machine, where its output is."""
    return _back_in_line(
        tx,
        run,
        reason,
        {"after": {"exit_code": end.exit_code, "signal": end.signal}, "reason": reason},
        due_at=tx.now + pause_ms(quick_failures),
        quick_failures=quick_failures,
        attention=None,
        dialog=None,
    )


def requeue(tx: Tx, run: Run, *, reason: str) -> Run:
    """Give a run back whose machine went silent, so that it is started again: by any other machine,
    or, where it must run on that one, by that one when it comes back.

    What it wrote there is lost to the others until then.
    """
    with suppress(NotFound, IllegalMove):  # there is none, or it is lost already
        outputs.lose(tx, run.id, reason)
    return _back_in_line(
        tx,
        run,
        reason,
        {"reason": reason},
        due_at=tx.now,
        host=runs.launch_of(tx, run.id).host,
        node_id=None,
    )


def _back_in_line(
    tx: Tx, run: Run, reason: str | None, note: dict[str, Any], **columns: Any
) -> Run:
    """Nobody holds it any more, and whoever did has no say in it."""
    return move(
        tx,
        sql.RUNS,
        "requeue",
        run.id,
        guard=run.fence,
        fence=run.fence + 1,
        lease_until=None,
        reason=reason,
        note=note,
        **columns,
    )
