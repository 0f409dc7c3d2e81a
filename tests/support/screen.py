"""A command on a pseudo-terminal, with what it shows."""

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from contextlib import suppress

from corral.adapters.processes import process
from tests.support.home import CORRAL, SECONDS, Home, wait_until


class Screen:
    """A command on a pseudo-terminal."""

    def __init__(self, home: Home, *arguments: str, rows: int = 24, columns: int = 80) -> None:
        self.seen = b""
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            try:
                signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the test runner may ignore it
                os.chdir(home.work)
                size = struct.pack("HHHH", rows, columns, 0, 0)
                fcntl.ioctl(0, termios.TIOCSWINSZ, size)
                os.execvpe(arguments[0], list(arguments), home.env)
            finally:
                os._exit(127)
        os.set_blocking(self.master, False)
        self.status: int | None = None

    @classmethod
    def corral(cls, home: Home, *arguments: str, rows: int = 24, columns: int = 80) -> "Screen":
        return cls(home, *CORRAL, *arguments, rows=rows, columns=columns)

    def type(self, data: bytes) -> None:
        while data:
            select.select([], [self.master], [], SECONDS)
            with suppress(BlockingIOError):
                data = data[os.write(self.master, data) :]

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, seconds: float) -> bool:
        """Read available output, for up to `seconds`; return False at the end of the terminal."""
        if select.select([self.master], [], [], seconds)[0]:
            try:
                data = os.read(self.master, 1 << 16)
            except BlockingIOError:
                return True
            except OSError:
                return False
            self.seen += data
            return bool(data)
        return True

    def wait_until(self, text: bytes, *, times: int = 1, seconds: float = SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while self.seen.count(text) < times:
            is_open = self.read(0.1)
            if self.seen.count(text) >= times:
                return
            assert is_open, f"the terminal ended before {text!r}: {self.seen[-2_000:]!r}"
            assert time.monotonic() < deadline, f"no {text!r} in {self.seen[-2_000:]!r}"

    def forget(self) -> None:
        self.seen = b""

    def stopped(self, seconds: float = SECONDS) -> bool:
        """Wait until the command is stopped by a signal, as its shell would see it."""

        def is_stopped() -> bool:
            self.read(0)
            result = process.read_stat(self.pid)
            return result is not None and result.state == "T"

        return wait_until(is_stopped, "the command is stopped", seconds)

    def exit_code(self, seconds: float = SECONDS) -> int:
        """Read to the end and return the exit code."""
        deadline = time.monotonic() + seconds
        while self.status is None:
            self.read(0.02)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = status
                while self.read(0) and select.select([self.master], [], [], 0)[0]:
                    pass
            assert time.monotonic() < deadline, f"the command did not exit: {self.seen[-2_000:]!r}"
        return os.waitstatus_to_exitcode(self.status)

    def close(self) -> None:
        """Close the terminal: the kernel sends SIGHUP to its foreground processes."""
        if self.master >= 0:
            os.close(self.master)
            self.master = -1

    def end(self) -> None:
        self.close()
        if self.status is None:
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
            with suppress(OSError):
                self.status = os.waitpid(self.pid, 0)[1]
