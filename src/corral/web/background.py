"""What people ask for on a page and what takes its time."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from starlette.responses import Response

from corral.kernel.errors import CorralError
from corral.web.request import Visit

T = TypeVar("T")

log = logging.getLogger("corral.web")

PATIENCE = 4.0
"""So many seconds a person waits for what takes its time; then it goes on without being watched."""


def soon(visit: Visit, act: Callable[[], T], done: Callable[[T], Response]) -> Response:
    """Do what may take its time (worktrees are made, platforms are asked): whoever asked hears
    how it went, or, when that is not known soon, that it goes on; the page shows what comes of
    it."""
    outcome: Future[T] = Future()

    def work() -> None:
        try:
            outcome.set_result(act())
        except BaseException as error:  # whatever it is, it is told to whoever waits
            outcome.set_exception(error)

    threading.Thread(target=work, name="page action", daemon=True).start()
    try:
        result = outcome.result(PATIENCE)
    except TimeoutError:
        if outcome.done():
            raise
        outcome.add_done_callback(_late)
        return visit.done("It takes its time; this page shows what comes of it.")
    return done(result)


def _late(outcome: "Future[Any]") -> None:
    error = outcome.exception()
    if isinstance(error, CorralError):
        log.warning("what was asked for on a page was refused: %s", error.message)
    elif error is not None:
        log.error("what was asked for on a page failed", exc_info=error)
