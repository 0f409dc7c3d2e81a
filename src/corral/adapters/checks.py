"""Running a check: one command in a directory, with an end in sight, and what it printed last."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple
from uuid import uuid4

from msgspec.structs import replace

from corral.adapters import private_git, process, sandbox
from corral.adapters.check_guard import GRACE_MS
from corral.adapters.checkouts import checkout_of
from corral.adapters.leftovers import delete
from corral.adapters.output.redact import Redactor
from corral.adapters.private_home import environment_of, toolchains
from corral.adapters.sandbox import Bounds, Kind, ResourceLimits
from corral.scratch_folders import scratch_folder

TIMED_OUT = 124  # as the program `timeout` says it
KEPT_BYTES = 16 * 1024
GUARD = "corral.adapters.check_guard"
LOOK_SECONDS = 0.05
DRAIN_SECONDS = 0.5  # for what is still in the pipe when the command has ended
# A check is Corral's own, and speaks as no agent.
WITHHELD = ("CORRAL_AGENT", "CORRAL_RUN", "CORRAL_SESSION")


class Confined(NamedTuple):
    """What a sandboxed check may use besides its worktree."""

    reads: Sequence[str] = ()
    network: bool = True
    limits: ResourceLimits = ResourceLimits()


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
    repository: str | None = None,
    confined: Confined | None = None,
) -> Outcome:
    """Run a shell command. All processes that it started are ended with it, also when the calling
    process is killed.

    `by` is the sandbox that confines the command to the folder `kept_in`; raises Refused when the
    sandbox does not work. If that folder is a worktree of `repository`, the command gets a private
    copy of its git folder, which is discarded afterwards.
    """
    words = ["/bin/sh", "-c", command]
    given = dict(environment or {})
    if by is None or by is Kind.NONE:
        own = {key: known for key, known in os.environ.items() if key not in WITHHELD}
        return _run(words, cwd, timeout_ms, own | given)
    with scratch_folder("check") as folder:
        try:
            return _run_confined(
                words, cwd, timeout_ms, given, str(folder), kept_in or cwd, by, repository, confined
            )
        finally:
            with suppress(OSError):
                delete(str(folder))  # also what the check has made read-only


def _run_confined(
    words: list[str],
    cwd: str,
    timeout_ms: int,
    given: Mapping[str, str],
    folder: str,
    top: str,
    by: Kind,
    repository: str | None,
    confined: Confined | None,
) -> Outcome:
    confined = confined or Confined()
    home, private = os.path.join(folder, "home"), os.path.join(folder, "git")
    real_home = os.path.expanduser("~")
    os.mkdir(home, 0o700)
    checkout = checkout_of(repository, top) if repository is not None else None
    reads = [*confined.reads, *toolchains(os.environ.get("PATH", os.defpath), real_home)]
    bounds = Bounds(
        worktree=top,
        writable=(home,),
        readable=tuple(path for path in reads if os.path.exists(path)),
        network=confined.network,
        limits=confined.limits,
    )
    if checkout is not None:
        mounted = by is Kind.BUBBLEWRAP
        bounds = replace(bounds, git=private_git.prepare(checkout, private, mounted=mounted))
    try:
        kept = sandbox.wrap(words, bounds, scratch=os.path.join(folder, "tmp"), kind=by)
        inside = environment_of("plain", os.environ) | dict(given) | {"HOME": home}
        return _run(kept.words, cwd, timeout_ms, inside | kept.environment)
    finally:
        if checkout is not None:
            private_git.discard(checkout, private)


def _run(words: list[str], cwd: str, timeout_ms: int, whole: Mapping[str, str]) -> Outcome:
    os.stat(cwd)  # a folder that is gone is no failed check
    mark = f"CORRAL_CHECK={uuid4().hex}"
    name, _, value = mark.partition("=")
    alive, held = os.pipe()  # as long as this process holds it, the check may go on
    try:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", GUARD, cwd, str(alive), mark, *words],
            env=dict(whole) | {name: value},
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
                process.terminate_run_processes(known, mark, grace_ms=0)
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
