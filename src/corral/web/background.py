"""Actions that may take long: they continue in the background after a few seconds."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from starlette.responses import Response

from corral.kernel.errors import CorralError
from corral.web.request import PageRequest

T = TypeVar("T")

log = logging.getLogger("corral.web")

WAIT_SECONDS = 4.0
"""How long a response waits for the action."""


def run_with_deadline(
    request: PageRequest, act: Callable[[], T], respond: Callable[[T], Response]
) -> Response:
    """Run `act` on a thread and respond with its result.

    After WAIT_SECONDS respond that the action continues in the background; the page shows its
    result when it is there. Errors before that are raised, later ones are logged. A response
    reports the secrets that were redacted until then.
    """
    future: Future[T] = Future()

    def work() -> None:
        # Redactions are reported per thread, so the handler's own block does not cover this one.
        with request.store.report_redactions(request.redacted.extend):
            try:
                future.set_result(act())
            except BaseException as error:  # raised again by future.result()
                future.set_exception(error)

    threading.Thread(target=work, name="page action", daemon=True).start()
    finished, _ = wait([future], WAIT_SECONDS)
    if not finished:
        future.add_done_callback(_log_late_error)
        return request.success(
            "Still running in the background. This page updates when it is done."
        )
    return respond(future.result())


def _log_late_error(future: "Future[Any]") -> None:
    error = future.exception()
    if isinstance(error, CorralError):
        log.warning("A background action was refused: %s", error.message)
    elif error is not None:
        log.error("A background action failed", exc_info=error)
