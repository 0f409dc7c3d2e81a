"""What stands between a check and whoever runs it: `DIR ALIVE MARK WORDS…`.

It starts the words in a directory and waits for their end. Whatever they started ends with them,
also who left its parent, its session and its environment. The same becomes of all when ALIVE, a
pipe that only the runner holds, comes to its end: a check never outlives a runner that was killed.
"""

import os
import select
import signal
import sys

from corral.adapters import process, run_marks

GRACE_MS = 2_000
LOOK_MS = 100  # where the system tells nobody that a process has ended
IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


def main(arguments: list[str]) -> int:
    folder, alive, mark, *words = arguments
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    process.become_subreaper()
    child = os.fork()
    if child == 0:
        try:
            run_marks.mark_process(mark)
            _become(folder, words)
        finally:
            os._exit(127)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # it must not look as if the check still had something to say
        os.dup2(nothing, stream)
    code = _end_of(child, int(alive))
    me = process.identify(os.getpid())
    process.terminate_run_processes(None, mark, grace_ms=GRACE_MS, guard=me)
    return 128 - code if code < 0 else code


def _become(folder: str, words: list[str]) -> None:
    for number in IGNORED:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.chdir(folder)
        os.execvp(words[0], words)
    except OSError as error:
        os.write(2, f"{error.filename or words[0]}: {error.strerror}\n".encode(errors="replace"))


def _end_of(child: int, alive: int) -> int:
    """The child's exit code; that of a killed one when there is nobody any more to tell it to."""
    known = process.identify(child)
    handle = process.watch_exit(known) if known is not None else None
    poll = select.poll()
    for each in (alive, handle):
        if each is not None:
            poll.register(each, select.POLLIN)
    while True:
        found = [each for each, _ in poll.poll(LOOK_MS if handle is None else None)]
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if alive in found:
            return -signal.SIGKILL


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
