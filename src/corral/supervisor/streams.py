"""How an agent's input and output are held.

    Direct     the agent writes straight into its output file; nothing is copied
    Copied     the keeper copies, because what passes may hold a secret that was given to the run
    Talk       the keeper and the agent talk by a protocol over input and output
    Terminal   the agent has a terminal of its own, whose other end the keeper holds

Each opens what the agent gets (`stdio`), hands on what the keeper must copy (`handle`), and tells
whether it takes input (`type_in`). The agent reads its input when it likes to: what it has not
taken yet waits here, and never holds up the keeper.
"""

import os
import select
import time
from collections.abc import Callable, Container
from contextlib import suppress
from pathlib import Path

from corral.kernel.errors import Conflict
from corral.supervisor.child import Stdio

OUTPUT = "output"
ERRORS = "errors"
PIECE = 1 << 16
MOST = 1 << 18
LONGEST_TAKE = 0.02  # seconds for which more is waited for, a moment each time
MOMENT_MS = 1
Sink = Callable[[bytes], None]


class Streams:
    """What every way has in common: an input, and files that only their user may read."""

    source: int | None = None
    """A descriptor that the keeper must read from, and copy."""
    typed_signals: frozenset[int] = frozenset()
    """Signals that somebody's keys were made into: an interrupt by Ctrl-C."""
    errors: int | None = None
    """The same for what the agent writes to standard error, where that is kept apart."""
    most_untyped = 0
    """Bytes of input that may wait for the agent; who reads none gets no more."""
    size: tuple[int, int] | None = None
    """The rows and columns of the agent's terminal, if it has one."""
    _target: int | None = None
    """Where the agent's input is written."""

    def __init__(self, folder: Path, *, stdin: str | int | None) -> None:
        self.folder = folder
        self._given = stdin
        self._agents: list[int] = []
        self._untyped = bytearray()
        self._is_last = False

    def stdio(self) -> Stdio:
        raise NotImplementedError

    def take(self) -> bytes | None:
        """What the agent wrote since, up to `MOST`; None when it can write no more."""
        return None if self.source is None else _taken(self.source)

    def take_errors(self) -> bytes | None:
        """The same of its standard error."""
        return None if self.errors is None else _taken(self.errors)

    def register(self, poll: "select.poll") -> None:
        """Say what the keeper is to be woken for."""
        events: dict[int, int] = {}
        for descriptor in (self.source, self.errors):
            if descriptor is not None:
                events[descriptor] = select.POLLIN
        if self._target is not None and self._untyped:
            events[self._target] = events.get(self._target, 0) | select.POLLOUT
        for descriptor, wanted in events.items():
            poll.register(descriptor, wanted)

    def handle(self, ready: Container[int], keep: Sink, keep_errors: Sink) -> None:
        """Deal with what is ready: hand on what was written, and type what waits."""
        self._type_on()
        if self.source is not None and self.source in ready:
            if (data := self.take()) is None:
                self._close_source()
            elif data:
                keep(data)
        if self.errors is not None and self.errors in ready:
            if (data := self.take_errors()) is None:
                self._close_errors()
            elif data:
                keep_errors(data)

    def drain(self, keep: Sink, keep_errors: Sink) -> None:
        """Hand on whatever the agent still left in its terminal or pipes."""
        while data := self.take():
            keep(data)
        while data := self.take_errors():
            keep_errors(data)

    def type_in(self, data: bytes) -> bool:
        """Give the agent input; False when it takes none, or reads none."""
        if self._target is None or self._is_last:
            return False
        if len(self._untyped) + len(data) > self.most_untyped:
            return False
        self._untyped += data
        return self._type_on()

    def _type_on(self) -> bool:
        """It takes a few KiB at a time; False when it will take no more."""
        try:
            while self._untyped and self._target is not None:
                # Not all at once: what is left is moved with each piece.
                del self._untyped[: os.write(self._target, self._untyped[:PIECE])]
        except BlockingIOError:
            return True
        except OSError:
            self._untyped.clear()
            return False
        if self._is_last:
            self._close_target()
        return True

    def hang_up(self) -> bool:
        """Tell the agent that nothing more will come; False when it cannot be told."""
        return False

    def _close_target(self) -> None:
        """Where its input is not the same as its output."""

    def resize(self, rows: int, columns: int) -> None:
        """A watcher's terminal has this size."""

    def handed_over(self) -> None:
        """The agent has its ends; the keeper needs them no more."""
        for descriptor in self._agents:
            os.close(descriptor)
        self._agents.clear()

    def close(self) -> None:
        self.handed_over()
        self._close_errors()
        self._close_source()

    def _close_source(self) -> None:
        self._close_target()
        if self.source is not None:
            os.close(self.source)
            self.source = self._target = None

    def _close_errors(self) -> None:
        if self.errors is not None:
            os.close(self.errors)
            self.errors = None

    def _stdin(self) -> int:
        """What the agent reads: nothing, a descriptor that was passed on, or a text."""
        if isinstance(self._given, int):
            return self._given
        if self._given is None:
            return self._agents_own(os.open(os.devnull, os.O_RDONLY))
        # A file without a name: the agent reads at its own pace, and nobody has to feed it.
        name = self.folder / f"input.{os.getpid()}"  # a keeper that comes too late has its own
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.unlink(name)
        data = self._given.encode("utf-8", "surrogateescape")
        while data:
            data = data[os.write(descriptor, data) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
        return self._agents_own(descriptor)

    def _agents_own(self, descriptor: int) -> int:
        self._agents.append(descriptor)
        return descriptor

    def _file(self, name: str) -> int:
        if (self.folder / f"{name}.zst").exists():
            raise Conflict("The run is over: its output is sealed.")
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        return self._agents_own(os.open(self.folder / name, flags, 0o600))

    def _pipe(self, name: str) -> tuple[int, int]:
        """What the keeper reads and the agent writes, to be copied into a file."""
        self._file(name)  # there is an output, though it may be empty for long
        source, output = os.pipe()
        with suppress(ImportError, OSError, AttributeError):
            import fcntl

            fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, 1 << 20)
        os.set_blocking(source, False)
        return source, self._agents_own(output)


