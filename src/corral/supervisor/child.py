"""The process of one attempt, and its guard.

    supervisor ── guard ── agent

The agent's process exists, and can be identified, before its program is executed: it blocks on a
pipe (the gate) until its identity is in the store. If the supervisor dies before it opens the gate,
the process reads end-of-file and exits; the program never started.

The guard waits for the agent and writes its exit status to a file, so that the status is known even
if the supervisor is gone. The guard is also the subreaper: orphaned descendants of the agent become
its children, so no process escapes by leaving its session and clearing its environment. Processes
that are left when the agent has ended are terminated by the supervisor, otherwise by the guard.
"""

import errno
import fcntl
import os
import select
import signal
import sys
import termios
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from corral.adapters.processes import exit_files, process, process_marks
from corral.domain.runs.supervision import LEFTOVER_GRACE_MS
from corral.kernel.exit_status import ExitStatus

if TYPE_CHECKING:
    import resource

# ru_maxrss is in KiB on Linux and in bytes on macOS.
MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1_024


class Stdio(NamedTuple):
    """The descriptors that become the agent's standard input, output and error."""

    stdin: int
    stdout: int
    stderr: int
    terminal: bool = False
    """Whether they are a terminal that becomes the agent's controlling terminal."""


class ChildPipes(NamedTuple):
    """The ends of the pipes that guard and agent inherit."""

    pid_writer: int
    """The guard sends the agent's pid to the supervisor."""
    gate_reader: int
    """The agent waits here for one byte; end-of-file means that it must not start."""
    error_writer: int
    """The agent sends the error of a failed exec to the supervisor; exec closes it."""
    exit_writer: int
    """The guard sends the exit status to the supervisor."""
    started_reader: int
    """The guard reads one byte here if the agent passed the gate."""
    started_writer: int
    """The agent's end of that pipe."""


class SupervisorPipes(NamedTuple):
    """The ends of the same pipes that the supervisor keeps."""

    pid_reader: int
    gate_writer: int
    error_reader: int
    exit_reader: int


def _open_pipes() -> tuple[SupervisorPipes, ChildPipes]:
    pipes: list[tuple[int, int]] = []
    try:
        while len(pipes) < 5:
            pipes.append(os.pipe())
    except OSError:
        _close(descriptor for pipe in pipes for descriptor in pipe)
        raise
    pid_pipe, gate_pipe, error_pipe, exit_pipe, started_pipe = pipes
    pid_reader, pid_writer = pid_pipe
    gate_reader, gate_writer = gate_pipe
    error_reader, error_writer = error_pipe
    exit_reader, exit_writer = exit_pipe
    started_reader, started_writer = started_pipe
    own_ends = SupervisorPipes(pid_reader, gate_writer, error_reader, exit_reader)
    child_ends = ChildPipes(
        pid_writer, gate_reader, error_writer, exit_writer, started_reader, started_writer
    )
    return own_ends, child_ends


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _fork_or_close(descriptors: Iterable[int]) -> int:
    """Fork this process; if that fails, close the descriptors and raise OSError."""
    try:
        return os.fork()
    except OSError:
        _close(descriptors)
        raise


class CannotStart(Exception):
    """The agent's process could not be created, or its program could not be executed."""

    def __init__(self, code: int, path: str) -> None:
        super().__init__(path)
        self.exit_code = 127 if code == errno.ENOENT else 126
        self.reason = f"{path}: {os.strerror(code)}"


