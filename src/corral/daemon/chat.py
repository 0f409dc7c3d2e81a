"""The chat loop: receives messages, starts the turns of agents, and sends their replies.

The loop itself starts turns, ends them and checks questions. Each channel has a worker with two
threads, one that receives and one that sends, so that a platform that hangs or an adapter that
fails does not delay the others. Correctness does not depend on a single leader: an event that two
daemons receive is stored once, and a letter has one owner.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from corral.adapters.channels import registry
from corral.adapters.channels.contract import ChannelAdapter
from corral.api import Corral
from corral.daemon.loop import BaseLoop
from corral.domain.chat.model import Channel
from corral.domain.runs.model import Run
from corral.kernel.deadline import seconds_until
from corral.kernel.errors import CorralError
from corral.kernel.pagination import iter_all

MAX_SLEEP = 5.0
POLL_SECONDS = 25.0  # long-poll time of a platform
RETRY_SECONDS = (1.0, 60.0)  # first and maximum pause after a failure
# A worker stops when its loop has not woken it for this long: another daemon leads the loop now.
ORPHAN_SECONDS = 30.0
HEALTH_SECONDS = 60.0  # between two records of a healthy channel

log = logging.getLogger("corral")


class ChatLoop(BaseLoop):
    """Starts and ends the turns of agents, and runs one worker for each channel of the store."""

    name = "chat"
    min_interval = 0.05

    def __init__(self) -> None:
        self._workers: dict[str, ChannelWorker] = {}
        self._owner: str | None = None

    def run_once(self, store: Corral) -> int:
        if not store.internal.chat.is_used():
            return 0
        self._update_workers(store)
        done = len(store.internal.chat.finish_turns())
        done += store.internal.chat.run_upkeep()
        runs = store.internal.chat.start_turns()
        if runs:
            store.runs.start_queued()
            self._show_typing(store, runs)
        for worker in self._workers.values():
            worker.wake()
        return done + len(runs)

    def run_as_follower(self, store: Corral) -> int:
        """End turns on this machine: the leader may not be able to read their output."""
        if not store.internal.chat.is_used():
            return 0
        return len(store.internal.chat.finish_turns(local=True))

    def _show_typing(self, store: Corral, runs: list[Run]) -> None:
        for run in runs:
            address = store.internal.chat.reply_address(run.session_id) if run.session_id else None
            worker = self._workers.get(address.place.channel_id) if address is not None else None
            if worker is not None and address is not None:
                worker.show_typing(address.place.platform_id, address.thread)

    def next_delay(self, store: Corral) -> float:
        return seconds_until(store, store.internal.chat.next_due(), at_most=MAX_SLEEP)

    def _update_workers(self, store: Corral) -> None:
        """Start and stop workers so that each served channel has one."""
        if self._owner is None:
            self._owner = store.internal.chat.create_delivery_owner()
        channels = {channel.id: channel for channel in iter_served_channels(store)}
        for id in [*self._workers]:
            if id not in channels:
                self._workers.pop(id).end()
        for id, channel in channels.items():
            worker = self._workers.get(id)
            if worker is not None and worker.is_alive:
                continue
            if worker is not None:
                worker.end()  # one of its two threads may still run
            self._workers[id] = ChannelWorker(store, channel, self._owner)


def iter_served_channels(store: Corral) -> Iterator[Channel]:
    """Yield the channels that the daemon serves; an attended one is served by its own client."""
    for channel in iter_all(store.channels.list, limit=200):
        if not registry.get_traits(channel.kind).attended:
            yield channel


class ChannelWorker:
    """The adapter and the two threads of one channel."""

    def __init__(self, store: Corral, channel: Channel, owner: str) -> None:
        self._store = store
        self._channel = channel
        self._owner = owner
        self._ending = threading.Event()
        self._due = threading.Event()
        self._due.set()
        self._woken_at = time.monotonic()
        self._recorded_at = 0.0
        self._errors: dict[str, str | None] = {}  # by thread
        self._recorded_error: str | None = channel.last_error
        self._typing: deque[tuple[str, str | None]] = deque(maxlen=20)
        self._adapter: ChannelAdapter | None = None
        self._adapter_lock = threading.Lock()
        tasks = [("sender", self._send)]
        if not registry.get_traits(channel.kind).uses_webhook:
            tasks.append(("receiver", self._receive))
        self._threads = [
            threading.Thread(
                target=self._run, args=(name, task), name=f"{channel.name} {name}", daemon=True
            )
            for name, task in tasks
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether all of its threads run."""
        return all(thread.is_alive() for thread in self._threads)

    def wake(self) -> None:
        """Send soon, because there may be letters."""
        self._woken_at = time.monotonic()
        self._due.set()

    def show_typing(self, place: str, thread: str | None) -> None:
        """Show that an agent is typing, where the platform supports it."""
        if registry.get_traits(self._channel.kind).typing:
            self._typing.append((place, thread))

    def end(self) -> None:
        """Stop the threads after what they are doing. Idempotent."""
        self._ending.set()
        self._due.set()
        if self._adapter is not None:
            self._adapter.stop()

    # -- in the threads -------------------------------------------------------------------------

    def _run(self, name: str, task: Callable[[ChannelAdapter], None]) -> None:
        pause = RETRY_SECONDS[0]
        while not self._should_stop():
            try:
                task(self._open_adapter())
                pause = RETRY_SECONDS[0]
                self._record_health(name, None)
            except Exception as error:  # a failing adapter must not end the daemon
                if self._ending.is_set():
                    break
                is_expected = isinstance(error, CorralError | OSError | ValueError)
                text = str(error) or type(error).__name__
                self._record_health(
                    name, text if is_expected else f"{type(error).__name__}: {text}"
                )
                self._ending.wait(pause)
                pause = min(pause * 2, RETRY_SECONDS[1])
        # An orphaned worker has no loop that ends it: close the connections of its adapter. Each
        # thread does so, because the other one may just have opened the adapter.
        self.end()

    def _should_stop(self) -> bool:
        return self._ending.is_set() or time.monotonic() > self._woken_at + ORPHAN_SECONDS

    def _open_adapter(self) -> ChannelAdapter:
        with self._adapter_lock:
            if self._adapter is None:
                adapter = self._store.channels.open(self._channel.id)
                try:
                    adapter.start()
                except BaseException:
                    adapter.stop()
                    raise
                self._adapter = adapter
            return self._adapter

    def _send(self, adapter: ChannelAdapter) -> None:
        self._due.wait(MAX_SLEEP)
        self._due.clear()
        if not self._ending.is_set():
            while self._typing:
                adapter.show_typing(*self._typing.popleft())
            self._store.internal.chat.deliver(self._channel.id, adapter, owner=self._owner)

    def _receive(self, adapter: ChannelAdapter) -> None:
        self._store.internal.chat.poll(self._channel.id, adapter, seconds=POLL_SECONDS)

    def _record_health(self, thread: str, error: str | None) -> None:
        """Record the health of the channel when it changes, and periodically."""
        now = time.monotonic()
        self._errors[thread] = error
        current = next((error for error in self._errors.values() if error), None)
        if current == self._recorded_error and now < self._recorded_at + HEALTH_SECONDS:
            return
        if current != self._recorded_error:
            log.warning("channel %s: %s", self._channel.name, current or "works again")
        self._recorded_error, self._recorded_at = current, now
        try:
            self._store.internal.channels.save_health(self._channel.id, current)
        except CorralError as failure:
            log.error(
                "channel %s: cannot record its health: %s", self._channel.name, failure.message
            )
