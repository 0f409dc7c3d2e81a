"""All loops of one daemon: its node, its leaderships and its wake-ups.

One thread renews the node's lease and the leaderships, one listens to the store for all loops, and
each loop has a thread of its own. Failures are reported in `status` and retried. The daemon exits
only when another daemon serves this machine, or when the store's file was moved or removed.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from corral import __version__
from corral.adapters.processes import process
from corral.adapters.processes.process import Liveness
from corral.api import Corral
from corral.daemon.loop import Loop, LoopStatus, LoopThread
from corral.daemon.loops import create_loops
from corral.domain.nodes.model import Leadership, Node
from corral.domain.runs.model import RecoveryResult
from corral.kernel.errors import CorralError, Held, StoreUnavailable

BEATS_PER_LEASE = 3
MIN_BEAT_SECONDS = 0.5
LISTEN_SECONDS = 1.0
QUIET_WAITS = 15  # waits without a notification, after which all loops are woken anyway
MAX_RECOVERED = 100

log = logging.getLogger("corral")


class DaemonStatus(msgspec.Struct, frozen=True):
    """The state of a daemon."""

    version: str
    pid: int
    host: str
    store: str
    started_at: int
    node: Node | None
    loops: list[LoopStatus]
    recovered: list[RecoveryResult]
    """What the recovery at its start found, newest runs last."""
    lease_error: str | None
    """Why the node's lease could not be renewed; None: it was renewed."""


