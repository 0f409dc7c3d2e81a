"""Channels: what people say comes in, agents are woken, and what they answer goes out.

The loop itself wakes sessions, ends their turns and looks after questions. Each channel has two
threads, one that receives and one that sends, so that a platform that hangs or an adapter that
breaks holds up nobody else. Two daemons that receive at once store an event once, and a letter has
one owner, so nothing depends on there being one of them.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from corral.adapters.channels import registry
from corral.adapters.channels.contract import Adapter
from corral.api import Corral
from corral.daemon.loop import Plain
from corral.domain.chat.model import Channel
from corral.domain.runs.model import Run
from corral.kernel.errors import CorralError
from corral.kernel.pagination import every
from corral.services.chat.delivery import owner_here

LONGEST_SLEEP = 5.0
POLL = 25.0  # seconds for which a platform is asked to wait for something to tell
AFTER_TROUBLE = (1.0, 60.0)
ALONE = 30.0  # a line whose loop is silent for so long ends: another daemon leads it now
BETWEEN_LOOKS = 60.0  # seconds between two notes that a channel is well

log = logging.getLogger("corral")


class Delivery(Plain):
    name = "delivery"
    rest = 0.05

    def __init__(self) -> None:
        self._lines: dict[str, Line] = {}
        self._owner = owner_here()

    def round(self, store: Corral) -> int:
        if not store.gateway._is_used():
            return 0
        self._open_lines(store)
        done = len(store.gateway.settle())
        done += store.gateway.look_after()
        begun = store.gateway.wake()
        if begun:
            store.runs.start_queued()
            self._show_typing(store, begun)
        for line in self._lines.values():
            line.wake()
        return done + len(begun)

    def aside(self, store: Corral) -> int:
        """What agents said here ends their turns: the one that leads may not be able to read it."""
        if not store.gateway._is_used():
            return 0
        return len(store.gateway.settle(here=True))

    def _show_typing(self, store: Corral, begun: list[Run]) -> None:
        for run in begun:
            where = store.gateway.address(run.session_id) if run.session_id else None
            line = self._lines.get(where.place.channel_id) if where is not None else None
            if line is not None and where is not None:
                line.show_typing(where.place.platform_id, where.thread)

    def pause(self, store: Corral) -> float:
        due = store.gateway.next_due()
        if due is None:
            return LONGEST_SLEEP
        return min(max((due - store.now()) / 1_000, 0.05), LONGEST_SLEEP)

    def _open_lines(self, store: Corral) -> None:
        """A line for each channel that lives here, and none for others."""
        wanted = {channel.id: channel for channel in channels_of_daemon(store)}
        for id in [*self._lines]:
            if id not in wanted:
                self._lines.pop(id).end()
        for id, channel in wanted.items():
            line = self._lines.get(id)
            if line is not None and line.lives:
                continue
            if line is not None:
                line.end()  # one of its threads may have found our loop silent, and the other not
            self._lines[id] = Line(store, channel, self._owner)


def channels_of_daemon(store: Corral) -> Iterator[Channel]:
    """The channels that the daemon serves; others live where somebody sits in front of them."""
    for channel in every(store.channels.list, limit=200):
        if not registry.traits_of(channel.kind).attended:
            yield channel


class Line:
    """One channel, with its adapter and its two threads."""

    def __init__(self, store: Corral, channel: Channel, owner: str) -> None:
        self._store = store
        self._channel = channel
        self._owner = owner
        self._ending = threading.Event()
        self._due = threading.Event()
        self._due.set()
        self._woken = time.monotonic()
        self._noted = 0.0
        self._troubles: dict[str, str | None] = {}
        self._known: str | None = channel.trouble
        self._typing: deque[tuple[str, str | None]] = deque(maxlen=20)
        self._adapter: Adapter | None = None
        self._opening = threading.Lock()
        threads = [("sends", self._send)]
        if not registry.traits_of(channel.kind).calls:
            threads.append(("receives", self._receive))
        self._threads = [
            threading.Thread(
                target=self._go, args=(what, work), name=f"{channel.name} {what}", daemon=True
            )
            for what, work in threads
        ]
        for thread in self._threads:
            thread.start()

    @property
    def lives(self) -> bool:
        """Whether it does all that it is for; half a line would never be missed."""
        return all(thread.is_alive() for thread in self._threads)

    def wake(self) -> None:
        """There may be something to send."""
        self._woken = time.monotonic()
        self._due.set()

    def show_typing(self, place: str, thread: str | None) -> None:
        """Somebody is about to say something there."""
        if registry.traits_of(self._channel.kind).typing:
            self._typing.append((place, thread))

    def end(self) -> None:
        """Receive and send no more; what is being done is finished."""
        self._ending.set()
        self._due.set()
        if self._adapter is not None:
            self._adapter.stop()

    # -- the threads ----------------------------------------------------------------------------

    def _go(self, what: str, work: Callable[[Adapter], None]) -> None:
        pause = AFTER_TROUBLE[0]
        while not self._is_over():
            try:
                work(self._open())
                pause = AFTER_TROUBLE[0]
                self._note(what, None)
            except Exception as error:  # whatever an adapter does, the daemon goes on
                if self._ending.is_set():
                    break
                known = isinstance(error, CorralError | OSError | ValueError)
                said = str(error) or type(error).__name__
                self._note(what, said if known else f"{type(error).__name__}: {said}")
                self._ending.wait(pause)
                pause = min(pause * 2, AFTER_TROUBLE[1])

    def _is_over(self) -> bool:
        return self._ending.is_set() or time.monotonic() > self._woken + ALONE

    def _open(self) -> Adapter:
        with self._opening:
            if self._adapter is None:
                adapter = self._store.channels.open(self._channel.id)
                try:
                    adapter.start()
                except BaseException:
                    adapter.stop()
                    raise
                self._adapter = adapter
            return self._adapter

    def _send(self, adapter: Adapter) -> None:
        self._due.wait(LONGEST_SLEEP)
        self._due.clear()
        if not self._ending.is_set():
            while self._typing:
                adapter.typing(*self._typing.popleft())
            self._store.gateway.deliver(self._channel.id, adapter, owner=self._owner)

    def _receive(self, adapter: Adapter) -> None:
        self._store.gateway.take_in(self._channel.id, adapter, seconds=POLL)

    def _note(self, what: str, found: str | None) -> None:
        """Keep how the channel is, when that changes and now and then."""
        now = time.monotonic()
        self._troubles[what] = found
        trouble = next((each for each in self._troubles.values() if each), None)
        if trouble == self._known and now < self._noted + BETWEEN_LOOKS:
            return
        if trouble != self._known:
            log.warning("channel %s: %s", self._channel.name, trouble or "works again")
        self._known, self._noted = trouble, now
        try:
            self._store.channels.note_health(self._channel.id, trouble)
        except CorralError as error:
            log.error("channel %s: its health is not kept: %s", self._channel.name, error.message)
