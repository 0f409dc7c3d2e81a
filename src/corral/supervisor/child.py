"""One attempt: a process that becomes the agent, and one that waits for it.

    keeper ── guard ── agent

The agent's process exists, and can be identified, before its program is executed: it waits at a
gate until its identity is in the store. Should the keeper die before it opens the gate, the process
ends without having begun. The guard does nothing but wait for the agent and write down how it
ended, so that this is learned even when the keeper is gone. Whoever below the agent loses its
parent comes to the guard: so nobody gets away by leaving its session and its environment, and
those who are left when the agent has ended are ended by the keeper, or else by the guard.
"""

import errno
import fcntl
import os
import select
import signal
import sys
import termios
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from corral.adapters import exit_files, process, run_marks
from corral.kernel.exit_status import End

if TYPE_CHECKING:
    import resource

LEFTOVER_GRACE_MS = 2_000
# Linux counts the most memory in KiB, macOS in bytes.
MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1_024


class Stdio(NamedTuple):
    """What becomes the agent's standard input, output and error."""

    stdin: int
    stdout: int
    stderr: int
    terminal: bool = False
    """Whether they are a terminal that is to become its own."""


class Pipes(NamedTuple):
    """How keeper, guard and agent hear of each other until the agent is itself."""

    tell: int
    """The guard tells the keeper the agent's pid."""
    gate: int
    """The agent waits here; its end without a word means that it must not begin."""
    fail: int
    """The agent tells the keeper why it could not be executed; it closes when it was."""
    alive: int
    """The guard tells the keeper how the agent ended."""
    began: int
    """The guard learns whether the agent was let through the gate."""
    begin: int
    """The agent's end of it."""


class CannotStart(Exception):
    """The agent's program could not be executed."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(what)
        self.exit_code = 127 if code == errno.ENOENT else 126
        self.reason = f"{what}: {os.strerror(code)}"


class Attempt:
    """A process at the gate, then an agent, then an end."""

    def __init__(
        self,
        argv: list[str],
        *,
        cwd: str,
        env: dict[str, str],
        stdio: Stdio,
        folder: Path,
        number: int,
    ) -> None:
        self._folder = folder
        self._number = number
        told, tell = os.pipe()
        gate, self._open = os.pipe()
        self._failed, fail = os.pipe()
        began, begin = os.pipe()
        self.over, alive = os.pipe()
        """Readable when the agent has ended: its end, or nothing when the guard was killed."""
        self._guard = os.fork()
        if self._guard == 0:
            try:
                for descriptor in (told, self._open, self._failed, self.over):
                    os.close(descriptor)
                pipes = Pipes(tell, gate, fail, alive, began, begin)
                _guard(argv, cwd, env, stdio, (folder, number), pipes)
            finally:
                os._exit(70)
        for descriptor in (tell, gate, fail, alive, began, begin):
            os.close(descriptor)
        with os.fdopen(told, "rb") as pipe:
            self.pid = int(pipe.readline() or b"0")
        if not self.pid:
            self.end()
            self.close()
            raise CannotStart(errno.EAGAIN, argv[0])

    def begin(self) -> None:
        """Open the gate: the agent's program is executed. Raises CannotStart."""
        os.write(self._open, b"\n")
        with os.fdopen(os.dup(self._failed), "rb") as pipe:
            told = pipe.read()
        if told:
            code, _, what = told.decode(errors="replace").partition(" ")
            raise CannotStart(int(code), what)

    def end(self) -> End:
        """Wait for the agent's end, and tell it; at the gate it ends at once. The guard stays with
        those who are left until `close`."""
        for descriptor in (self._open, self._failed):
            os.close(descriptor)
        told = os.read(self.over, exit_files.ROOM)
        # By the pipe it is learned also where there is no room left for a file.
        end = exit_files.decode(told)
        return end if end.known else exit_files.read(self._folder, self._number, self.pid)

    def close(self) -> None:
        """Let go of the guard, after `end`: it ends whoever is left."""
        os.close(self.over)
        os.waitpid(self._guard, 0)

    @property
    def guard(self) -> process.Identity | None:
        return process.identify(self._guard)


class Adopted:
    """An agent that another keeper started, and that lives on without it."""

    def __init__(self, agent: process.Identity, folder: Path, number: int) -> None:
        self._folder = folder
        self._number = number
        self._pid = agent.pid
        self.guard = _guard_of(agent)
        self.over: int | None = None
        """Readable when the agent has ended; None when it has, or where nobody can wait for it."""
        with suppress(AttributeError, OSError):
            self.over = os.pidfd_open(agent.pid)
            if process.look(agent) is not process.Standing.ALIVE:  # it may be a stranger's by now
                os.close(self.over)
                self.over = None

    def end(self) -> End:
        """Tell how the agent ended, as its guard wrote it down."""
        return exit_files.wait_for(self._folder, self._number, self._pid, 5.0)

    def close(self) -> None:
        if self.over is not None:
            os.close(self.over)
            self.over = None