class LoopManager:
    """Runs the loops of one daemon, and holds the leaderships of those that run once per store."""

    def __init__(
        self,
        store: Corral,
        *,
        slots: int | None = None,
        labels: Sequence[str] = (),
        give_up: Callable[[str], None] = lambda reason: None,
        loops: Sequence[Loop] | None = None,
    ) -> None:
        """Prepare the loops.

        `give_up` is called from a thread when this daemon must exit. `slots` defaults to the
        setting `runs.max_concurrent`.
        """
        self._store = store
        self._slots = slots
        self._labels = labels
        self._give_up = give_up
        self._me = process.identify_self()
        self.owner = self._me.as_owner("daemon")
        self._started_at = store.now()
        self._recovered: Sequence[RecoveryResult] = []
        self._node: Node | None = None
        self._lease_error: str | None = None
        self._leaderships: dict[str, Leadership] = {}
        self._leadership_ends: dict[str, float] = {}
        self._lease_ms = int(store.settings.get("nodes.lease_ms").value)
        self._file = _read_inode(store)
        self._stopping = threading.Event()
        self._loop_threads = [
            LoopThread(loop, store, is_leader=self._make_leadership_test(loop.name))
            for loop in (create_loops() if loops is None else loops)
        ]
        self._elected_loops = [
            loop_thread.loop.name
            for loop_thread in self._loop_threads
            if loop_thread.loop.needs_leader
        ]
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for name, target in (("heartbeat", self._send_heartbeats), ("listener", self._listen))
        ]

    # -- start, status, stop -------------------------------------------------------------------

    def begin(self) -> Sequence[RecoveryResult]:
        """Recover runs, register the node and start the loops; return what the recovery found.

        Raises Held when another daemon already serves the store on this machine.
        """
        self._replace_dead_daemon()
        self._recovered = self._store.runs.recover()
        self._join()
        self._send_heartbeat()
        for thread in (*self._threads, *(loop_thread.thread for loop_thread in self._loop_threads)):
            thread.start()
        return self._recovered

    def status(self) -> DaemonStatus:
        return DaemonStatus(
            version=__version__,
            pid=self._me.pid,
            host=self._me.host,
            store=self._store.db.url,
            started_at=self._started_at,
            node=self._node,
            loops=[
                loop_thread.status(self._get_leader(loop_thread.loop.name))
                for loop_thread in self._loop_threads
            ],
            recovered=[*self._recovered[-MAX_RECOVERED:]],
            lease_error=self._lease_error,
        )

    def end(self, seconds: float) -> bool:
        """Stop all loops after their current round, and leave; return whether all stopped in time.

        Unfinished work is safe: another daemon, or the next start of this one, continues it.
        """
        self._stopping.set()
        for loop_thread in self._loop_threads:
            loop_thread.stop()
        deadline = time.monotonic() + seconds
        threads = [loop_thread.thread for loop_thread in self._loop_threads] + self._threads
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        if self._lease_error is None:  # otherwise the store is unavailable, and this would block
            self._leave()
        return not any(thread.is_alive() for thread in threads)

    def _leave(self) -> None:
        with suppress(CorralError):
            for name in self._elected_loops:
                self._store.internal.nodes.release_leadership(name, owner=self.owner)
            if self._node is not None:
                self._store.internal.nodes.leave(self._node)

    # -- node and leadership --------------------------------------------------------------------

    def _replace_dead_daemon(self) -> None:
        """Release the leaderships of a daemon that served this machine before and is gone."""
        node = self._store.nodes.daemon_of(self._me.host)
        other = process.parse_owner(node.owner) if node is not None else None
        if node is None or other is None or other == self._me:
            return
        liveness = process.check(other)
        if liveness is Liveness.ALIVE:
            raise Held(
                f"The daemon with pid {other.pid} already serves this store on this machine. Stop "
                "it with `corral down`, or set CORRAL_HOST to run this one under another name.",
                pid=other.pid,
            )
        if liveness is not Liveness.UNKNOWN:
            for name in self._elected_loops:
                self._store.internal.nodes.release_leadership(name, owner=node.owner or "-")

    def _join(self) -> None:
        slots = self._slots
        if slots is None:
            slots = int(self._store.settings.get("runs.max_concurrent").value)
        self._node = self._store.internal.nodes.join(
            self._me.host,
            self._me.boot_id,
            owner=self.owner,
            slots=slots,
            labels=self._labels,
            lease_ms=self._lease_ms,
        )

    def _send_heartbeats(self) -> None:
        while not self._stopping.wait(
            max(self._lease_ms / BEATS_PER_LEASE / 1_000, MIN_BEAT_SECONDS)
        ):
            try:
                self._require_file()
                self._send_heartbeat()
                self._lease_error = None
            except CorralError as error:
                if self._lease_error != error.message:
                    log.error("cannot renew the lease of this node: %s", error.message)
                self._lease_error = error.message
            except Exception as error:
                log.exception("cannot renew the lease of this node")
                self._lease_error = f"{type(error).__name__}: {error}"

    def _send_heartbeat(self) -> None:
        before = time.monotonic()
        assert self._node is not None
        try:
            heartbeat = self._store.internal.nodes.renew(
                self._node, loops=self._elected_loops, lease_ms=self._lease_ms
            )
        except Held:
            self._join_again()
            return
        self._node = heartbeat.node
        gained = []
        for leadership in heartbeat.leaderships:
            if leadership.owner == self.owner:
                if self._leadership_ends.get(leadership.name, 0.0) <= before:
                    gained.append(leadership.name)
                # Counted from before the call, so that our view expires before the lease does.
                self._leadership_ends[leadership.name] = before + self._lease_ms / 1_000
            self._leaderships[leadership.name] = leadership
        for loop_thread in self._loop_threads:
            if loop_thread.loop.name in gained:
                log.info("this daemon now leads the %s loop", loop_thread.loop.name)
                loop_thread.wake()

    def _join_again(self) -> None:
        """Register the node again after its lease expired, unless another daemon has it."""
        assert self._node is not None
        node = self._store.nodes.get(self._node.id)
        if node.fence != self._node.fence:
            self._abort(f"{node.owner} serves this machine now")
            return
        log.warning("this node was marked as lost; registering it again")
        self._join()

    def _require_file(self) -> None:
        """Abort if the store's file was moved or removed: writes to it would be lost."""
        if self._file is not None and _read_inode(self._store) != self._file:
            self._abort(f"the store's file {self._store.db.path} was moved or removed")
            raise StoreUnavailable(
                "The store's file was moved or removed. Put it back, then restart the daemon.",
                reason="missing",
            )

    def _abort(self, reason: str) -> None:
        if not self._stopping.is_set():
            log.error("this daemon exits: %s", reason)
            self._stopping.set()
            self._give_up(reason)

    def _make_leadership_test(self, name: str) -> Callable[[], bool]:
        """Return a function that says whether this daemon leads the loop now."""
        return lambda: time.monotonic() < self._leadership_ends.get(name, 0.0)

    def _get_leader(self, name: str) -> str | None:
        leadership = self._leaderships.get(name)
        return leadership.owner if leadership is not None else None

    # -- wake-ups ------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Wake the loops after each commit; one listener serves all of them."""
        while not self._stopping.is_set():
            try:
                self._listen_until_error()
            except Exception as error:
                log.error("cannot listen to the store: %s", error)
                self._wake_loops()
                self._stopping.wait(LISTEN_SECONDS)

    def _listen_until_error(self) -> None:
        silent_waits = 0
        with self._store.listening() as listener:
            while not self._stopping.is_set():
                is_notified = listener.wait(LISTEN_SECONDS)
                silent_waits += 1
                if is_notified or silent_waits >= QUIET_WAITS:
                    self._wake_loops()
                    silent_waits = 0

    def _wake_loops(self) -> None:
        for loop_thread in self._loop_threads:
            if loop_thread.loop.wakes_on_commit:
                loop_thread.wake()


def _read_inode(store: Corral) -> tuple[int, int] | None:
    if store.db.path is None:
        return None
    try:
        stat = store.db.path.stat()
    except OSError:
        return (0, 0)
    return stat.st_dev, stat.st_ino
