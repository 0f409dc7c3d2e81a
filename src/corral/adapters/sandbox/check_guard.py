"""The guard process between a check and its runner: `DIR ALIVE MARK COMMAND…`.

It runs the command in a directory and waits for it. Then it terminates every process that the
command started, including those that left their parent, session and environment. It does the same
when ALIVE, a pipe that only the runner holds, closes: a check never outlives a killed runner.
"""

import os
import select
import signal
import sys

from corral.adapters.processes import process, process_marks

GRACE_MS = 2_000
POLL_MS = 100  # where the exit of a process cannot be watched
IGNORED_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


def main(arguments: list[str]) -> int:
    folder, alive, mark, *command = arguments
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    process.become_subreaper()
    child = os.fork()
    if child == 0:
        try:
            process_marks.mark_process(mark)
            _execute(folder, command)
        finally:
            os._exit(127)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # so that the pipe closes when the check exits
        os.dup2(null, stream)
    code = _wait_for_exit(child, int(alive))
    own_identity = process.identify(os.getpid())
    process.terminate_run_processes(None, mark, grace_period_ms=GRACE_MS, guard=own_identity)
    return 128 - code if code < 0 else code


def _execute(folder: str, command: list[str]) -> None:
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.chdir(folder)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{error.filename or command[0]}: {error.strerror}\n".encode(errors="replace"))


def _wait_for_exit(child: int, alive: int) -> int:
    """Wait for the child and return its exit code; -SIGKILL when the runner is gone."""
    identity = process.identify(child)
    handle = process.watch_exit(identity) if identity is not None else None
    poll = select.poll()
    for descriptor in (alive, handle):
        if descriptor is not None:
            poll.register(descriptor, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in poll.poll(POLL_MS if handle is None else None)]
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if alive in ready:
            return -signal.SIGKILL


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
