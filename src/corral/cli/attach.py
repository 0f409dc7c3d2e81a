"""Connect the terminal, or plain input and output, to a supervised run."""

import os
import select
import signal
import socket
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Self

from corral.adapters import control_socket
from corral.adapters.output.regular_file import open_regular_file
from corral.cli.terminal_modes import TerminalModes
from corral.cli.tty import terminal_size

DETACH_KEY = b"\x1c"  # Ctrl-\
MAX_POLL_SECONDS = 0.05


class OutputSink(NamedTuple):
    """A file descriptor, and the conversion of the bytes that are written to it."""

    to: int
    show: Callable[[bytes], bytes]
    finish: Callable[[], bytes] = bytes
    """Returns what remains to be written at the end."""


class Detached(Exception):
    """The user pressed the detach key; the run continues."""


class NoOutputSeen(Exception):
    """The run ended before any of its output was received."""


@contextmanager
def raw_mode() -> Iterator[None]:
    """Put the terminal on standard input into raw mode; restore it at the end."""
    if not os.isatty(0):
        yield
        return
    descriptor = 0
    before = termios.tcgetattr(descriptor)
    try:
        # TCSADRAIN, not TCSAFLUSH: input that was typed ahead is kept.
        tty.setraw(descriptor, termios.TCSADRAIN)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def attach(folder: Path, *, to: int = 1) -> None:
    """Show the terminal of a run and forward input until the supervisor closes the connection.

    Raises Detached when the detach key is pressed, NoOutputSeen when the run ended before any
    output was received.
    """
    try:
        connection = control_socket.connect(folder)
    except OSError:
        raise NoOutputSeen from None
    resize_read, resize_write = os.pipe()
    before = signal.signal(signal.SIGWINCH, lambda *_: _notify(resize_write))
    try:
        connection.sendall(control_socket.encode_frame(control_socket.REQUEST, {"op": "attach"}))
        connection.sendall(control_socket.encode_frame(control_socket.SIZE, list(terminal_size())))
        modes = TerminalModes()
        with raw_mode():
            try:
                _forward(connection, resize_read, to, modes)
            except Detached:
                if os.isatty(to) and not modes.is_alternate:
                    # Keep the program's output on the screen: the cursor may be in its middle.
                    write_all(to, b"\x1b[0m\x1b[999;1H\x1b[J")
                raise
            finally:
                if os.isatty(to):
                    with suppress(OSError):
                        write_all(to, modes.reset())
    finally:
        signal.signal(signal.SIGWINCH, before)
        connection.close()
        os.close(resize_read)
        os.close(resize_write)


def _notify(pipe: int) -> None:
    with suppress(OSError):
        os.write(pipe, b".")


def _forward(connection: socket.socket, resized: int, to: int, modes: TerminalModes) -> None:
    frames = control_socket.FrameDecoder()
    inputs = [0] if _is_open(0) else []
    has_output = False
    while True:
        ready, _, _ = select.select([connection.fileno(), resized, *inputs], [], [])
        if resized in ready:
            os.read(resized, 64)
            connection.sendall(
                control_socket.encode_frame(control_socket.SIZE, list(terminal_size()))
            )
        if inputs and inputs[0] in ready:
            data = os.read(inputs[0], 65_536)
            if not data:
                inputs = []
            elif DETACH_KEY in data and os.isatty(0):
                raise Detached
            else:
                connection.sendall(control_socket.encode_frame(control_socket.DATA, data))
        if connection.fileno() in ready:
            shown, is_over = _show(connection, frames, to, modes)
            has_output = has_output or shown
            if is_over:
                if not has_output:
                    raise NoOutputSeen
                return


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _show(
    connection: socket.socket, frames: control_socket.FrameDecoder, to: int, modes: TerminalModes
) -> tuple[bool, bool]:
    """Write received output; return whether there was any, and whether the run has ended."""
    try:
        data = connection.recv(1 << 16)
    except OSError:
        data = b""
    shown = False
    for frame in frames.feed(data):
        if frame.kind == control_socket.DATA:
            write_all(to, frame.payload)
            modes.feed(frame.payload)
            shown = True
        elif frame.kind == control_socket.STOPPED:
            _suspend(connection)
        elif frame.kind == control_socket.END:
            return shown, True
    return shown, not data


