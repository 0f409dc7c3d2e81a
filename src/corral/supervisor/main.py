"""The main function of a supervisor process: read the order, start the run, report, supervise."""

import gc
import os
import signal
import sys
from contextlib import suppress
from typing import Any

import msgspec

from corral.adapters import supervisor_process
from corral.adapters.processes import process_marks
from corral.adapters.redaction import redact_value
from corral.api import Corral, open_for_caller, open_service

# Preloaded: these take most of the start-up time, and the run's spec has not arrived yet.
from corral.api import runs as runs
from corral.api import settings as settings
from corral.config import make_private_folder, run_folder, write_private_file
from corral.domain.runs import outcome
from corral.domain.runs.model import Diagnosis, Launch, Run, RunState
from corral.kernel.errors import Conflict, CorralError, NoRoom, StoreUnavailable
from corral.services.runs import request as request
from corral.supervisor.child import CannotStart
from corral.supervisor.launch_plan import LaunchPlan
from corral.supervisor.supervisor import Supervisor


class StartOrder(msgspec.Struct):
    """The order that the caller sends: which run to supervise, and how."""

    store: str | None
    run: str = ""
    request: dict[str, Any] | None = None
    """Instead of `run`: the request for a new run, which the supervisor itself queues."""
    caller: dict[str, str] = {}
    """With `request`: the environment variables that identify the caller."""
    use_stdin: bool = False
    watched: bool = False
    """Whether the caller is about to attach: terminal output is not read before that."""
    split: bool = False
    """Whether standard error goes to a file of its own."""
    adopt: bool = False
    """Whether to take over a run whose supervisor is gone."""
    fence: int | None = None
    """With `adopt`: the fence that the caller saw. Another fence means that it came second."""
    diagnosis: Diagnosis | None = None
    """With `adopt`: the transition to record if the agent left no exit status."""
    size: tuple[int, int] = (24, 80)
    """Rows and columns of the terminal."""


