"""How an agent's input and output are held.

    Direct     the agent writes straight into its output file; nothing is copied
    Copied     the keeper copies, because what passes may hold a secret that was given to the run
    Talk       the keeper and the agent talk by a protocol over input and output
    Terminal   the agent has a terminal of its own, whose other end the keeper holds

Each opens what the agent gets (`stdio`), and tells what the keeper must read (`source`) and whether
it may type (`type_in`).
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from corral.keeper.attempt import Stdio
from corral.kernel.errors import Conflict

OUTPUT = "output"
ERRORS = "errors"
PIECE = 1 << 16
MOST = 1 << 18
MOST_UNTYPED = 1 << 20
Sink = Callable[[bytes], None]


class Streams:
    """What every way has in common: an input, and files that only their user may read."""

    source: int | None = None
    """A descriptor that the keeper must read from, and copy."""

    def __init__(self, folder: Path, *, stdin: str | int | None) -> None:
        self.folder = folder
        self._given = stdin
        self._agents: list[int] = []

    def stdio(self) -> Stdio:
        raise NotImplementedError

    def take(self) -> bytes | None:
        """What the agent wrote since, up to `MOST`; None when it can write no more."""
        if self.source is None:
            return None
        # A terminal gives 4 KiB at a time: what follows is cheaper for many of these at once.
        pieces: list[bytes] = []
        size = 0
        while size < MOST:
            try:
                piece = os.read(self.source, PIECE)
            except BlockingIOError:
                break
            except OSError:  # EIO: nobody has the other end of the terminal any more
                piece = b""
            if not piece:
                return b"".join(pieces) if pieces else None
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)

    def type_in(self, data: bytes) -> bool:
        """Give the agent input; False when it takes none."""
        return False

    @property
    def is_typing(self) -> bool:
        """Whether there is input that the agent has not taken yet."""
        return False

    def type_on(self) -> bool:
        """Give the agent more of that."""
        return False

    def hang_up(self) -> bool:
        """Tell the agent that nothing more will come; False when it cannot be told."""
        return False

    def resize(self, rows: int, columns: int) -> None:
        """A watcher's terminal has this size."""

    def handed_over(self) -> None:
        """The agent has its ends; the keeper needs them no more."""
        for descriptor in self._agents:
            os.close(descriptor)
        self._agents.clear()

    def close(self) -> None:
        self.handed_over()
        if self.source is not None:
            os.close(self.source)
            self.source = None

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

    def stdio(self) -> Stdio:
        self._file(OUTPUT)  # there is an output, though it may be empty for long
        self.source, output = os.pipe()
        with suppress(ImportError, OSError, AttributeError):
            import fcntl

            fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, 1 << 20)
        os.set_blocking(self.source, False)
        self._agents_own(output)
        return Stdio(self._stdin(), output, output)


class Talk(Copied):
    """The keeper talks with the agent: it writes the agent's input and reads its output."""

    _to: int | None = None

    def stdio(self) -> Stdio:
        stdin, self._to = os.pipe()
        self._agents_own(stdin)
        stdio = super().stdio()
        return stdio._replace(stdin=stdin, stderr=self._file(ERRORS))

    def type_in(self, data: bytes) -> bool:
        if self._to is None:
            return False
        try:
            while data:
                data = data[os.write(self._to, data) :]
        except OSError:
            return False
        return True

    def hang_up(self) -> bool:
        if self._to is None:
            return False
        os.close(self._to)
        self._to = None
        return True

    def close(self) -> None:
        self.hang_up()
        super().close()


class Terminal(Streams):
    """The agent has a terminal."""

    def __init__(self, folder: Path, *, rows: int, columns: int) -> None:
        super().__init__(folder, stdin=None)
        self._size = rows, columns
        self._untyped = bytearray()
        # Held open to the end: a program may close its terminal a moment before it ends, and must
        # not be hung up for that.
        self._far_end: int | None = None

    def stdio(self) -> Stdio:
        self._file(OUTPUT)
        master, slave = os.openpty()
        os.set_blocking(master, False)
        self.source = master
        self._far_end = slave
        self.resize(*self._size)
        return Stdio(slave, slave, slave, terminal=True)

    def type_in(self, data: bytes) -> bool:
        if self.source is None or len(self._untyped) + len(data) > MOST_UNTYPED:
            return False  # nobody reads there
        self._untyped += data
        return self.type_on()

    @property
    def is_typing(self) -> bool:
        return bool(self._untyped)

    def type_on(self) -> bool:
        """A terminal takes a few KiB at a time, and the agent reads them when it likes to."""
        try:
            while self._untyped and self.source is not None:
                del self._untyped[: os.write(self.source, self._untyped)]
        except BlockingIOError:
            pass
        except OSError:
            self._untyped.clear()
            return False
        return True

    def resize(self, rows: int, columns: int) -> None:
        import fcntl
        import struct
        import termios

        if self.source is not None and 0 < rows < 10_000 and 0 < columns < 10_000:
            size = struct.pack("HHHH", rows, columns, 0, 0)
            with suppress(OSError):
                fcntl.ioctl(self.source, termios.TIOCSWINSZ, size)

    def close(self) -> None:
        super().close()
        if self._far_end is not None:
            os.close(self._far_end)
            self._far_end = None