class ChildProcess:
    """The process of an attempt that this supervisor starts.

    `fork` creates guard and agent; `execute` starts the program; `wait_for_exit` waits for it;
    `close` releases the guard. `abort` replaces the last two if the program must not start.
    """

    def __init__(
        self, guard_pid: int, pid: int, pipes: SupervisorPipes, *, folder: Path, attempt: int
    ) -> None:
        self.pid = pid
        self.exit_fd = pipes.exit_reader
        """Readable when the agent has ended; end-of-file if the guard was killed."""
        self._guard_pid = guard_pid
        self._gate_writer = pipes.gate_writer
        self._error_reader = pipes.error_reader
        self._folder = folder
        self._attempt = attempt

    @classmethod
    def fork(
        cls,
        argv: list[str],
        *,
        cwd: str,
        env: dict[str, str],
        stdio: Stdio,
        folder: Path,
        attempt: int,
    ) -> "ChildProcess":
        """Fork guard and agent; the agent waits at the gate. Raises CannotStart."""
        try:
            own_ends, child_ends = _open_pipes()
            guard_pid = _fork_or_close((*own_ends, *child_ends))
        except OSError as error:
            raise CannotStart(error.errno or errno.EAGAIN, argv[0]) from error
        if guard_pid == 0:
            try:
                _close(own_ends)
                _run_guard(argv, cwd, env, stdio, (folder, attempt), child_ends)
            finally:
                os._exit(70)
        _close(child_ends)
        with os.fdopen(own_ends.pid_reader, "rb") as pipe:
            pid = int(pipe.readline() or b"0")
        child = cls(guard_pid, pid, own_ends, folder=folder, attempt=attempt)
        if not pid:
            child.abort()
            raise CannotStart(errno.EAGAIN, argv[0])
        return child

    def execute(self) -> None:
        """Open the gate and wait until the agent's program is executed. Raises CannotStart."""
        os.write(self._gate_writer, b"\n")
        with os.fdopen(os.dup(self._error_reader), "rb") as pipe:
            error = pipe.read()
        if error:
            code, _, path = error.decode(errors="replace").partition(" ")
            raise CannotStart(int(code), path)

    def abort(self) -> None:
        """End a process whose program was not executed, and its guard."""
        self.wait_for_exit()
        self.close()

    def wait_for_exit(self) -> ExitStatus:
        """Wait until the agent has ended and return its exit status.

        A process that still waits at the gate exits at once. The guard stays until `close`.
        """
        _close((self._gate_writer, self._error_reader))
        data = os.read(self.exit_fd, exit_files.MAX_BYTES)
        # The pipe works even when the disk is too full for the exit file.
        exit_status = exit_files.decode(data)
        return (
            exit_status
            if exit_status.is_known
            else exit_files.read_exit(self._folder, self._attempt, self.pid)
        )

    def close(self) -> None:
        """Release the guard, after `wait_for_exit`.

        The guard terminates leftover processes before it exits.
        """
        os.close(self.exit_fd)
        os.waitpid(self._guard_pid, 0)

    @property
    def guard(self) -> process.ProcessIdentity | None:
        return process.identify(self._guard_pid)


class AdoptedProcess:
    """The process of an attempt that another supervisor started."""

    def __init__(self, agent_process: process.ProcessIdentity, folder: Path, attempt: int) -> None:
        self._folder = folder
        self._attempt = attempt
        self._pid = agent_process.pid
        self.guard = _find_guard(agent_process)
        self.exit_fd: int | None = None
        """Readable when the agent has ended; None if it has ended, or without pidfd support."""
        with suppress(AttributeError, OSError):
            self.exit_fd = os.pidfd_open(agent_process.pid)
            # Checked after the pidfd was opened: the pid may have been reused before.
            if process.check(agent_process) is not process.Liveness.ALIVE:
                os.close(self.exit_fd)
                self.exit_fd = None

    def wait_for_exit(self) -> ExitStatus:
        """Return the exit status of the agent as its guard recorded it; waits for a slow guard."""
        return exit_files.wait_for_exit(self._folder, self._attempt, self._pid, 5.0)

    def close(self) -> None:
        if self.exit_fd is not None:
            os.close(self.exit_fd)
            self.exit_fd = None


def _find_guard(agent_process: process.ProcessIdentity) -> process.ProcessIdentity | None:
    """Return the guard, which leads the agent's session.

    A session id is not reused as a pid while the session exists.
    """
    with suppress(OSError):
        stat = process.read_stat(agent_process.pid)
        if stat is not None and stat.start_token == agent_process.start_token:
            return process.identify(stat.session)
    return None


