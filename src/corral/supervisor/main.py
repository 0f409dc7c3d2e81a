"""A keeper's life: it hears what it is to keep, begins, tells how that went, and stays."""

import gc
import os
import signal
import sys
from contextlib import suppress
from typing import Any

import msgspec

from corral.adapters import run_marks, supervisor_process
from corral.adapters.redaction import clean_of_secrets
from corral.api import Corral, open_service
from corral.api import open as open_store

# Preloaded: these take most of the start-up time, and the run's spec has not arrived yet.
from corral.api import runs as runs
from corral.api import settings as settings
from corral.config import make_private_folder, run_folder, write_private_file
from corral.domain.runs import outcome
from corral.domain.runs.model import Launch, Run, RunState
from corral.kernel.errors import Conflict, CorralError, NoRoom, StoreUnavailable
from corral.services.runs import request as request
from corral.supervisor.child import CannotStart
from corral.supervisor.plan import Plan
from corral.supervisor.supervisor import Keeper


class Order(msgspec.Struct):
    """What a keeper is told."""

    store: str | None
    run: str = ""
    wish: dict[str, Any] | None = None
    """Instead of a run: what somebody wants to be run; see `asking.Wish`."""
    asker: dict[str, str] = {}
    """With a wish: the variables that tell who they are."""
    use_stdin: bool = False
    watched: bool = False
    """Whether somebody is about to watch: nothing is read before they do."""
    split: bool = False
    adopt: bool = False
    fence: int | None = None
    """With adopt: the fence that was seen; who comes second finds another one."""
    verdict: tuple[str, str] | None = None
    """Of a run whose agent is gone: the verb and the reason, unless its guard knew better."""
    size: tuple[int, int] = (24, 80)


class Termination:
    """Handles SIGTERM from now on: it interrupts the run, also when it arrives before the keeper
    exists. The default action would end the keeper and leave its agent without one."""

    def __init__(self) -> None:
        self._arrived = False
        self._keeper: Keeper | None = None
        signal.signal(signal.SIGTERM, self._handle)

    def set_keeper(self, keeper: Keeper) -> None:
        self._keeper = keeper
        if self._arrived:
            keeper.interrupt()

    def _handle(self, *_: object) -> None:
        self._arrived = True
        if self._keeper is not None:
            self._keeper.interrupt()


def main() -> int:
    order_at, answer_at, stdin = (int(argument) for argument in sys.argv[1:4])
    gc.freeze()  # what was loaded stays; guards then share it for longer
    gc.enable()
    told = supervisor_process.hear(order_at)
    if told is None:
        return 0
    order = msgspec.convert(told, Order)
    run_marks.leave_run()  # a process of another run may have started it
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Whoever started us may ignore its children, and that is inherited; a keeper waits for its own.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if stdin >= 0 and not order.use_stdin:
        os.close(stdin)
    try:
        store = _open(order)
    except Exception as error:
        if order.wish is None:
            raise
        supervisor_process.tell(answer_at, {"refused": _as_told(error)})
        return 0
    store.spare_connections()  # there may be hundreds of supervisors
    with store:
        termination = Termination()
        keeper, answer = _begin(store, order, stdin if order.use_stdin else None)
        if keeper is not None:
            termination.set_keeper(keeper)
        supervisor_process.tell(answer_at, answer | {"run": order.run})
        if keeper is not None:
            _keep(store, keeper)
        elif "failed" in answer:
            store.runs.after_end(store.runs.get(order.run))
        # Whoever made room while this run had its claim passed over it, or another one.
        store.runs.see_to_line()
    return 0


def _open(order: Order) -> Corral:
    """The store, with the run in it that is to be kept: where there is only a wish, it is asked for
    here, in the name of whoever wishes it."""
    if order.wish is None:
        return open_service(order.store, actor="keeper")
    os.environ.update(order.asker)
    store = open_store(order.store)
    try:
        order.run = store.runs.ask(**order.wish, claimed=True).id
    except BaseException:
        store.close()
        raise
    finally:
        for name in order.asker:
            del os.environ[name]
    return store.as_service("keeper")


def _as_told(error: Exception) -> dict[str, Any]:
    """What whoever wished it is to hear; see `raised_elsewhere`."""
    if isinstance(error, CorralError):
        details = msgspec.to_builtins(error.details, enc_hook=str)
        return {"code": error.code, "message": error.message, "details": details}
    what = f"{type(error).__name__}: {error}"
    message = f"Corral made a mistake ({what}); please report it."
    return {"code": "internal", "message": message, "details": {}}


def _begin(store: Corral, order: Order, stdin: int | None) -> tuple[Keeper | None, dict[str, Any]]:
    """Start the run, and what to tell whoever waits for that.

    `pid`: it runs. `waits`: as many as allowed are going. `taken`: another keeper has it, or it was
    stopped. `failed`: it can never run, and the store says so.
    """
    try:
        run = store.runs.get(order.run)
        if _came_too_late(run, order):
            return None, {"taken": f"{run.id} is {run.state}, and another keeper has or had it"}
        keeper = Keeper(store, run, *_prepare(store, run, order, stdin))
        _take(keeper, order)
        return keeper, {"pid": keeper.run.pid}
    except OSError as error:
        # No process, no file, no memory: the run cannot begin here and now.
        reason = f"It could not be started: {error.strerror or type(error).__name__}."
        _fail(store, order, reason)
        return None, {"failed": reason, "exit_code": 126}
    except StoreUnavailable as error:
        return None, {"failed": error.message, "exit_code": 5, "code": error.code}
    except CannotStart as error:
        _fail(store, order, error.reason)
        return None, {"failed": error.reason, "exit_code": error.exit_code}
    except NoRoom as error:
        store.runs.unclaim(order.run)
        return None, {"waits": error.message}
    except Conflict as error:
        return None, {"taken": error.message}
    except CorralError as error:
        if not order.adopt:
            _fail(store, order, error.message)
        return None, {"failed": error.message, "exit_code": 1, "code": error.code}


def _fail(store: Corral, order: Order, reason: str) -> None:
    """Record why the run cannot start. A reason that is too long is cut: a run that was not failed
    would wait in line for ever."""
    why = outcome.storable(reason, outcome.MAX_REASON) or "It could not be started."
    # It has begun already: the next recovery finds its process without a supervisor.
    with suppress(Conflict):
        store.runs.fail(order.run, reason=why)


def _came_too_late(run: Run, order: Order) -> bool:
    """Seen before anything is touched; who comes too late by less is refused by the store."""
    if order.adopt:
        return order.fence is not None and run.fence != order.fence
    return run.state is not RunState.QUEUED


def _take(keeper: Keeper, order: Order) -> None:
    if order.adopt:
        keeper.adopt(order.verdict)
    else:
        keeper.begin(watched=order.watched)


def _prepare(store: Corral, run: Run, order: Order, stdin: int | None) -> tuple[Launch, Plan]:
    launch = store.runs.launch_of(run.id)
    folder = run_folder(run.id)
    make_private_folder(folder)
    plan = Plan(
        store,
        run,
        launch,
        folder,
        stdin=stdin,
        split=order.split,
        size=order.size,
        secret=store.secrets.value_of,
    )
    return launch, plan


def _keep(store: Corral, keeper: Keeper) -> None:
    try:
        run = keeper.keep()
        store.runs.after_end(run, secrets=keeper.secrets)
    except BaseException:
        # Nobody reads what a keeper prints. The run itself is found by the next recovery.
        import traceback

        told = clean_of_secrets(traceback.format_exc(), keeper.secrets)
        write_private_file(keeper.folder / "keeper.error", told)
        raise
