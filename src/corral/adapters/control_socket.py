"""The line between a run's keeper and those who watch it, type into it or stop it.

A Unix socket in the run's private folder carries frames: one byte that tells the kind, four that
tell the length, then the payload.
"""

import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

ASK = b"?"  # a request, as JSON: {"op": "attach" | "send" | "signal" | "stop" | "look", …}
ANSWER = b"!"  # the answer to it, as JSON
DATA = b"d"  # bytes of the terminal, in both directions
SIZE = b"s"  # the watcher's terminal has this size: JSON [rows, columns]
STOPPED = b"z"  # the agent was suspended from its terminal (Ctrl-Z)
END = b"e"  # the run is over: JSON {"exit_code", "signal"}; nothing follows

NAME = "line"
MOST = 1 << 20
_HEAD = struct.Struct("!cI")


class Frame(NamedTuple):
    kind: bytes
    payload: bytes

    @property
    def value(self) -> Any:
        return msgspec.json.decode(self.payload)


def frame(kind: bytes, payload: bytes | Any = b"") -> bytes:
    body = payload if isinstance(payload, bytes) else msgspec.json.encode(payload)
    return _HEAD.pack(kind, len(body)) + body


class Frames:
    """Frames out of a stream of bytes, however it is cut."""

    def __init__(self) -> None:
        self._left = b""

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are whole now; ValueError when it is no such stream."""
        self._left += data
        found = []
        while len(self._left) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._left)
            if length > MOST:
                raise ValueError("a frame that is too long")
            if len(self._left) < _HEAD.size + length:
                break
            found.append(Frame(kind, self._left[_HEAD.size : _HEAD.size + length]))
            self._left = self._left[_HEAD.size + length :]
        return found


def listen(folder: Path) -> socket.socket:
    """The keeper's end. A name left behind by a keeper that died is taken over."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.setblocking(False)
    with _short(folder) as name:
        with suppress(FileNotFoundError):
            os.unlink(folder / NAME)
        server.bind(name)
    os.chmod(folder / NAME, 0o600)
    server.listen(16)
    return server


def connect(folder: Path, *, timeout: float = 10.0) -> socket.socket:
    """The watcher's end. OSError when no keeper answers."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(timeout)
    try:
        with _short(folder) as name:
            client.connect(name)
    except BaseException:
        client.close()
        raise
    return client


def ask(folder: Path, *, timeout: float = 10.0, **request: Any) -> dict[str, Any]:
    """One request and its answer. OSError when no keeper answers in time."""
    with connect(folder, timeout=timeout) as line:
        line.sendall(frame(ASK, request))
        frames = Frames()
        while data := line.recv(65_536):
            for got in frames.feed(data):
                if got.kind == ANSWER:
                    answer: dict[str, Any] = got.value
                    return answer
    raise ConnectionResetError("the keeper ended before it answered")


def is_ours(line: socket.socket) -> bool:
    """Whether the other end belongs to the same user, where the system tells."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # the folder is private; that is the guard there
    return _credentials(line)[1] in (os.getuid(), 0)


def peer_pid(line: socket.socket) -> int | None:
    """The process that connected, also when it has ended since; None where the system does not
    tell, and for a process outside of this pid namespace."""
    return (_credentials(line)[0] or None) if hasattr(socket, "SO_PEERCRED") else None


def _credentials(line: socket.socket) -> tuple[int, int, int]:
    told = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("3i", told)
    return pid, uid, gid


class _short:
    """A name for the socket that is short enough for the system, however deep the folder is."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor = -1

    def __enter__(self) -> str:
        whole = str(self._folder / NAME)
        if len(whole) < 100 or not os.path.isdir("/proc/self/fd"):
            return whole
        self._descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        return f"/proc/self/fd/{self._descriptor}/{NAME}"

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
