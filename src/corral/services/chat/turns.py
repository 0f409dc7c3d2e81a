"""What the start and the end of chat turns share: their errors, and lost machines.

A lost machine is considered gone, so that another one takes over its chat turns.
"""

import logging

from corral.adapters.processes import process
from corral.db.tx import Tx
from corral.domain.nodes import ops as nodes
from corral.kernel.clock import MINUTE
from corral.kernel.errors import CorralError

HOST_TIMEOUT_MS = 5 * MINUTE
"""The silence after which a machine is considered lost."""

log = logging.getLogger("corral")


def is_host_lost(tx: Tx, host: str, since: int) -> bool:
    """Whether another machine is lost: its daemon is silent, and nothing was heard after `since`.

    This machine is never lost.
    """
    late = tx.now - HOST_TIMEOUT_MS
    return host != process.host() and since < late and nodes.is_silent(tx, host, since=late)


def log_and_describe(error: Exception) -> str:
    """Return the message of an error of one turn, which must not block the other turns.

    Logs the traceback of an unexpected error.
    """
    if isinstance(error, CorralError):
        return error.message
    log.error("unexpected error in a turn", exc_info=error)
    return f"{type(error).__name__}: {error}"
