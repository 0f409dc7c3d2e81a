"""The identity of a process: the run that it belongs to, found by its ancestors.

The supervisor of a run writes the process of its agent (pid, start, boot) into the store before the
agent's program begins, and orphans become children of the run's guard. So a process is inside a run
exactly when one of its ancestors is that agent or that supervisor, whatever its environment is.

Where ancestors are not visible (a sandbox with its own pid namespace), `CORRAL_RUN` counts if it
names a live run. A variable can therefore turn a person into an agent, but never the reverse.
"""

import os
from typing import TYPE_CHECKING

from corral.adapters.ancestry import Ancestor, ancestors, boot_id
from corral.domain.runs import processes
from corral.kernel.errors import StoreUnavailable
from corral.kernel.identity import RunIdentity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.db.database import Database

CHECK = "CORRAL_CHECK_OF"
"""The variable that every check has, with a mark of the store that it runs for."""


OF_CHECK = RunIdentity(None, None, None, None, None)
HIDDEN = RunIdentity(None, None, None, None, None)
"""A caller on this machine whose process cannot be seen: it may be inside a run."""


def find_identity(database: "Database") -> RunIdentity | None:
    """Return the run of this process in this store; None outside all its runs.

    None also when the rows of runs are damaged: the store must open so that `verify` can name the
    damage. A process that can damage the file can write anything into it, so this grants nothing.
    """
    try:
        return _find_identity(database)
    except StoreUnavailable as error:
        if error.reason != "corrupt":
            raise
        return None


def _find_identity(database: "Database") -> RunIdentity | None:
    above = ancestors()
    found = find_run_of(database, above)
    if found is not None:
        return found
    if given := os.environ.get("CORRAL_RUN"):
        named = database.read(lambda tx: processes.find_live_run(tx, given), mode="one")
        if named is not None:
            return named
    return OF_CHECK if _is_in_check(database, above) else None


def find_run_of(database: "Database", above: "Sequence[Ancestor]") -> RunIdentity | None:
    """Return the nearest run among a process and its ancestors."""
    boot = boot_id()
    runs = database.read(lambda tx: processes.find_runs(tx, above, boot), mode="one")
    return next((runs[each] for each in above if each in runs), None)


def find_run_of_peer(
    database: "Database", client: tuple[str, int], port: int
) -> RunIdentity | None:
    """The run of the process at the other end of a connection to this machine's `port`; None for a
    process outside of all runs, and for another machine's. `HIDDEN` where it cannot be told."""
    if not database.read(processes.any_at_work, mode="one"):
        return None
    from corral.adapters.peers import ancestors_of_peer

    peers = ancestors_of_peer(client, port)
    if peers is None:
        return None
    for above in peers:
        if not above:
            return HIDDEN  # it has ended since
        found = find_run_of(database, above)
        if found is not None:
            return found
    return None if peers else HIDDEN


def check_mark(database: "Database") -> dict[str, str]:
    """Return the variables of a command that Corral runs for this store outside any run. The
    process that waits for the command has them too, so the command cannot remove them."""
    return {CHECK: _store_mark(database)}


def _is_in_check(database: "Database", above: "Sequence[Ancestor]") -> bool:
    """Whether an ancestor of this process is a check of this store."""
    wanted = f"{CHECK}={_store_mark(database)}".encode()
    return any(wanted in _environment_of(each.pid) for each in above[1:])


def _environment_of(pid: int) -> bytes:
    try:
        descriptor = os.open(f"/proc/{pid}/environ", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, 1 << 20)
        finally:
            os.close(descriptor)
    except OSError:
        return b""


def _store_mark(database: "Database") -> str:
    """Return the same text for a store, however its address is written."""
    path = getattr(database, "path", None)
    if path is None:
        return f"postgresql:{database.url.partition('?')[0].rpartition('/')[2]}"
    found = os.stat(path)
    return f"{found.st_dev}:{found.st_ino}"
