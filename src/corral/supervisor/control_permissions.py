"""Which processes may use the control socket of a run, and which may type into the run."""

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from corral.adapters.processes import process_marks
from corral.adapters.processes.process_ancestry import INVISIBLE_PID, list_ancestors_of
from corral.kernel.errors import CorralError

if TYPE_CHECKING:
    from corral.adapters.processes.process import ProcessIdentity
    from corral.adapters.processes.process_ancestry import Ancestor
    from corral.api import Corral
    from corral.domain.runs.model import Run
    from corral.kernel.identity import RunIdentity
    from corral.supervisor.agent_io import AgentIO

MAX_PARENTS = 50  # maximum depth of nested runs that is searched for a caller
STORE_TIMEOUT = 1.0  # seconds


class ProtectedRun(Protocol):
    """The run whose control socket is protected."""

    @property
    def agent_process(self) -> "ProcessIdentity | None": ...
    @property
    def agent_io(self) -> "AgentIO": ...


class ControlPermissions:
    """Identifies the run of a client's process, and decides what the client may do."""

    def __init__(self, store: "Corral", run: "Run", protected: ProtectedRun) -> None:
        self._store = store
        self._parent_id = run.parent_id
        self._protected = protected
        self._outsiders: set[Ancestor] = set()
        """Processes that are known to belong to no run."""

    def may_connect(self, pid: int | None) -> bool:
        """Whether a process may use the socket; False for a process of a sandboxed run.

        Landlock does not prevent it from connecting. By typing into a run without a sandbox, it
        could escape. While the store is unavailable, no process of any run may connect.

        False also for a process of another pid namespace, because it may belong to a run there.
        None (the system reports no pid) permits it: then only the private folder protects the run.
        """
        if pid is None or pid == os.getpid():
            return True
        if pid == INVISIBLE_PID:
            return False
        ancestors = list_ancestors_of(pid)
        if not ancestors:
            return False  # the process has ended, so its run is unknown
        try:
            return not self._is_sandboxed(ancestors)
        except CorralError:
            return not _has_run_mark(ancestors)

    def may_type(self, pid: int | None) -> bool:
        """Whether a process may type into the run.

        A process inside of the run itself may not. A process of another run may if that run
        started this one, and while this one has no open question: only a person may approve, and an
        agent cannot see who typed a text. While the store is unavailable, only processes without
        the mark of a run may type, so that a person can always answer.

        An invisible pid and None are decided as in `may_connect`.
        """
        if pid is None or pid == os.getpid():
            return True
        if pid == INVISIBLE_PID:
            return False
        ancestors = list_ancestors_of(pid)
        if not ancestors:
            return False  # the process has ended, so its run is unknown
        agent_process = self._protected.agent_process
        pids = {ancestor.pid for ancestor in ancestors}
        if os.getpid() in pids or (agent_process is not None and agent_process.pid in pids):
            return False
        if ancestors[0] in self._outsiders:
            return True
        try:
            caller = self._identify(ancestors)
        except CorralError:
            return not _has_run_mark(ancestors)  # not cached: it may be an agent without a mark
        if caller is None:
            self._outsiders.add(ancestors[0])  # cached: one query per client, not per key press
            return True
        return self._protected.agent_io.status.attention is None and self._is_started_by(caller)

    def _is_sandboxed(self, ancestors: "list[Ancestor]") -> bool:
        """Whether the process with these ancestors belongs to a sandboxed run.

        Raises CorralError while the store is unavailable.
        """
        with self._store.server_timeout(STORE_TIMEOUT):
            identity = self._store.run_of_process(ancestors)
            if identity is None or identity.run is None:
                return False
            return self._store.runs.get_launch(identity.run).sandbox not in (None, "none")

    def _identify(self, ancestors: "list[Ancestor]") -> "RunIdentity | None":
        """Return the run of the process with these ancestors; None outside of all runs.

        Raises CorralError while the store is unavailable.
        """
        with self._store.server_timeout(STORE_TIMEOUT):
            return self._store.run_of_process(ancestors)

    def _is_started_by(self, caller: "RunIdentity") -> bool:
        """Whether this run was started from inside the caller's run, directly or by another run."""
        with suppress(CorralError), self._store.server_timeout(STORE_TIMEOUT):
            parent_id, depth = self._parent_id, 0
            while parent_id is not None and depth < MAX_PARENTS:
                if parent_id == caller.run:
                    return True
                parent_id, depth = self._store.runs.get(parent_id).parent_id, depth + 1
        return False


def _has_run_mark(ancestors: "list[Ancestor]") -> bool:
    """Whether a process or one of its ancestors carries a mark: it can remove only its own."""
    return any(process_marks.has_run_mark(ancestor.pid) for ancestor in ancestors)
