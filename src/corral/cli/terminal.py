"""Passing a terminal, or plain input and output, through to a run that a keeper holds."""

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
from corral.adapters.output.opening import open_regular
from corral.cli.app import terminal_size
from corral.cli.terminal_modes import TerminalModes

DETACH = b"\x1c"  # Ctrl-\
LONGEST_SLEEP = 0.05


class Outlet(NamedTuple):
    """Where an output goes, and what is made of it on the way."""

    to: int
    show: Callable[[bytes], bytes]
    finish: Callable[[], bytes] = bytes
    """What is left to show at the end."""


class Detached(Exception):
    """The person took their hands off; the run goes on."""


class NothingSeen(Exception):
    """The run was over before anything of it was seen."""


@contextmanager
def raw() -> Iterator[None]:
    """Every key goes to the run as it is typed; the terminal is itself again afterwards."""
    if not os.isatty(0):
        yield
        return
    descriptor = 0
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor, termios.TCSADRAIN)  # what was typed before counts too
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def attach(folder: Path, *, to: int = 1) -> None:
    """Show a run's terminal and pass on what is typed, until nobody holds the run any more.

    Raises Detached when the detach key is typed, NothingSeen when the run was over too soon.
    """
    try:
        line = control_socket.connect(folder)
    except OSError:
        raise NothingSeen from None
    woken, wake = os.pipe()
    resized = signal.signal(signal.SIGWINCH, lambda *_: _ring(wake))
    try:
        line.sendall(control_socket.frame(control_socket.ASK, {"op": "attach"}))
        line.sendall(control_socket.frame(control_socket.SIZE, list(terminal_size())))
        modes = TerminalModes()
        with raw():
            try:
                _pass_through(line, woken, to, modes)
            except Detached:
                if os.isatty(to) and not modes.is_alternate:
                    # Keep the program's output above; the cursor may be in the middle of it.
                    write(to, b"\x1b[0m\x1b[999;1H\x1b[J")
                raise
            finally:
                if os.isatty(to):
                    with suppress(OSError):
                        write(to, modes.reset())
    finally:
        signal.signal(signal.SIGWINCH, resized)
        line.close()
        os.close(woken)
        os.close(wake)


def _ring(wake: int) -> None:
    with suppress(OSError):
        os.write(wake, b".")


def _pass_through(line: socket.socket, woken: int, to: int, modes: TerminalModes) -> None:
    frames = control_socket.Frames()
    typing = [0] if _is_open(0) else []
    seen = False
    while True:
        ready, _, _ = select.select([line.fileno(), woken, *typing], [], [])
        if woken in ready:
            os.read(woken, 64)
            line.sendall(control_socket.frame(control_socket.SIZE, list(terminal_size())))
        if typing and typing[0] in ready:
            data = os.read(typing[0], 65_536)
            if not data:
                typing = []
            elif DETACH in data and os.isatty(0):
                raise Detached
            else:
                line.sendall(control_socket.frame(control_socket.DATA, data))
        if line.fileno() in ready:
            shown, over = _show(line, frames, to, modes)
            seen = seen or shown
            if over:
                if not seen:
                    raise NothingSeen
                return


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _show(
    line: socket.socket, frames: control_socket.Frames, to: int, modes: TerminalModes
) -> tuple[bool, bool]:
    """Show what came; whether there was anything to see, and whether the run is over."""
    try:
        data = line.recv(1 << 16)
    except OSError:
        data = b""
    shown = False
    for frame in frames.feed(data):
        if frame.kind == control_socket.DATA:
            write(to, frame.payload)
            modes.feed(frame.payload)
            shown = True
        elif frame.kind == control_socket.STOPPED:
            _suspend(line)
        elif frame.kind == control_socket.END:
            return shown, True
    return shown, not data


def _suspend(line: socket.socket) -> None:
    """The run was suspended (Ctrl-Z): so is this command, until its shell wakes it."""
    if os.isatty(0):
        mode = termios.tcgetattr(0)
        mode[3] |= termios.ECHO | termios.ICANON | termios.ISIG
        mode[1] |= termios.OPOST
        termios.tcsetattr(0, termios.TCSADRAIN, mode)
    os.kill(os.getpid(), signal.SIGSTOP)
    if os.isatty(0):
        tty.setraw(0)
    line.sendall(
        control_socket.frame(control_socket.ASK, {"op": "signal", "number": int(signal.SIGCONT)})
    )
    line.sendall(control_socket.frame(control_socket.SIZE, list(terminal_size())))


def write(descriptor: int, data: bytes) -> None:
    """All of it, however much the other side takes at once."""
    while data:
        data = data[os.write(descriptor, data) :]


# -- runs without a terminal -------------------------------------------------------------------


class Copy:
    """One output of a run, shown as it grows."""

    def __init__(self, path: Path, outlet: Outlet) -> None:
        self._path = path
        self._to, self._show, _ = outlet
        self._from: int | None = None

    def more(self) -> bool:
        """Show what is new; whether there was anything."""
        if self._from is None:
            try:
                self._from = open_regular(self._path)
            except FileNotFoundError:
                return False
        found = False
        while data := os.read(self._from, 1 << 18):
            write(self._to, self._show(data))
            found = True
        return found

    @property
    def opened(self) -> bool:
        """Whether it was there in time; a short run's output may have been sealed before."""
        return self._from is not None


def stream(
    folder: Path, *, is_over: Callable[[], bool], outlets: Mapping[str, Outlet]
) -> list[str]:
    """Show what a run writes until it is over; gives back the outputs that were sealed before they
    could be opened."""
    copies = {name: Copy(folder / name, outlet) for name, outlet in outlets.items()}
    pause = 0.001
    while True:
        over = is_over() if pause >= LONGEST_SLEEP or not _keeper_is_there(folder) else False
        if any([copy.more() for copy in copies.values()]):
            pause = 0.001
            continue
        if over:
            return [name for name, copy in copies.items() if not copy.opened]
        time.sleep(pause)
        pause = min(pause * 2, LONGEST_SLEEP)


def _keeper_is_there(folder: Path) -> bool:
    """A keeper removes its line when its run is over."""
    return (folder / control_socket.NAME).exists()


class Signals:
    """What this command is told by signals is meant for its run; what comes before the run can be
    told is told it then."""

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGTSTP)

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._folder: Path | None = None
        self.early: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if self._wanted:
            self._before = {number: signal.signal(number, self._pass_on) for number in self.NUMBERS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def aim(self, folder: Path) -> None:
        """The run is there."""
        self._folder = folder
        while self.early:
            self._pass_on(self.early.pop(0), None)

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        if self._folder is None:
            self.early.append(number)
            return
        with suppress(OSError):
            control_socket.ask(self._folder, op="signal", number=number)
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)
            with suppress(OSError):
                control_socket.ask(self._folder, op="signal", number=int(signal.SIGCONT))
