"""All loops of one machine, together: its place among the nodes, its leads, its wake-ups.

One thread renews the node's lease and the leads, one listens to the store for all loops, and each
loop has a thread of its own. Whatever fails is told in `status` and tried again; only when another
daemon took this machine's place, or the store's file was taken away, does the host give up.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from corral import __version__
from corral.adapters import process
from corral.adapters.process import Identity, Standing
from corral.api import Corral
from corral.daemon.alert_sender import Courier
from corral.daemon.conflict_detector import Forecaster
from corral.daemon.delivery import Delivery
from corral.daemon.indexer import Indexer
from corral.daemon.janitor import Janitor
from corral.daemon.launcher import Launcher
from corral.daemon.loop import Loop, LoopStatus, Runner
from corral.daemon.node_monitor import Lookout
from corral.daemon.race_loop import Marshal
from corral.daemon.reaper import Reaper
from corral.daemon.schedule_scripts import Checker
from corral.daemon.scheduler import Scheduler
from corral.daemon.task_checker import Examiner
from corral.daemon.task_starter import Foreman
from corral.daemon.telemetry import Telemetry
from corral.domain.nodes.model import Lead, Node
from corral.domain.runs.model import Found
from corral.kernel.errors import CorralError, Held, StoreUnavailable

BEATS = 3  # in the time of a lease
SOONEST_BEAT = 0.5
EAR_SECONDS = 1.0
QUIET = 15  # waits without a word after which the loops look all the same
MOST_FOUND = 100

log = logging.getLogger("corral")


class Status(msgspec.Struct, frozen=True):
    """How one daemon is."""

    version: str
    pid: int
    host: str
    store: str
    started_at: int
    node: Node | None
    loops: list[LoopStatus]
    found: list[Found]
    """What its first look found, newest runs last."""
    trouble: str | None
    """Why its place among the nodes could not be renewed; None: it was."""


def all_loops() -> list[Loop]:
    return [
        Launcher(),
        Reaper(),
        Scheduler(),
        Checker(),
        Courier(),
        Delivery(),
        Indexer(),
        Janitor(),
        Lookout(),
        Foreman(),
        Examiner(),
        Marshal(),
        Forecaster(),
        Telemetry(),
    ]


class Host:
    """The loops of one daemon."""

    def __init__(
        self,
        store: Corral,
        *,
        slots: int | None = None,
        labels: Sequence[str] = (),
        give_up: Callable[[str], None] = lambda reason: None,
        loops: Sequence[Loop] | None = None,
    ) -> None:
        """`give_up` is called, from a thread, when this daemon must not go on; slots left out are
        as many as the store lets run at once."""
        self._store = store
        self._slots = slots
        self._labels = labels
        self._give_up = give_up
        me = process.identify(os.getpid())
        assert me is not None
        self.owner = f"daemon:{me.host}:{me.pid}:{me.start_token}"
        self._me = me
        self._started_at = store.now()
        self._found: list[Found] = []
        self._node: Node | None = None
        self._trouble: str | None = None
        self._leads: dict[str, Lead] = {}
        self._lead_ends: dict[str, float] = {}
        self._lease_ms = int(store.settings.get("nodes.lease_ms").value)
        self._file = _inode(store)
        self._stopping = threading.Event()
        self._runners = [
            Runner(loop, store, may_work=self._may_lead(loop.name))
            for loop in (all_loops() if loops is None else loops)
        ]
        self._led = [runner.loop.name for runner in self._runners if runner.loop.is_led]
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for name, target in (("heart", self._beat_on), ("ear", self._listen))
        ]

    # -- from outside --------------------------------------------------------------------------

    def begin(self) -> list[Found]:
        """Look at what was left behind, join, and start the loops; gives back what was found.

        Held when another daemon serves the store on this machine already.
        """
        self._take_the_place_of_the_dead()
        self._found = self._store.runs.recover()
        self._join()
        self._beat()
        for thread in (*self._threads, *(runner.thread for runner in self._runners)):
            thread.start()
        return self._found

    def status(self) -> Status:
        return Status(
            version=__version__,
            pid=self._me.pid,
            host=self._me.host,
            store=self._store.db.url,
            started_at=self._started_at,
            node=self._node,
            loops=[runner.status(self._leader(runner.loop.name)) for runner in self._runners],
            found=self._found[-MOST_FOUND:],
            trouble=self._trouble,
        )

    def end(self, seconds: float) -> bool:
        """Let every loop finish its round, and say good-bye; whether all did within the time.

        What was not finished is safe: another daemon, or this one's next life, goes on with it.
        """
        self._stopping.set()
        for runner in self._runners:
            runner.stop()
        deadline = time.monotonic() + seconds
        threads = [runner.thread for runner in self._runners] + self._threads
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        if self._trouble is None:  # else the store is away, and would be waited for
            self._say_good_bye()
        return not any(thread.is_alive() for thread in threads)

    def _say_good_bye(self) -> None:
        with suppress(CorralError):
            for name in self._led:
                self._store.nodes.yield_lead(name, owner=self.owner)
            if self._node is not None:
                self._store.nodes.leave(self._node)

    # -- its place among the nodes -------------------------------------------------------------

    def _take_the_place_of_the_dead(self) -> None:
        """Whoever served this machine before and is gone leads nothing any more."""
        serving = self._store.nodes.serving(self._me.host)
        other = _daemon_of(serving) if serving is not None else None
        if serving is None or other is None or other == self._me:
            return
        standing = process.look(other)
        if standing is Standing.ALIVE:
            raise Held(
                f"The daemon with pid {other.pid} serves this store on this machine already; end "
                "it with `corral down`, or give this one a name of its own with CORRAL_HOST.",
                pid=other.pid,
            )
        if standing is not Standing.UNKNOWN:
            for name in self._led:
                self._store.nodes.yield_lead(name, owner=serving.owner or "-")

    def _join(self) -> None:
        slots = self._slots
        if slots is None:
            slots = int(self._store.settings.get("runs.max_at_once").value)
        self._node = self._store.nodes.join(
            self._me.host,
            self._me.boot_id,
            owner=self.owner,
            slots=slots,
            labels=self._labels,
            lease_ms=self._lease_ms,
        )

    def _beat_on(self) -> None:
        while not self._stopping.wait(max(self._lease_ms / BEATS / 1_000, SOONEST_BEAT)):
            try:
                self._require_file()
                self._beat()
                self._trouble = None
            except CorralError as error:
                if self._trouble != error.message:
                    log.error("the daemon's place could not be renewed: %s", error.message)
                self._trouble = error.message
            except Exception as error:
                log.exception("the daemon's place could not be renewed")
                self._trouble = f"{type(error).__name__}: {error}"

    def _beat(self) -> None:
        before = time.monotonic()
        assert self._node is not None
        try:
            beat = self._store.nodes.beat(self._node, leads=self._led, lease_ms=self._lease_ms)
        except Held:
            self._join_again()
            return
        self._node = beat.node
        gained = []
        for lead in beat.leads:
            if lead.owner == self.owner:
                if self._lead_ends.get(lead.name, 0.0) <= before:
                    gained.append(lead.name)
                # Counted from before the call: at no moment do we think that we lead and do not.
                self._lead_ends[lead.name] = before + self._lease_ms / 1_000
            self._leads[lead.name] = lead
        for runner in self._runners:
            if runner.loop.name in gained:
                log.info("this daemon leads the %s", runner.loop.name)
                runner.wake()

    def _join_again(self) -> None:
        """This daemon was silent for too long; another one may have come to stay."""
        assert self._node is not None
        found = self._store.nodes.get(self._node.id)
        if found.fence != self._node.fence:
            self._stop_for_good(f"{found.owner} serves this machine now")
            return
        log.warning("this machine was taken for lost; it joins again")
        self._join()

    def _require_file(self) -> None:
        """What is written into a file that was taken away is lost, and must not be accepted."""
        if self._file is not None and _inode(self._store) != self._file:
            self._stop_for_good(f"the store's file {self._store.db.path} was moved or removed")
            raise StoreUnavailable("The store's file is gone.", reason="missing")

    def _stop_for_good(self, reason: str) -> None:
        if not self._stopping.is_set():
            log.error("this daemon ends: %s", reason)
            self._stopping.set()
            self._give_up(reason)

    def _may_lead(self, name: str) -> Callable[[], bool]:
        return lambda: time.monotonic() < self._lead_ends.get(name, 0.0)

    def _leader(self, name: str) -> str | None:
        lead = self._leads.get(name)
        return lead.owner if lead is not None else None

    # -- wake-ups ------------------------------------------------------------------------------

    def _listen(self) -> None:
        """One listener wakes all loops that heed commits."""
        while not self._stopping.is_set():
            try:
                self._listen_until_it_fails()
            except Exception as error:
                log.error("listening to the store failed: %s", error)
                self._wake()
                self._stopping.wait(EAR_SECONDS)

    def _listen_until_it_fails(self) -> None:
        quiet = 0
        with self._store.listening() as listener:
            while not self._stopping.is_set():
                quiet = 0 if listener.wait(EAR_SECONDS) else quiet + 1
                if quiet % QUIET == 0:
                    self._wake()

    def _wake(self) -> None:
        for runner in self._runners:
            if runner.loop.heeds:
                runner.wake()


def _daemon_of(node: Node) -> Identity | None:
    """The process that serves a node, as its owner says."""
    words = (node.owner or "").rsplit(":", 2)
    if len(words) != 3 or not words[1].isdigit():
        return None
    return Identity(node.name, node.boot_id, int(words[1]), words[2])


def _inode(store: Corral) -> tuple[int, int] | None:
    if store.db.path is None:
        return None
    try:
        found = store.db.path.stat()
    except OSError:
        return (0, 0)
    return found.st_dev, found.st_ino
