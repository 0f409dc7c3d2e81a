"""The connections to a run's control socket: clients that attach, type or send requests."""

import select
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from corral.adapters import control_socket

# A client that does not read is disconnected: it must not block the agent.
MAX_UNSENT_BYTES = 4 << 20

# Receives a request and a function to reply with, at once or later.
RequestHandler = Callable[[dict[str, Any], Callable[[dict[str, Any]], None]], None]
INSIDE_RUN = {"ok": False, "error": "inside_run"}


class ControlConnection:
    """One client."""

    def __init__(self, client: socket.socket) -> None:
        self.socket = client
        self.decoder = control_socket.FrameDecoder()
        self.attached = False
        self.unsent = b""
        self.pid = control_socket.peer_pid(client)

    def send(self, kind: bytes, payload: bytes | Any = b"") -> None:
        self.unsent += control_socket.encode_frame(kind, payload)
        self.flush()

    def flush(self) -> None:
        with suppress(BlockingIOError):
            sent = self.socket.send(self.unsent) if self.unsent else 0
            self.unsent = self.unsent[sent:]
        if len(self.unsent) > MAX_UNSENT_BYTES:
            raise ConnectionAbortedError


class ControlConnections:
    """All clients of one run."""

    def __init__(
        self,
        folder: Path,
        *,
        handle_request: RequestHandler,
        on_input: Callable[[bytes], object],
        on_size: Callable[[int, int], object],
        replay: Callable[[], bytes],
        may_connect: Callable[[int | None], bool] = lambda pid: True,
        may_type: Callable[[int | None], bool] = lambda pid: True,
    ) -> None:
        self._folder = folder
        self._server = control_socket.listen(folder)
        self._handle_request = handle_request
        self._on_input = on_input
        self._on_size = on_size
        self._replay = replay
        self._may_connect = may_connect
        self._may_type = may_type
        self._connections: dict[int, ControlConnection] = {}

    @property
    def has_attached(self) -> bool:
        return any(connection.attached for connection in self._connections.values())

    def register(self, poll: "select.poll") -> None:
        poll.register(self._server, select.POLLIN)
        for descriptor, connection in self._connections.items():
            events = select.POLLIN | (select.POLLOUT if connection.unsent else 0)
            poll.register(descriptor, events)

    def handle(self, ready: Iterable[tuple[int, int]]) -> None:
        """Handle the descriptors that are ready; a connection that fails is closed."""
        for descriptor, _ in ready:
            if descriptor == self._server.fileno():
                self._accept()
            elif descriptor in self._connections:
                connection = self._connections[descriptor]
                try:
                    connection.flush()
                    self._read(connection)
                except Exception:  # invalid input only costs the client its connection
                    self._drop(descriptor)

    def send_output(self, data: bytes) -> None:
        """Send output of the agent to the attached clients."""
        self._send_attached(control_socket.DATA, data)

    def notify_suspended(self) -> None:
        """Tell the attached clients that the agent was suspended from its terminal."""
        self._send_attached(control_socket.STOPPED, b"")

    def _send_attached(self, kind: bytes, payload: bytes) -> None:
        for descriptor, connection in list(self._connections.items()):
            if connection.attached:
                try:
                    connection.send(kind, payload)
                except OSError:
                    self._drop(descriptor)

    def end(self, result: dict[str, Any]) -> None:
        """Send the result of the run to all clients, disconnect them and remove the socket."""
        for descriptor, connection in list(self._connections.items()):
            with suppress(OSError):
                connection.socket.settimeout(1.0)
                connection.socket.sendall(
                    connection.unsent + control_socket.encode_frame(control_socket.END, result)
                )
            self._drop(descriptor)
        self._server.close()
        with suppress(OSError):
            (self._folder / control_socket.SOCKET_NAME).unlink()

    def _accept(self) -> None:
        with suppress(OSError):
            client, _ = self._server.accept()
            if not control_socket.is_same_user(client) or not self._may_connect(
                control_socket.peer_pid(client)
            ):
                client.close()
                return
            client.setblocking(False)
            self._connections[client.fileno()] = ControlConnection(client)

    def _read(self, connection: ControlConnection) -> None:
        with suppress(BlockingIOError):
            data = connection.socket.recv(65_536)
            if not data:
                raise ConnectionResetError
            for frame in connection.decoder.feed(data):
                self._handle_frame(connection, frame)
                if connection not in self._connections.values():
                    return  # the client has disconnected without reading the response

    def _handle_frame(
        self, connection: ControlConnection, frame: control_socket.ControlFrame
    ) -> None:
        if frame.kind == control_socket.DATA and connection.attached:
            if self._may_type(connection.pid):
                self._on_input(frame.payload)
        elif frame.kind == control_socket.SIZE and connection.attached:
            self._on_size(*frame.value)
        elif frame.kind == control_socket.REQUEST:
            request = frame.value
            if request.get("op") == "attach":
                connection.attached = True
                connection.send(control_socket.RESPONSE, {"ok": True})
                replay = self._replay()
                if replay:
                    connection.send(control_socket.DATA, replay)
            elif request.get("op") == "send" and not self._may_type(connection.pid):
                connection.send(control_socket.RESPONSE, INSIDE_RUN)
            else:
                self._handle_request(request, partial(self._reply, connection))

    def _reply(self, connection: ControlConnection, response: dict[str, Any]) -> None:
        """Send a response, perhaps late; the client may have disconnected."""
        if connection in self._connections.values():
            try:
                connection.send(control_socket.RESPONSE, response)
            except OSError:
                self._drop(connection.socket.fileno())

    def _drop(self, descriptor: int) -> None:
        """Close a connection. Does nothing if it is closed already."""
        connection = self._connections.pop(descriptor, None)
        if connection is not None:
            connection.socket.close()