def _guard_of(agent: process.Identity) -> process.Identity | None:
    """Whoever leads the agent's session; a session's number is nobody else's while it is there."""
    with suppress(OSError):
        found = process.stat(agent.pid)
        if found is not None and found.start_token == agent.start_token:
            return process.identify(found.session)
    return None


def _guard(
    argv: list[str],
    cwd: str,
    env: dict[str, str],
    stdio: Stdio,
    place: tuple[Path, int],
    pipes: Pipes,
) -> None:
    """The guard's whole life; it never returns to the keeper's code.

    It leads the session, and the agent leads a group in it: so the agent can be suspended and
    continued as from a shell, which a group without a parent in its session could not.
    """
    os.setsid()
    if stdio.terminal:
        fcntl.ioctl(stdio.stdin, termios.TIOCSCTTY, 0)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    process.gather_orphans()
    agent = os.fork()
    if agent == 0:
        try:
            _become(argv, cwd, env, stdio, pipes)
        finally:
            os._exit(127)
    note = exit_files.ExitNote(*place, agent)
    tell, alive = pipes.tell, pipes.alive
    _close_all_but(tell, alive, pipes.began, note.descriptor)
    # A terminal that is gone is told to the session's leader alone.
    signal.signal(signal.SIGHUP, lambda *_: _hang_up(agent))
    os.write(tell, b"%d\n" % agent)
    os.close(tell)
    status, used = _wait_for(agent)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # its group may be another's from now on
    code = os.waitstatus_to_exitcode(status)
    end = End(exit_code=code) if code >= 0 else End(signal=-code)
    cpu_ms = int((used.ru_utime + used.ru_stime) * 1_000)
    if not os.read(pipes.began, 1):
        end = End(reason=exit_files.NEVER_BEGAN)
    end = end._replace(cpu_ms=cpu_ms, peak_bytes=used.ru_maxrss * MAXRSS_UNIT)
    with suppress(OSError):
        os.write(alive, exit_files.encode(end))
    note.write(end)
    _end_leftovers(alive, f"CORRAL_RUN={env.get('CORRAL_RUN', '')}")
    os._exit(0)


def _wait_for(agent: int) -> "tuple[int, resource.struct_rusage]":
    """Wait for the agent, and for those who came to the guard meanwhile."""
    while True:
        pid, status, used = os.wait4(-1, 0)
        if pid == agent:
            return status, used


def _end_leftovers(alive: int, mark: str) -> None:
    """Once the keeper has seen to it, or is gone: end whoever below the guard is left.

    Only those: who has the run's mark may be of its next attempt by now.
    """
    poll = select.poll()
    poll.register(alive, 0)
    poll.poll()
    process.end_family(
        None,
        mark,
        grace_ms=LEFTOVER_GRACE_MS,
        guard=process.identify(os.getpid()),
        everywhere=False,
    )


def _hang_up(agent: int) -> None:
    for number in (signal.SIGHUP, signal.SIGCONT):
        with suppress(OSError):
            os.killpg(agent, number)


def _become(
    argv: list[str],
    cwd: str,
    env: dict[str, str],
    stdio: Stdio,
    pipes: Pipes,
) -> None:
    """The agent's process, up to the moment at which it is the agent."""
    for descriptor in (pipes.tell, pipes.alive, pipes.began):
        os.close(descriptor)
    os.setpgid(0, 0)
    if stdio.terminal:
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        os.tcsetpgrp(stdio.stdin, os.getpgrp())
    if not os.read(pipes.gate, 1):
        os._exit(0)
    os.write(pipes.begin, b".")
    what = cwd
    try:
        os.chdir(cwd)
        what = argv[0]
        kept = [os.dup(descriptor) for descriptor in stdio[:3]]  # none is overwritten too early
        for number, descriptor in enumerate(kept):
            os.dup2(descriptor, number)
        _close_all_but(0, 1, 2, pipes.fail)
        _forget_signals()
        run_marks.mark_process(f"CORRAL_RUN={env.get('CORRAL_RUN', '')}")
        os.execvpe(argv[0], argv, env)
    except (OSError, ValueError) as error:
        code = getattr(error, "errno", None) or errno.EINVAL
        os.write(pipes.fail, f"{code} {what}".encode())
        os._exit(127 if code == errno.ENOENT else 126)


def _forget_signals() -> None:
    """A program expects the system's own way with signals; Python has changed some."""
    for number in (
        signal.SIGPIPE,
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGQUIT,
        signal.SIGTSTP,
        signal.SIGTTIN,
        signal.SIGTTOU,
        signal.SIGCHLD,
        getattr(signal, "SIGXFSZ", signal.SIGPIPE),
    ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _close_all_but(*wanted: int) -> None:
    low = 0
    for descriptor in sorted(wanted):
        if low < descriptor:  # an empty range that begins at 0 would close everything
            os.closerange(low, descriptor)
        low = descriptor + 1
    os.closerange(low, 65_536)
