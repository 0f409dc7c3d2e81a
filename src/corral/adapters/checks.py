"""Running a check: one command in a directory, with an end in sight, and what it printed last."""

import os
import select
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple
from uuid import uuid4

from corral.adapters import process
from corral.adapters.output.redact import Redactor

TIMED_OUT = 124  # as the program `timeout` says it
KEPT_BYTES = 16 * 1024
GRACE_MS = 2_000
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
    command: str, cwd: str, *, timeout_ms: int, environment: Mapping[str, str] | None = None
) -> Outcome:
    """Run a command by the shell; whatever it started is ended with it."""
    mark = f"CORRAL_CHECK={uuid4().hex}"
    name, _, value = mark.partition("=")
    own = {key: given for key, given in os.environ.items() if key not in WITHHELD}
    child = subprocess.Popen(
        ["/bin/sh", "-c", command],
        cwd=cwd,
        env=own | dict(environment or {}) | {name: value},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    known = process.identify(child.pid)
    assert child.stdout is not None
    with child.stdout as pipe:
        try:
            printed = _last(pipe.fileno(), child, time.monotonic() + timeout_ms / 1_000)
            code = child.poll()
        finally:
            process.end_family(known, mark, grace_ms=GRACE_MS)
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
