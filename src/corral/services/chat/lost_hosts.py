"""Lost hosts: machines that are considered gone, so that others take over their chat turns."""

from corral.adapters import process
from corral.db.tx import Tx
from corral.domain.nodes import ops as nodes
from corral.kernel.clock import MINUTE

HOST_TIMEOUT_MS = 5 * MINUTE
"""The silence after which a machine is considered lost."""


def is_host_lost(tx: Tx, host: str, since: int) -> bool:
    """Whether another machine is lost: its daemon is silent, and nothing was heard after `since`.

    This machine is never lost.
    """
    late = tx.now - HOST_TIMEOUT_MS
    return host != process.host() and since < late and nodes.is_silent(tx, host, since=late)