def _run_guard(
    argv: list[str],
    cwd: str,
    env: dict[str, str],
    stdio: Stdio,
    exit_file: tuple[Path, int],
    pipes: ChildPipes,
) -> None:
    """Run the guard in the forked process. Never returns to the supervisor's code.

    The guard leads the session and the agent leads a process group in it. So the agent can be
    suspended and continued as from a shell: an orphaned process group could not be.
    """
    os.setsid()
    if stdio.terminal:
        fcntl.ioctl(stdio.stdin, termios.TIOCSCTTY, 0)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    process.become_subreaper()
    agent_pid = os.fork()
    if agent_pid == 0:
        try:
            _run_agent(argv, cwd, env, stdio, pipes)
        finally:
            os._exit(127)
    writer = exit_files.ExitFileWriter(*exit_file, agent_pid)
    _close_all_except(pipes.pid_writer, pipes.exit_writer, pipes.started_reader, writer.descriptor)
    # When a terminal goes away, the kernel sends SIGHUP only to the session leader.
    signal.signal(signal.SIGHUP, lambda *_: _forward_hangup(agent_pid))
    os.write(pipes.pid_writer, b"%d\n" % agent_pid)
    os.close(pipes.pid_writer)
    status, usage = _wait_for_agent(agent_pid)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the agent's pid may be reused from now on
    code = os.waitstatus_to_exitcode(status)
    exit_status = ExitStatus(exit_code=code) if code >= 0 else ExitStatus(signal=-code)
    cpu_ms = int((usage.ru_utime + usage.ru_stime) * 1_000)
    if not os.read(pipes.started_reader, 1):
        exit_status = ExitStatus(reason=exit_files.NEVER_STARTED)
    exit_status = exit_status._replace(cpu_ms=cpu_ms, peak_bytes=usage.ru_maxrss * MAXRSS_UNIT)
    with suppress(OSError):
        os.write(pipes.exit_writer, exit_files.encode(exit_status))
    writer.write(exit_status)
    _terminate_leftovers(pipes.exit_writer, process_marks.run_mark(env.get("CORRAL_RUN", "")))
    os._exit(0)


def _wait_for_agent(agent_pid: int) -> "tuple[int, resource.struct_rusage]":
    """Wait for the agent, and reap adopted orphans meanwhile."""
    while True:
        pid, status, usage = os.wait4(-1, 0)
        if pid == agent_pid:
            return status, usage


def _terminate_leftovers(exit_writer: int, mark: str) -> None:
    """Terminate the remaining descendants of the guard, after the supervisor closed the pipe.

    Descendants only: other processes with the run's mark may belong to its next attempt.
    """
    poll = select.poll()
    poll.register(exit_writer, 0)  # POLLERR: the read end is closed
    poll.poll()
    process.terminate_run_processes(
        None,
        mark,
        grace_period_ms=LEFTOVER_GRACE_MS,
        guard=process.identify(os.getpid()),
        everywhere=False,
    )


def _forward_hangup(agent_pid: int) -> None:
    for number in (signal.SIGHUP, signal.SIGCONT):
        with suppress(OSError):
            os.killpg(agent_pid, number)


def _run_agent(
    argv: list[str],
    cwd: str,
    env: dict[str, str],
    stdio: Stdio,
    pipes: ChildPipes,
) -> None:
    """Wait at the gate in the forked process, then execute the agent's program."""
    _close((pipes.pid_writer, pipes.exit_writer, pipes.started_reader))
    os.setpgid(0, 0)
    if stdio.terminal:
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        os.tcsetpgrp(stdio.stdin, os.getpgrp())
    if not os.read(pipes.gate_reader, 1):
        os._exit(0)
    os.write(pipes.started_writer, b".")
    path = cwd
    try:
        os.chdir(cwd)
        path = argv[0]
        # Duplicated first: one of them may itself be 0, 1 or 2 and would be overwritten.
        copies = [os.dup(descriptor) for descriptor in stdio[:3]]
        for number, descriptor in enumerate(copies):
            os.dup2(descriptor, number)
        _close_all_except(0, 1, 2, pipes.error_writer)
        _reset_signals()
        process_marks.mark_process(process_marks.run_mark(env.get("CORRAL_RUN", "")))
        os.execvpe(argv[0], argv, env)
    except (OSError, ValueError) as error:
        code = getattr(error, "errno", None) or errno.EINVAL
        os.write(pipes.error_writer, f"{code} {path}".encode())
        os._exit(127 if code == errno.ENOENT else 126)


def _reset_signals() -> None:
    """Restore the default signal handling that programs expect; Python changes some."""
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


def _close_all_except(*descriptors: int) -> None:
    low = 0
    for descriptor in sorted(descriptors):
        if low < descriptor:  # closerange(0, 0) would close everything
            os.closerange(low, descriptor)
        low = descriptor + 1
    os.closerange(low, 65_536)
