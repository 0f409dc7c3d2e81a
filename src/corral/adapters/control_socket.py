"""The protocol of a run's control socket: attach, type, signal, stop.

A Unix socket in the run's private folder carries frames: one byte for the kind, four bytes for the
length, then the payload.
"""

import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

REQUEST = b"?"  # a request, as JSON: {"op": "attach" | "send" | "signal" | "stop", …}
RESPONSE = b"!"  # the response to a request, as JSON
DATA = b"d"  # terminal input or output
SIZE = b"s"  # size of the client's terminal: JSON [rows, columns]
STOPPED = b"z"  # the agent was suspended from its terminal (Ctrl-Z)
END = b"e"  # the run has ended: JSON {"exit_code", "signal"}; the last frame

SOCKET_NAME = "control.sock"
MAX_PAYLOAD = 1 << 20
_HEAD = struct.Struct("!cI")


class ControlFrame(NamedTuple):
    """One message of the protocol."""

    kind: bytes
    payload: bytes

    @property
    def value(self) -> Any:
        """The payload, decoded from JSON."""
        return msgspec.json.decode(self.payload)


def encode_frame(kind: bytes, payload: bytes | Any = b"") -> bytes:
    """Encode a frame; a payload that is not bytes becomes JSON."""
    body = payload if isinstance(payload, bytes) else msgspec.json.encode(payload)
    return _HEAD.pack(kind, len(body)) + body


class FrameDecoder:
    """Decodes frames from a byte stream that arrives in arbitrary pieces."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[ControlFrame]:
        """Return the frames that are complete; raises ValueError for invalid data."""
        self._buffer += data
        frames = []
        while len(self._buffer) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._buffer)
            if length > MAX_PAYLOAD:
                raise ValueError(f"frame of {length} bytes exceeds the limit")
            if len(self._buffer) < _HEAD.size + length:
                break
            frames.append(ControlFrame(kind, self._buffer[_HEAD.size : _HEAD.size + length]))
            self._buffer = self._buffer[_HEAD.size + length :]
        return frames


class NoResponse(OSError):
    """A supervisor was sent a request and did not respond; it may have performed it."""


def listen(folder: Path) -> socket.socket:
    """Create the supervisor's end. Replaces a socket left by a supervisor that died."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.setblocking(False)
    with _ShortPath(folder) as name:
        with suppress(FileNotFoundError):
            os.unlink(folder / SOCKET_NAME)
        server.bind(name)
    os.chmod(folder / SOCKET_NAME, 0o600)
    server.listen(16)
    return server


def connect(folder: Path, *, timeout: float = 10.0) -> socket.socket:
    """Connect to the supervisor of a run; raises OSError if there is none."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(timeout)
    try:
        with _ShortPath(folder) as name:
            client.connect(name)
    except BaseException:
        client.close()
        raise
    return client


def send_request(folder: Path, *, timeout: float = 10.0, **request: Any) -> dict[str, Any]:
    """Send one request and return the response.

    Raises OSError if the supervisor is not reachable, and NoResponse if it may have received the
    request.
    """
    with connect(folder, timeout=timeout) as client:
        try:
            client.sendall(encode_frame(REQUEST, request))
            decoder = FrameDecoder()
            while data := client.recv(65_536):
                for frame in decoder.feed(data):
                    if frame.kind == RESPONSE:
                        response: dict[str, Any] = frame.value
                        return response
        except OSError as error:
            raise NoResponse("the supervisor did not respond in time") from error
    raise NoResponse("the supervisor exited before it responded")


def is_same_user(client: socket.socket) -> bool:
    """Whether the other end belongs to the same user or root, if the system reports it."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # the private folder protects the socket
    return _read_credentials(client)[1] in (os.getuid(), 0)


def peer_pid(client: socket.socket) -> int | None:
    """Return the pid of the process that connected, even if it has ended since.

    `INVISIBLE_PID` for a process outside of this pid namespace; None if the system reports no pid.
    """
    return _read_credentials(client)[0] if hasattr(socket, "SO_PEERCRED") else None


def _read_credentials(client: socket.socket) -> tuple[int, int, int]:
    data = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("3i", data)
    return pid, uid, gid


class _ShortPath:
    """A path of the socket within the length limit of Unix sockets (108 bytes on Linux).

    A long path is shortened with the `/proc/self/fd` entry of the open folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor = -1

    def __enter__(self) -> str:
        path = str(self._folder / SOCKET_NAME)
        if len(path) < 100 or not os.path.isdir("/proc/self/fd"):
            return path
        self._descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        return f"/proc/self/fd/{self._descriptor}/{SOCKET_NAME}"

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
