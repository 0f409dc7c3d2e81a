"""Running a check: one command in a directory, with an end in sight, and what it printed last."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple
from uuid import uuid4

from corral.adapters import process, sandbox
from corral.adapters.check_guard import GRACE_MS
from corral.adapters.leftovers import delete
from corral.adapters.output.redact import Redactor
from corral.adapters.sandbox import Bounds, Kind
from corral.scratch import scratch_folder

TIMED_OUT = 124  # as the program `timeout` says it
KEPT_BYTES = 16 * 1024
GUARD = "corral.adapters.check_guard"
LOOK_SECONDS = 0.05
DRAIN_SECONDS = 0.5  # for what is still in the pipe when the command has ended
# A check is Corral's own, and speaks as no agent.
WITHHELD = ("CORRAL_AGENT", "CORRAL_RUN", "CORRAL_SESSION")


class Outcome(NamedTuple):
    exit_code: int
    """As a shell tells it: 128 and the signal's number for one that was killed."""
    output: str
    """The last of what it printed, without secrets."""


def run_check(
    command: str,
    cwd: str,
    *,
    timeout_ms: int,
    environment: Mapping[str, str] | None = None,
    kept_in: str | None = None,
    by: Kind | None = None,
) -> Outcome:
    """Run a command by the shell; whatever it started is ended with it, also when whoever runs it
    is killed. With `by` a sandbox keeps it in the folder `kept_in`; Refused when that does not
    work."""
    words = ["/bin/sh", "-c", command]
    given = dict(environment or {})
    if by is None or by is Kind.NONE:
        return _run(words, cwd, timeout_ms, given)
    with scratch_folder("check") as folder:
        kept = sandbox.wrap(words, Bounds(worktree=kept_in or cwd), scratch=str(folder), kind=by)
        try:
            return _run(kept.words, cwd, timeout_ms, given | kept.environment)
        finally:
            with suppress(OSError):
                delete(str(folder))  # also what the check has made read-only


def _run(words: list[str], cwd: str, timeout_ms: int, given: Mapping[str, str]) -> Outcome:
    os.stat(cwd)  # a folder that is gone is no failed check
    mark = f"CORRAL_CHECK={uuid4().hex}"
    name, _, value = mark.partition("=")
    own = {key: known for key, known in os.environ.items() if key not in WITHHELD}
    alive, held = os.pipe()  # as long as this process holds it, the check may go on
    try:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", GUARD, cwd, str(alive), mark, *words],
            env=own | dict(given) | {name: value},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(alive,),
        )
    except BaseException:
        os.close(held)
        raise
    finally:
        os.close(alive)
    known = process.identify(child.pid)
    assert child.stdout is not None
    with child.stdout as pipe:
        try:
            printed = _last(pipe.fileno(), child, time.monotonic() + timeout_ms / 1_000)
            code = child.poll()
        finally:
            os.close(held)
            _wait(child, 2 * GRACE_MS / 1_000)
            if child.poll() is None or child.returncode < 0:  # somebody has killed the guard
                process.end_family(known, mark, grace_ms=0)
                child.kill()
                child.wait()
    if code is None:
        printed += f"\nIt was ended after {timeout_ms / 1_000:g} s.\n"
        return Outcome(TIMED_OUT, printed)
    return Outcome(128 - code if code < 0 else code, printed)


def _last(pipe: int, child: "subprocess.Popen[bytes]", deadline: float) -> str:
    """What is printed last until the child ends, or its time is over; it never waits for others
    who hold the pipe, and keeps only so much."""
    text, drained = b"", False
    while (left := deadline - time.monotonic()) > 0:
        ended = child.poll() is not None
        if select.select([pipe], [], [], 0 if ended else min(left, LOOK_SECONDS))[0]:
            piece = os.read(pipe, 65_536)
            text = (text + piece)[-3 * KEPT_BYTES :]
            if not piece:  # it has closed its output, and may go on without
                _wait(child, left)
                break
        elif ended:
            break
        if ended and not drained:
            drained, deadline = True, min(deadline, time.monotonic() + DRAIN_SECONDS)
    redactor = Redactor()
    # More is looked at than is kept, so that a secret which begins before it is seen whole.
    shown = redactor.feed(text) + redactor.finish()
    kept = shown[-KEPT_BYTES:]
    if len(kept) < len(shown):
        kept = kept[kept.find(b"\n", 0, 1_000) + 1 :]
    return kept.decode(errors="replace").replace("\0", "")


def _wait(child: "subprocess.Popen[bytes]", seconds: float) -> None:
    with suppress(subprocess.TimeoutExpired):
        child.wait(seconds)