def _taken(source: int) -> bytes | None:
    # A terminal gives 4 KiB at a time, and more a moment later: what is done with them is cheaper
    # for many of these at once.
    pieces: list[bytes] = []
    size = 0
    until = time.monotonic() + LONGEST_TAKE
    while size < MOST:
        try:
            piece = os.read(source, PIECE)
        except BlockingIOError:
            if pieces and time.monotonic() < until and _more_soon(source):
                continue
            break
        except OSError:  # EIO: nobody has the other end of the terminal any more
            piece = b""
        if not piece:
            return b"".join(pieces) if pieces else None
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


def _more_soon(source: int) -> bool:
    poll = select.poll()
    poll.register(source, select.POLLIN)
    return bool(poll.poll(MOMENT_MS))


class Direct(Streams):
    """The agent writes straight into its files; copying through Python would cost it time."""

    def __init__(self, folder: Path, *, stdin: str | int | None, split: bool) -> None:
        super().__init__(folder, stdin=stdin)
        self._split = split

    def stdio(self) -> Stdio:
        output = self._file(OUTPUT)
        return Stdio(self._stdin(), output, self._file(ERRORS) if self._split else output)


class Copied(Streams):
    """The agent writes into a pipe, and the keeper copies."""

    def __init__(self, folder: Path, *, stdin: str | int | None, split: bool) -> None:
        super().__init__(folder, stdin=stdin)
        self._split = split

    def stdio(self) -> Stdio:
        self.source, output = self._pipe(OUTPUT)
        errors = output
        if self._split:
            self.errors, errors = self._pipe(ERRORS)
        return Stdio(self._stdin(), output, errors)


class Talk(Copied):
    """The keeper talks with the agent: it writes the agent's input and reads its output. What it
    writes to standard error goes straight into its file, unless it may hold a secret (`split`)."""

    most_untyped = 16 << 20

    def stdio(self) -> Stdio:
        stdin, self._target = os.pipe()
        os.set_blocking(self._target, False)
        self._agents_own(stdin)
        stdio = super().stdio()
        return stdio._replace(
            stdin=stdin, stderr=stdio.stderr if self._split else self._file(ERRORS)
        )

    def hang_up(self) -> bool:
        if self._target is None:
            return False
        self._is_last = True
        self._type_on()
        return True

    def _close_target(self) -> None:
        if self._target is not None:
            os.close(self._target)
            self._target = None


class Terminal(Streams):
    """The agent has a terminal."""

    most_untyped = 1 << 20

    def __init__(self, folder: Path, *, rows: int, columns: int) -> None:
        super().__init__(folder, stdin=None)
        self.size: tuple[int, int] = rows, columns
        # Held open to the end: a program may close its terminal a moment before it ends, and must
        # not be hung up for that.
        self._far_end: int | None = None

    def stdio(self) -> Stdio:
        self._file(OUTPUT)
        master, slave = os.openpty()
        os.set_blocking(master, False)
        self.source = self._target = master
        self._far_end = slave
        rows, columns = self.size
        self.resize(rows, columns)
        return Stdio(slave, slave, slave, terminal=True)

    def type_in(self, data: bytes) -> bool:
        self.typed_signals |= self._signals_of(data)
        return super().type_in(data)

    def _signals_of(self, data: bytes) -> frozenset[int]:
        """Which signals the terminal makes of these keys; none where it hands them on itself."""
        import signal
        import termios

        try:
            mode = termios.tcgetattr(self.source or 0)
        except (OSError, termios.error):
            return frozenset()
        if not mode[3] & termios.ISIG:
            return frozenset()
        keys = {termios.VINTR: signal.SIGINT, termios.VQUIT: signal.SIGQUIT}
        return frozenset(number for key, number in keys.items() if mode[6][key] in data)

    def resize(self, rows: int, columns: int) -> None:
        import fcntl
        import struct
        import termios

        if self.source is not None and 0 < rows < 10_000 and 0 < columns < 10_000:
            self.size = rows, columns
            size = struct.pack("HHHH", rows, columns, 0, 0)
            with suppress(OSError):
                fcntl.ioctl(self.source, termios.TIOCSWINSZ, size)

    def close(self) -> None:
        super().close()
        if self._far_end is not None:
            os.close(self._far_end)
            self._far_end = None
