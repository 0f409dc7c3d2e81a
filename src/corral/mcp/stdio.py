"""`corral mcp`: the tools on standard input and output, one message a line.

Agents start it with each of their runs, and some drop the tools of a server that is slow to answer,
so it loads no more than an answer needs; the store is opened at the first call of a tool. A call
that waits has a thread of its own: whatever else is asked meanwhile is answered.
"""

import os
import sys
import threading
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from corral.mcp.protocol import (
    INVALID_REQUEST,
    NEVER,
    Answer,
    Failure,
    Message,
    answer,
    read,
    refusal,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    from corral.api import Corral
    from corral.mcp.identity import Caller

MAX_LINE = 16 * 1024 * 1024
MOST_WAITING = 16
LAST_SECONDS = 1.5  # for calls that wait when whoever asked has gone


class Here:
    """The tools on a store that this process opens itself."""

    def __init__(self, url: str | None) -> None:
        self._url = url
        self._lock = threading.Lock()

    @cached_property
    def _identified(self) -> "tuple[Corral, Caller]":
        from corral.api import open
        from corral.mcp.identity import from_environment

        store = open(self._url)
        store.spare_connections()  # every agent has a server of its own
        try:
            return store, from_environment(store)
        except BaseException:
            store.close()
            raise

    def identify(self) -> "tuple[Corral, Caller]":
        with self._lock:  # two that come first at once open one store
            return self._identified

    def answer(self, line: bytes, message: Message, gone: threading.Event) -> Answer:
        return answer(message, self.identify, gone)


class Serving:
    """One client, from its first line to its last."""

    def __init__(self, work: "Callable[[bytes, Message, threading.Event], Answer]") -> None:
        self._work = work
        self._writing = threading.Lock()
        self._waiting: dict[str | int, tuple[threading.Event, threading.Thread]] = {}

    def run(self, source: "BinaryIO") -> None:
        while line := source.readline(MAX_LINE):
            if len(line) >= MAX_LINE and not line.endswith(b"\n"):
                while not line.endswith(b"\n") and line:
                    line = source.readline(MAX_LINE)
                self._tell(refusal(Failure(INVALID_REQUEST, "That message is too long.")))
            elif not line.isspace():
                self._take(line)
        waiting = [*self._waiting.values()]
        for gone, _ in waiting:
            gone.set()
        for _, thread in waiting:
            thread.join(LAST_SECONDS)

    def _take(self, line: bytes) -> None:
        try:
            message = read(line)
        except Failure as error:
            self._tell(refusal(error))
            return
        if message.id is None:
            self._notice(message)
            return
        tool = message.tool
        if tool is None or not tool.waits:
            self._tell(self._work(line, message, NEVER))
        elif len(self._waiting) >= MOST_WAITING or message.id in self._waiting:
            words = f"{MOST_WAITING} calls wait already; wait for one of them."
            self._tell(refusal(Failure(INVALID_REQUEST, words), message.id))
        else:
            self._wait(line, message, message.id)

    def _wait(self, line: bytes, message: Message, id: str | int) -> None:
        gone = threading.Event()

        def work() -> None:
            told = self._work(line, message, gone)
            # Who has no more to ask may still listen; who has cancelled does not.
            if self._waiting.pop(id, None) is not None:
                with suppress(BrokenPipeError):
                    self._tell(told)

        thread = threading.Thread(target=work, daemon=True)
        self._waiting[id] = gone, thread
        thread.start()

    def _notice(self, message: Message) -> None:
        if message.method == "notifications/cancelled" and message.params.request_id is not None:
            waiting = self._waiting.pop(message.params.request_id, None)
            if waiting is not None:
                waiting[0].set()

    def _tell(self, told: Answer) -> None:
        with self._writing:
            _write(told.body + b"\n")


def _write(body: bytes) -> None:
    left = memoryview(body)
    while left:
        left = left[os.write(1, left) :]


def run(url: str | None = None) -> int:
    """Serve whoever is at the other end until they go; gives back the exit code."""
    from corral import config

    address = config.store_url(url)
    if config.is_afar(address):
        from corral.mcp.proxy import Afar

        work = Afar(address, config.token()).answer
    else:
        work = Here(url).answer
    with suppress(BrokenPipeError, KeyboardInterrupt):  # nobody listens any more
        Serving(work).run(sys.stdin.buffer)
    return 0
