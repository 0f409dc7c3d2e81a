"""Operations of `store.runs`."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict, Unpack

from corral.api.operation import Resource, operation, read, write
from corral.api.policy import Location
from corral.domain.runs import dispatch as runs_dispatch
from corral.domain.runs import ops, supervision
from corral.domain.runs.model import RecoveryResult, Run, RunState
from corral.services.runs import dispatch, lifecycle
from corral.services.runs.model import SentInput
from corral.services.runs.recovery import recover_all

if TYPE_CHECKING:
    from corral.services.runs.request import RunRequest

POLL_SECONDS = 0.2


class RunOptions(TypedDict, total=False):
    """The options of `Runs.start` and `Runs.resume`; see `services.runs.request.RunRequest`."""

    prompt: str | None
    command: Sequence[str] | None
    agent: str | None
    project: str | None
    dir: str | None
    session: str | None
    name: str | None
    timeout_ms: int | None
    idle_ms: int | None
    grace_period_ms: int | None
    max_restarts: int | None
    env: Mapping[str, str]
    secrets: Mapping[str, str]
    budget_micros: int | None
    max_output_bytes: int | None
    approvals: Sequence[str]
    sandbox: str | None
    terminal: bool | None
    watched: bool
    acp: bool
    host: str | None
    labels: Sequence[str]
    claimed: bool
    remote: bool


def _build_request(options: RunOptions) -> "RunRequest":
    """Return the request of a caller, which may not set the fields that only Corral sets."""
    from corral.services.runs.request import RunRequest

    if unknown := options.keys() - RunOptions.__annotations__.keys():
        raise TypeError(f"Unknown options of a run: {', '.join(sorted(unknown))}.")
    return RunRequest(**options)


def _poll_for_start(runs: "Runs", id: str, *, given_up: Callable[[], bool] | None = None) -> Run:
    """`Runs.wait_for_start` over HTTP."""
    while True:
        run = runs.get(id)
        if run.state is not RunState.QUEUED or (given_up is not None and given_up()):
            return run
        time.sleep(POLL_SECONDS)


class Runs(Resource):
    """Runs: processes of agents or of plain commands, from the queue to their end.

    `start` queues a run. `start_queued` starts it under a supervisor process, which records how it
    ended. A run is shown as live only if its process was identified or its lease has not expired.
    """

    noun = "run"
    subjects = ("run", "id")

    get = read(ops.get)
    by_pid = read(ops.find_by_pid, mode="one")
    list = read(ops.list_runs)
    list_with_dialogs = read(ops.list_with_dialogs, mode="one")
    get_launch = read(ops.get_launch)
    samples = read(ops.list_samples)
    finish = write(ops.finish, repeatable=True)
    lose = write(ops.mark_lost, repeatable=True)
    record_denials = write(supervision.record_denials, repeatable=True, people_only=True)
    link_session = write(supervision.link_session, repeatable=True, people_only=True)
    next_due = read(runs_dispatch.get_next_due, mode="one")

    # -- starting --------------------------------------------------------------------------------

    @operation(
        local_arguments={
            "claimed": "a run in the foreground needs the terminal of the machine of the store",
            "remote": "the server sets it",
        },
        server_arguments={"remote": True},
        paths=("dir",),
        location=Location("project", required=False),
    )
    def start(self, **options: Unpack[RunOptions]) -> Run:
        """Queue a run of an agent with a prompt, or of a command.

        One transaction registers the project, opens the session, records the prompt as its first
        turn and queues the run. The run stays queued until a supervisor takes it; see
        `start_queued`. Raises NotFound for an unknown agent, session or project, Refused when its
        program is missing or its budget cannot be enforced, and Invalid for contradicting options.
        """
        from corral.services.runs import request

        return self._database.write(
            lambda tx: request.request_run(
                tx, _build_request(options), caller_run=self._executor.caller.run
            )
        )

    @operation(
        local_arguments={
            "claimed": "a run in the foreground needs the terminal of the machine of the store",
            "remote": "the server sets it",
        },
        server_arguments={"remote": True},
        paths=("dir",),
        location=Location("project", required=False),
    )
    def resume(self, id: str, **options: Unpack[RunOptions]) -> Run:
        """Queue a run that continues a run or a session, with its agent, conversation and limits.

        Options that are given replace those of the earlier run. The working directory must still
        exist. Raises Conflict while the earlier run is live.
        """
        from corral.services.runs import resumption

        return self._database.write(
            lambda tx: resumption.resume_run(
                tx, id, _build_request(options), caller_run=self._executor.caller.run
            )
        )

    @operation(slow=True)
    def start_queued(self) -> Sequence[Run]:
        """Start queued runs on this machine while there are free slots; returns those that started.

        Any process may call it at any time. A run that cannot be started ends as failed and does
        not block the others. A run without a required machine is left to one that has its
        directory.
        """
        return dispatch.start_queued(self._database)

    @operation(streamed="GET /api/runs/ID, repeatedly", remote=_poll_for_start)
    def wait_for_start(self, id: str, *, given_up: Callable[[], bool] | None = None) -> Run:
        """Wait until a supervisor has taken a queued run, or `given_up()` is true."""
        return lifecycle.wait_for_start(self._database, id, given_up=given_up)

    @operation(local="it identifies a process of the machine that calls it")
    def record(
        self,
        *,
        pid: int,
        project: str | None = None,
        command: str | None = None,
        args: Sequence[str] = (),
        cwd: str | None = None,
    ) -> Run:
        """Track a process of this machine that Corral did not start.

        The identity of the process (pid, start time, boot) is read now, so a reused pid is never
        mistaken for it. Raises NotFound when there is no such process.
        """
        return lifecycle.record_process(
            self._database, pid=pid, project=project, command=command, args=args, cwd=cwd
        )

    # -- while it runs ---------------------------------------------------------------------------

    @operation(slow=True, in_run="send_input")
    def send(
        self, id: str, text: str, *, enter: bool = True, dialog: str | None = None
    ) -> SentInput:
        """Send text to a run: an answer to its open dialog, otherwise its next prompt.

        While the run asks something, only an option of its dialog is accepted: the number, the
        label, or a plain yes or no; otherwise raises Invalid with the options. With `dialog`, the
        text answers only the dialog with that id; otherwise raises Conflict. Text for an agent CLI
        at a terminal is typed, submitted, and confirmed on its screen; raises Conflict when the
        CLI did not accept it. A run without input gets a letter in its session's mailbox.
        """
        from corral.services.runs.input import send_input

        return send_input(self._database, id, text, enter=enter, dialog=dialog)

    @operation(reads=True)
    def takes_input(self, run: Run) -> bool:
        """Return whether a run reads its standard input: it was started without a prompt."""
        return self.get_launch(run.id).prompt is None

    @operation(slow=True)
    def stop(self, id: str, *, reason: str = "stopped", grace_period_ms: int | None = None) -> Run:
        """Ask a run to stop and return at once; `wait` returns how it ended. Idempotent.

        The supervisor signals the whole process tree: SIGTERM, then SIGKILL after the grace period.
        A queued run is cancelled.
        """
        return lifecycle.stop_run(
            self._database, id, reason=reason, grace_period_ms=grace_period_ms
        )

    @operation(
        reads=True,
        waits="timeout_ms",
        local_arguments={"upkeep": "the daemon does that work"},
        server_arguments={"upkeep": False},
    )
    def wait(self, id: str, *, timeout_ms: int | None = None, upkeep: bool = True) -> Run:
        """Wait until a run has ended and return it; raises NotYet after `timeout_ms`.

        With `upkeep`, a dead supervisor is detected and queued runs are started meanwhile.
        """
        return lifecycle.wait_for_run(self._database, id, timeout_ms=timeout_ms, upkeep=upkeep)

    @operation()
    def refresh(self, run: Run) -> Run:
        """Return the current state of a run, after checking that its supervisor is alive."""
        return lifecycle.refresh(self._database, run)

    @operation(slow=True)
    def recover(self) -> Sequence[RecoveryResult]:
        """Find runs whose process or supervisor is gone, and record what happened to them.

        Safe at any time and from several processes at once. Signals only processes whose identity
        is proven. Returns the runs that changed, each with the reason.
        """
        return recover_all(self._database)

    # -- after the end ---------------------------------------------------------------------------

    @operation(people_only=True)
    def delete(self, id: str) -> Run:
        """Delete a finished run with its output and files; raises Conflict while it is live."""
        return lifecycle.delete_run(self._database, id)

    @operation(slow=True, people_only=True)
    def delete_all(self, *, project: str) -> int:
        """Delete all runs of a project; returns their number. Raises Conflict while one is live."""
        return lifecycle.delete_runs_of_project(self._database, project)
