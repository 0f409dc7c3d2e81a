"""Standard input and output of an agent.

    DirectStreams     the agent writes straight into its output file; nothing is copied
    CopiedStreams     the supervisor copies the output, because it may contain a secret of the run
    ProtocolStreams   supervisor and agent exchange protocol messages over input and output
    TerminalStreams   the agent has a pseudo-terminal, and the supervisor has its master side

Each class opens the descriptors for the agent (`open_stdio`), reads what must be copied (`handle`)
and writes input (`type_in`). Input that the agent does not read yet is buffered here, so that a
slow agent never blocks the supervisor.
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
STDERR = "stderr"
READ_BYTES = 1 << 16
# The maximum size and duration of one batch.
MAX_READ_BYTES = 1 << 18
MAX_READ_SECONDS = 0.02
# The maximum wait for more data of a batch.
READ_WAIT_MS = 1
Sink = Callable[[bytes], None]


class AgentStreams:
    """The base class: buffered input, and files that only their user may read."""

    source: int | None = None
    """The descriptor that the supervisor reads the agent's output from, to copy it."""
    typed_signals: frozenset[int] = frozenset()
    """Signals that the terminal generated from typed keys, such as SIGINT for Ctrl-C."""
    stderr: int | None = None
    """Like `source`, for standard error where it has a file of its own."""
    max_pending_input = 0
    """Maximum bytes of input that wait for the agent; more is refused."""
    size: tuple[int, int] | None = None
    """Rows and columns of the agent's terminal, if it has one."""
    _target: int | None = None
    """The descriptor that the agent's input is written to."""

    def __init__(self, folder: Path, *, stdin: str | int | None) -> None:
        """`stdin`: a text, an inherited descriptor, or None for /dev/null."""
        self.folder = folder
        self._stdin_source = stdin
        self._child_ends: list[int] = []
        self._pending_input = bytearray()
        self._is_input_closed = False

    def open_stdio(self) -> Stdio:
        """Open the streams and return the agent's ends."""
        raise NotImplementedError

    def read_output(self) -> bytes | None:
        """Read new output, up to `MAX_READ_BYTES`; None at end-of-file."""
        return None if self.source is None else _read_batch(self.source)

    def read_stderr(self) -> bytes | None:
        """Read new output of standard error, like `read_output`."""
        return None if self.stderr is None else _read_batch(self.stderr)

    def register(self, poll: "select.poll") -> None:
        """Register the descriptors that the supervisor waits for."""
        events: dict[int, int] = {}
        for descriptor in (self.source, self.stderr):
            if descriptor is not None:
                events[descriptor] = select.POLLIN
        if self._target is not None and self._pending_input:
            events[self._target] = events.get(self._target, 0) | select.POLLOUT
        for descriptor, mask in events.items():
            poll.register(descriptor, mask)

    def handle(self, ready: Container[int], on_output: Sink, on_stderr: Sink) -> None:
        """Write pending input and pass new output on."""
        self._write_pending()
        if self.source is not None and self.source in ready:
            if (data := self.read_output()) is None:
                self._close_source()
            elif data:
                on_output(data)
        if self.stderr is not None and self.stderr in ready:
            if (data := self.read_stderr()) is None:
                self._close_stderr()
            elif data:
                on_stderr(data)

    def drain(self, on_output: Sink, on_stderr: Sink) -> None:
        """Pass on all output that is left in the terminal or the pipes."""
        while data := self.read_output():
            on_output(data)
        while data := self.read_stderr():
            on_stderr(data)

    def type_in(self, data: bytes) -> bool:
        """Write input; return False if the agent takes none, or too much is pending."""
        if self._target is None or self._is_input_closed:
            return False
        if len(self._pending_input) + len(data) > self.max_pending_input:
            return False
        self._pending_input += data
        return self._write_pending()

    def _write_pending(self) -> bool:
        """Write as much pending input as the kernel accepts; return False if writing failed."""
        try:
            while self._pending_input and self._target is not None:
                # In pieces: deleting from the front moves the rest each time.
                written = os.write(self._target, self._pending_input[:READ_BYTES])
                del self._pending_input[:written]
        except BlockingIOError:
            return True
        except OSError:
            self._pending_input.clear()
            return False
        if self._is_input_closed:
            self._close_target()
        return True

    def close_input(self) -> bool:
        """Close the agent's input after what is pending; return False if that is not possible."""
        return False

    def _close_target(self) -> None:
        """Close the input descriptor, where it is not the same as the output descriptor."""

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of the terminal."""

    def close_child_ends(self) -> None:
        """Close the agent's ends after the fork; only the agent needs them."""
        for descriptor in self._child_ends:
            os.close(descriptor)
        self._child_ends.clear()

    def close(self) -> None:
        self.close_child_ends()
        self._close_stderr()
        self._close_source()

    def _close_source(self) -> None:
        self._close_target()
        if self.source is not None:
            os.close(self.source)
            self.source = self._target = None

    def _close_stderr(self) -> None:
        if self.stderr is not None:
            os.close(self.stderr)
            self.stderr = None

    def _open_stdin(self) -> int:
        """Return the descriptor that becomes the agent's standard input."""
        if isinstance(self._stdin_source, int):
            return self._stdin_source
        if self._stdin_source is None:
            return self._add_child_end(os.open(os.devnull, os.O_RDONLY))
        # An unlinked file: the agent reads at its own pace, without a writer on the other side.
        # The pid is in the name because a supervisor that lost the race may do the same.
        name = self.folder / f"input.{os.getpid()}"
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.unlink(name)
        data = self._stdin_source.encode("utf-8", "surrogateescape")
        while data:
            data = data[os.write(descriptor, data) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
        return self._add_child_end(descriptor)

    def _add_child_end(self, descriptor: int) -> int:
        self._child_ends.append(descriptor)
        return descriptor

    def _open_file(self, name: str) -> int:
        if (self.folder / f"{name}.zst").exists():
            raise Conflict("The run has ended: its output is sealed.")
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        return self._add_child_end(os.open(self.folder / name, flags, 0o600))

    def _open_pipe(self, name: str) -> tuple[int, int]:
        """Return the read end and the agent's end of a pipe whose data is copied into a file."""
        self._open_file(name)  # creates the file: readers expect it before the first output
        source, output = os.pipe()
        with suppress(ImportError, OSError, AttributeError):
            import fcntl

            fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, 1 << 20)
        os.set_blocking(source, False)
        return source, self._add_child_end(output)