class Termination:
    """Handles SIGTERM by interrupting the run.

    The signal may arrive before the supervisor exists. The default action would kill the process
    and leave the agent without a supervisor.
    """

    def __init__(self) -> None:
        self._arrived = False
        self._supervisor: Supervisor | None = None
        signal.signal(signal.SIGTERM, self._handle)

    def set_supervisor(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        if self._arrived:
            supervisor.interrupt()

    def _handle(self, *_: object) -> None:
        self._arrived = True
        if self._supervisor is not None:
            self._supervisor.interrupt()


def main() -> int:
    order_fd, answer_fd, stdin = (int(argument) for argument in sys.argv[1:4])
    gc.freeze()  # imported modules stay; forked guards then share their pages for longer
    gc.enable()
    message = supervisor_process.read_message(order_fd)
    if message is None:
        return 0  # the caller does not need a supervisor after all
    order = msgspec.convert(message, StartOrder)
    _detach_from_caller()
    if stdin >= 0 and not order.use_stdin:
        os.close(stdin)
    try:
        store = _open_store(order)
    except Exception as error:
        if order.request is None:
            raise
        supervisor_process.write_message(answer_fd, {"refused": _encode_error(error)})
        return 0
    store.release_connections_early()  # there may be hundreds of supervisors
    with store:
        termination = Termination()
        supervisor, answer = _start(store, order, stdin if order.use_stdin else None)
        if supervisor is not None:
            termination.set_supervisor(supervisor)
        supervisor_process.write_message(answer_fd, answer | {"run": order.run})
        if supervisor is not None:
            _supervise(store, supervisor)
        # Unavailable: the next recovery cleans up and starts the queued runs.
        with suppress(StoreUnavailable):
            if "failed" in answer:
                store.internal.runs.clean_up(store.runs.get(order.run))
            # A slot that became free while this run was claimed may not have been given to
            # another run.
            store.internal.runs.drain_queue()
    return 0


def _detach_from_caller() -> None:
    process_marks.leave_run()  # the caller may be a process of another run
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # SIG_IGN for SIGCHLD is inherited from the caller; a supervisor waits for its children.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _open_store(order: StartOrder) -> Corral:
    """Open the store. With a `request`, queue the run first, under the identity of the caller."""
    if order.request is None:
        return open_service(order.store, actor="supervisor")
    store = open_for_caller(order.store, order.caller)
    try:
        order.run = store.runs.start(**order.request, claimed=True).id
    except BaseException:
        store.close()
        raise
    return store.as_service("supervisor")


def _encode_error(error: Exception) -> dict[str, Any]:
    """Return an error as the caller decodes it; see `kernel.errors.error_from_code`."""
    if isinstance(error, CorralError):
        details = msgspec.to_builtins(error.details, enc_hook=str)
        return {"code": error.code, "message": error.message, "details": details}
    message = f"Internal error in Corral ({type(error).__name__}: {error}). Please report it."
    return {"code": "internal", "message": message, "details": {}}


def _start(
    store: Corral, order: StartOrder, stdin: int | None
) -> tuple[Supervisor | None, dict[str, Any]]:
    """Start or adopt the run, and return the answer for the caller.

    Keys of the answer: `pid`: the agent runs. `waits`: no slot is free, the run stays queued.
    `taken`: another supervisor has the run, or it was stopped. `failed`: the run did not start.
    The store has the reason, unless `code` says that it is unavailable: the run then stays queued
    and is started later.
    """
    try:
        run = store.runs.get(order.run)
        if _is_too_late(run, order):
            return None, {"taken": f"{run.id} is {run.state}: another supervisor has or had it"}
        supervisor = Supervisor(store, run, *_prepare(store, run, order, stdin))
        if order.adopt:
            supervisor.adopt(order.diagnosis)
        else:
            supervisor.start(watched=order.watched)
        return supervisor, {"pid": supervisor.run.pid}
    except OSError as error:
        # Out of processes, descriptors, memory or disk space.
        reason = f"Cannot start the run: {error.strerror or type(error).__name__}."
        _fail(store, order, reason)
        return None, {"failed": reason, "exit_code": 126}
    except StoreUnavailable as error:
        return None, {"failed": error.message, "exit_code": 5, "code": error.code}
    except CannotStart as error:
        _fail(store, order, error.reason)
        return None, {"failed": error.reason, "exit_code": error.exit_code}
    except NoRoom as error:
        store.internal.runs.release_claim(order.run)
        return None, {"waits": error.message}
    except Conflict as error:
        return None, {"taken": error.message}
    except CorralError as error:
        if not order.adopt:
            _fail(store, order, error.message)
        return None, {"failed": error.message, "exit_code": 1, "code": error.code}


def _fail(store: Corral, order: StartOrder, reason: str) -> None:
    """Mark the run as failed.

    The store shortens a long reason. If storing it failed, the run would stay queued.
    """
    text = outcome.sanitize(reason) or "Cannot start the run."
    # Conflict: the run has started. The next recovery finds its process without a supervisor.
    with suppress(Conflict):
        store.internal.runs.fail(order.run, reason=text)


def _is_too_late(run: Run, order: StartOrder) -> bool:
    """Whether another supervisor was faster.

    This cheap check runs before any file is touched. The store decides a race that it misses.
    """
    if order.adopt:
        return order.fence is not None and run.fence != order.fence
    return run.state is not RunState.QUEUED


def _prepare(
    store: Corral, run: Run, order: StartOrder, stdin: int | None
) -> tuple[Launch, LaunchPlan]:
    launch = store.runs.get_launch(run.id)
    folder = run_folder(run.id)
    make_private_folder(folder)
    plan = LaunchPlan(
        store,
        run,
        launch,
        folder,
        stdin=stdin,
        split=order.split,
        size=order.size,
        secret=store.secrets.resolve_reference,
    )
    return launch, plan


def _supervise(store: Corral, supervisor: Supervisor) -> None:
    try:
        run = supervisor.supervise()
        store.internal.runs.clean_up(run, secrets=supervisor.secrets)
    except BaseException:
        # The output of a supervisor goes to /dev/null. The next recovery finds the run.
        import traceback

        text = redact_value(traceback.format_exc(), supervisor.secrets)
        write_private_file(supervisor.folder / "supervisor.error", text)
        raise
