"""Those who watch a run, type into it or stop it: the keeper's end of the line."""

import select
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from corral.adapters import control_socket

# A watcher that reads nothing must not hold up the agent: it loses its line.
MOST_WAITING = 4 << 20

# Gets a request and a function to reply with, at once or later.
Answer = Callable[[dict[str, Any], Callable[[dict[str, Any]], None]], None]
TYPED_INSIDE = {"ok": False, "error": "inside_run"}


class Watcher:
    """One connection."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line
        self.frames = control_socket.Frames()
        self.attached = False
        self.waiting = b""
        self.pid = control_socket.peer_pid(line)

    def send(self, kind: bytes, payload: bytes | Any = b"") -> None:
        self.waiting += control_socket.frame(kind, payload)
        self.flush()

    def flush(self) -> None:
        with suppress(BlockingIOError):
            sent = self.line.send(self.waiting) if self.waiting else 0
            self.waiting = self.waiting[sent:]
        if len(self.waiting) > MOST_WAITING:
            raise ConnectionAbortedError


class Watchers:
    """All connections of one run."""

    def __init__(
        self,
        folder: Path,
        *,
        answer: Answer,
        on_input: Callable[[bytes], object],
        on_size: Callable[[int, int], object],
        replay: Callable[[], bytes],
        may_connect: Callable[[int | None], bool] = lambda pid: True,
        may_type: Callable[[int | None], bool] = lambda pid: True,
    ) -> None:
        self._folder = folder
        self._server = control_socket.listen(folder)
        self._answer = answer
        self._on_input = on_input
        self._on_size = on_size
        self._replay = replay
        self._may_connect = may_connect
        self._may_type = may_type
        self._open: dict[int, Watcher] = {}

    @property
    def has_attached(self) -> bool:
        return any(watcher.attached for watcher in self._open.values())

    def register(self, poll: "select.poll") -> None:
        poll.register(self._server, select.POLLIN)
        for number, watcher in self._open.items():
            events = select.POLLIN | (select.POLLOUT if watcher.waiting else 0)
            poll.register(number, events)

    def handle(self, ready: Iterable[tuple[int, int]]) -> None:
        """Deal with whatever is ready; a connection that makes trouble is closed."""
        for number, _ in ready:
            if number == self._server.fileno():
                self._accept()
            elif number in self._open:
                watcher = self._open[number]
                try:
                    watcher.flush()
                    self._read(watcher)
                except Exception:  # whatever a stranger sends, it costs them the line and no more
                    self._drop(number)

    def show(self, data: bytes) -> None:
        """Pass on what the agent wrote to those who are attached."""
        self._tell_attached(control_socket.DATA, data)

    def suspend(self) -> None:
        """The agent was suspended from its terminal: so are those who are attached."""
        self._tell_attached(control_socket.STOPPED, b"")

    def _tell_attached(self, kind: bytes, payload: bytes) -> None:
        for number, watcher in list(self._open.items()):
            if watcher.attached:
                try:
                    watcher.send(kind, payload)
                except OSError:
                    self._drop(number)

    def end(self, how: dict[str, Any]) -> None:
        """The run is over: say so to everybody, and hang up."""
        for number, watcher in list(self._open.items()):
            with suppress(OSError):
                watcher.line.settimeout(1.0)
                watcher.line.sendall(
                    watcher.waiting + control_socket.frame(control_socket.END, how)
                )
            self._drop(number)
        self._server.close()
        with suppress(OSError):
            (self._folder / control_socket.NAME).unlink()

    def _accept(self) -> None:
        with suppress(OSError):
            line, _ = self._server.accept()
            if not control_socket.is_ours(line) or not self._may_connect(
                control_socket.peer_pid(line)
            ):
                line.close()
                return
            line.setblocking(False)
            self._open[line.fileno()] = Watcher(line)

    def _read(self, watcher: Watcher) -> None:
        with suppress(BlockingIOError):
            data = watcher.line.recv(65_536)
            if not data:
                raise ConnectionResetError
            for frame in watcher.frames.feed(data):
                self._obey(watcher, frame)

    def _obey(self, watcher: Watcher, frame: control_socket.Frame) -> None:
        if frame.kind == control_socket.DATA and watcher.attached:
            if self._may_type(watcher.pid):
                self._on_input(frame.payload)
        elif frame.kind == control_socket.SIZE and watcher.attached:
            self._on_size(*frame.value)
        elif frame.kind == control_socket.ASK:
            request = frame.value
            if request.get("op") == "attach":
                watcher.attached = True
                watcher.send(control_socket.ANSWER, {"ok": True})
                replay = self._replay()
                if replay:
                    watcher.send(control_socket.DATA, replay)
            elif request.get("op") == "send" and not self._may_type(watcher.pid):
                watcher.send(control_socket.ANSWER, TYPED_INSIDE)
            else:
                self._answer(request, partial(self._reply, watcher))

    def _reply(self, watcher: Watcher, answer: dict[str, Any]) -> None:
        """Send an answer, perhaps late; the caller may have disconnected."""
        if watcher in self._open.values():
            try:
                watcher.send(control_socket.ANSWER, answer)
            except OSError:
                self._drop(watcher.line.fileno())

    def _drop(self, number: int) -> None:
        watcher = self._open.pop(number)
        watcher.line.close()