def _read_batch(source: int) -> bytes | None:
    # A terminal returns 4 KiB per read, and more a moment later. Processing a large batch costs
    # less than processing many small ones.
    pieces: list[bytes] = []
    size = 0
    deadline = time.monotonic() + MAX_READ_SECONDS
    while size < MAX_READ_BYTES:
        try:
            piece = os.read(source, READ_BYTES)
        except BlockingIOError:
            if pieces and time.monotonic() < deadline and _wait_readable(source):
                continue
            break
        except OSError:  # EIO: the other side of the terminal is closed
            piece = b""
        if not piece:
            return b"".join(pieces) if pieces else None
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


def _wait_readable(source: int) -> bool:
    poll = select.poll()
    poll.register(source, select.POLLIN)
    return bool(poll.poll(READ_WAIT_MS))


class DirectStreams(AgentStreams):
    """The agent writes straight into its files: copying through Python would slow it down."""

    def __init__(self, folder: Path, *, stdin: str | int | None, split: bool) -> None:
        """`split`: standard error has a file of its own."""
        super().__init__(folder, stdin=stdin)
        self._split = split

    def open_stdio(self) -> Stdio:
        output = self._open_file(OUTPUT)
        stderr = self._open_file(STDERR) if self._split else output
        return Stdio(self._open_stdin(), output, stderr)


class CopiedStreams(AgentStreams):
    """The agent writes into a pipe, and the supervisor copies."""

    def __init__(self, folder: Path, *, stdin: str | int | None, split: bool) -> None:
        """`split`: standard error has a file of its own."""
        super().__init__(folder, stdin=stdin)
        self._split = split

    def open_stdio(self) -> Stdio:
        self.source, output = self._open_pipe(OUTPUT)
        stderr = output
        if self._split:
            self.stderr, stderr = self._open_pipe(STDERR)
        return Stdio(self._open_stdin(), output, stderr)


class ProtocolStreams(CopiedStreams):
    """The supervisor writes the agent's input and reads its output, as a protocol requires.

    Standard error goes straight into its file, unless it may contain a secret (`split`).
    """

    max_pending_input = 16 << 20

    def open_stdio(self) -> Stdio:
        stdin, self._target = os.pipe()
        os.set_blocking(self._target, False)
        self._add_child_end(stdin)
        stdio = super().open_stdio()
        return stdio._replace(
            stdin=stdin, stderr=stdio.stderr if self._split else self._open_file(STDERR)
        )

    def close_input(self) -> bool:
        if self._target is None:
            return False
        self._is_input_closed = True
        self._write_pending()
        return True

    def _close_target(self) -> None:
        if self._target is not None:
            os.close(self._target)
            self._target = None


class TerminalStreams(AgentStreams):
    """The agent has a pseudo-terminal."""

    max_pending_input = 1 << 20

    def __init__(self, folder: Path, *, rows: int, columns: int) -> None:
        super().__init__(folder, stdin=None)
        self.size: tuple[int, int] = rows, columns
        # Open until the end: a program that closes its terminal just before it exits must not
        # receive SIGHUP for that.
        self._slave: int | None = None

    def open_stdio(self) -> Stdio:
        self._open_file(OUTPUT)
        master, slave = os.openpty()
        os.set_blocking(master, False)
        self.source = self._target = master
        self._slave = slave
        rows, columns = self.size
        self.resize(rows, columns)
        return Stdio(slave, slave, slave, terminal=True)

    def type_in(self, data: bytes) -> bool:
        self.typed_signals |= self._signals_of(data)
        return super().type_in(data)

    def _signals_of(self, data: bytes) -> frozenset[int]:
        """Return the signals that the terminal generates from these keys; none in raw mode."""
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
        if self._slave is not None:
            os.close(self._slave)
            self._slave = None