def _suspend(connection: socket.socket) -> None:
    """Suspend this command because the run was suspended (Ctrl-Z); continue both on SIGCONT."""
    if os.isatty(0):
        mode = termios.tcgetattr(0)
        mode[3] |= termios.ECHO | termios.ICANON | termios.ISIG
        mode[1] |= termios.OPOST
        termios.tcsetattr(0, termios.TCSADRAIN, mode)
    os.kill(os.getpid(), signal.SIGSTOP)
    if os.isatty(0):
        tty.setraw(0)
    connection.sendall(
        control_socket.encode_frame(
            control_socket.REQUEST, {"op": "signal", "number": int(signal.SIGCONT)}
        )
    )
    connection.sendall(control_socket.encode_frame(control_socket.SIZE, list(terminal_size())))


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes, repeating after short writes."""
    while data:
        data = data[os.write(descriptor, data) :]


# -- runs without a terminal -------------------------------------------------------------------


class OutputCopier:
    """Copies one growing output file of a run to a sink."""

    def __init__(self, path: Path, sink: OutputSink) -> None:
        self._path = path
        self._to, self._show, _ = sink
        self._file: int | None = None

    def copy_new(self) -> bool:
        """Copy what was appended since the last call; return whether there was anything."""
        if self._file is None:
            try:
                self._file = open_regular_file(self._path)
            except FileNotFoundError:
                return False
        has_data = False
        while data := os.read(self._file, 1 << 18):
            write_all(self._to, self._show(data))
            has_data = True
        return has_data

    @property
    def opened(self) -> bool:
        """Whether the file was ever opened; the output of a short run may be sealed before."""
        return self._file is not None


def stream(
    folder: Path, *, is_over: Callable[[], bool], sinks: Mapping[str, OutputSink]
) -> list[str]:
    """Copy the output of a run until the run is over.

    Returns the names of the outputs that were sealed before they could be opened.
    """
    copiers = {name: OutputCopier(folder / name, sink) for name, sink in sinks.items()}
    pause = 0.001
    while True:
        # Asking the store is expensive, so ask only when idle or without a supervisor.
        is_idle = pause >= MAX_POLL_SECONDS or not _has_supervisor(folder)
        over = is_over() if is_idle else False
        if any([copier.copy_new() for copier in copiers.values()]):
            pause = 0.001
            continue
        if over:
            return [name for name, copier in copiers.items() if not copier.opened]
        time.sleep(pause)
        pause = min(pause * 2, MAX_POLL_SECONDS)


def _has_supervisor(folder: Path) -> bool:
    """Return whether the control socket exists; the supervisor removes it when the run ends."""
    return (folder / control_socket.SOCKET_NAME).exists()


class SignalForwarder:
    """Forwards signals of this command to its run.

    Signals that arrive before the run has started are queued and forwarded by `connect`.
    """

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGTSTP)

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._folder: Path | None = None
        self.early: list[int] = []
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if self._wanted:
            self._handlers = {
                number: signal.signal(number, self._forward) for number in self.NUMBERS
            }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def connect(self, folder: Path) -> None:
        """Start to forward, beginning with the queued signals. The run must have started."""
        self._folder = folder
        while self.early:
            self._forward(self.early.pop(0), None)

    def _forward(self, number: int, _: FrameType | None) -> None:
        if self._folder is None:
            self.early.append(number)
            return
        with suppress(OSError):
            control_socket.send_request(self._folder, op="signal", number=number)
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)
            with suppress(OSError):
                control_socket.send_request(self._folder, op="signal", number=int(signal.SIGCONT))
