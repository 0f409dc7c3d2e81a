"""The identity of a process: the run that it is inside of, found by its ancestors.

The supervisor of a run writes the process of its agent (pid, start, boot) into the store before the
agent's program begins, and orphans become children of the run's guard. So a process is inside a run
exactly when one of its ancestors is that agent or that supervisor, whatever its environment is.

Where ancestors are not visible (a sandbox with its own pid namespace), `CORRAL_RUN` counts if it
names a live run. A variable can therefore turn a person into an agent, but never the reverse, and
it cannot turn a check into an agent: the mark of the check is read first.
"""

import os
from typing import TYPE_CHECKING

from corral.adapters.processes.process_ancestry import Ancestor, boot_id, list_ancestors
from corral.domain.runs import processes
from corral.kernel.errors import StoreUnavailable
from corral.kernel.identity import RunIdentity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corral.db.database import Database

CHECK_VARIABLE = "CORRAL_CHECK_OF"
"""The variable that marks a check command with the store that it runs for."""


CHECK_IDENTITY = RunIdentity(None, None, None, None, None)
UNKNOWN_PEER = RunIdentity(None, None, None, None, None)
"""A local caller whose process is not visible: it may be inside a run or a check."""


def find_identity(database: "Database", environment: "Mapping[str, str]") -> RunIdentity | None:
    """Return the run of this process in this store; None outside all runs of the store.

    Returns None also when the rows of runs are damaged: the store must open so that `verify` can
    report the damage. A process that can damage the file can write anything into it, so this grants
    nothing.
    """
    try:
        return _find_identity(database, environment)
    except StoreUnavailable as error:
        if error.reason != "corrupt":
            raise
        return None


def find_identity_before_migration(
    database: "Database", environment: "Mapping[str, str]"
) -> RunIdentity | None:
    """Return the run of this process in a store whose schema may be of another version.

    If the rows of runs cannot be read, the mark of a check and `CORRAL_RUN` decide.
    """
    if database.schema_version() == 0:
        return None  # an empty store has no runs
    try:
        return _find_identity(database, environment)
    except StoreUnavailable as error:
        if error.reason not in ("engine", "corrupt"):
            raise
    if _is_in_check(database, list_ancestors()):
        return CHECK_IDENTITY
    run_id = environment.get("CORRAL_RUN")
    return RunIdentity(run_id, None, None, None, None) if run_id else None


def _find_identity(database: "Database", environment: "Mapping[str, str]") -> RunIdentity | None:
    above = list_ancestors()
    identity = find_run_of_process(database, above)
    if identity is not None:
        return identity
    if _is_in_check(database, above):
        return CHECK_IDENTITY
    if run_id := environment.get("CORRAL_RUN"):
        return database.read(lambda tx: processes.find_live_run(tx, run_id), mode="one")
    return None


def find_run_of_process(database: "Database", above: "Sequence[Ancestor]") -> RunIdentity | None:
    """Return the nearest run among a process and its ancestors."""
    boot = boot_id()
    runs = database.read(lambda tx: processes.find_runs(tx, above, boot), mode="one")
    return next((runs[ancestor] for ancestor in above if ancestor in runs), None)


def find_run_of_peer(
    database: "Database", client: tuple[str, int], port: int
) -> RunIdentity | None:
    """Return the run of the process at the other end of a connection to a port of this machine.

    Returns None for a process outside all runs and checks, or on another machine, CHECK_IDENTITY
    for a process of a check, and UNKNOWN_PEER when the process cannot be identified.
    """
    from corral.adapters.processes.socket_peers import list_peer_ancestors

    peers = list_peer_ancestors(client, port)
    if peers is None:
        return None
    for above in peers:
        if not above:
            return UNKNOWN_PEER  # the process has exited since
        identity = find_run_of_process(database, above)
        if identity is not None:
            return identity
        if _is_in_check(database, above):
            return CHECK_IDENTITY
    return None if peers else UNKNOWN_PEER


def check_environment(database: "Database") -> dict[str, str]:
    """Return the variables of a command that Corral runs for this store outside any run.

    The process that waits for the command has them too, so the command cannot remove them.
    """
    return {CHECK_VARIABLE: _store_mark(database)}


def _is_in_check(database: "Database", above: "Sequence[Ancestor]") -> bool:
    """Return whether an ancestor of this process is a check of this store."""
    assignment = f"{CHECK_VARIABLE}={_store_mark(database)}".encode()
    return any(assignment in _read_environment(ancestor.pid) for ancestor in above[1:])


def _read_environment(pid: int) -> bytes:
    try:
        descriptor = os.open(f"/proc/{pid}/environ", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, 1 << 20)
        finally:
            os.close(descriptor)
    except OSError:
        return b""


def _store_mark(database: "Database") -> str:
    """Return a text that identifies a store, independent of how its address is written."""
    path = database.path
    if path is None:
        return f"postgresql:{database.url.partition('?')[0].rpartition('/')[2]}"
    status = os.stat(path)
    return f"{status.st_dev}:{status.st_ino}"
