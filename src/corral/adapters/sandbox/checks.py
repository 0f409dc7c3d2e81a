"""Run a check: one shell command in a directory, with a timeout; keep the end of its output."""

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

from corral.adapters.git import private_git
from corral.adapters.output.redact import Redactor
from corral.adapters.processes import process
from corral.adapters.sandbox.check_guard import GRACE_MS
from corral.adapters.sandbox.private_home import build_environment, list_toolchains
from corral.adapters.sandbox.sandbox import (
    ResourceLimits,
    SandboxBounds,
    SandboxKind,
    wrap_command,
)
from corral.adapters.worktrees.worktree_leftovers import delete_tree
from corral.adapters.worktrees.worktree_registry import find_checkout
from corral.scratch_folders import scratch_folder

TIMEOUT_EXIT_CODE = 124  # as `timeout` does
MAX_OUTPUT_BYTES = 16 * 1024
GUARD_MODULE = "corral.adapters.sandbox.check_guard"
POLL_SECONDS = 0.05
DRAIN_SECONDS = 0.5  # to read the rest of the pipe after the command exits
# A check acts for Corral, not for an agent.
WITHHELD_VARIABLES = ("CORRAL_AGENT", "CORRAL_RUN", "CORRAL_SESSION")


class SandboxPermissions(NamedTuple):
    """The rights of a sandboxed check, besides its worktree."""

    reads: Sequence[str] = ()
    network: bool = True
    limits: ResourceLimits = ResourceLimits()


class CheckOutcome(NamedTuple):
    """The result of a check."""

    exit_code: int
    """As in a shell: 128 plus the signal number for a killed command."""
    output: str
    """The end of the output, redacted."""


def run_check(
    command: str,
    cwd: str,
    *,
    timeout_ms: int,
    environment: Mapping[str, str] | None = None,
    worktree: str | None = None,
    sandbox: SandboxKind | None = None,
    repository: str | None = None,
    permissions: SandboxPermissions | None = None,
) -> CheckOutcome:
    """Run a shell command and terminate all processes that it started.

    They are also terminated when the calling process is killed. A `sandbox` confines the command to
    the folder `worktree`; raises Refused when the sandbox does not work. If that folder is a
    worktree of `repository`, the command gets a private copy of its git folder, which is discarded
    afterwards.
    """
    arguments = ["/bin/sh", "-c", command]
    variables = dict(environment or {})
    if sandbox is None or sandbox is SandboxKind.NONE:
        inherited = {
            key: value for key, value in os.environ.items() if key not in WITHHELD_VARIABLES
        }
        return _run(arguments, cwd, timeout_ms, inherited | variables)
    with scratch_folder("check") as folder:
        try:
            return _run_sandboxed(
                arguments,
                cwd,
                timeout_ms,
                environment=variables,
                scratch=str(folder),
                worktree=worktree or cwd,
                sandbox=sandbox,
                repository=repository,
                permissions=permissions or SandboxPermissions(),
            )
        finally:
            with suppress(OSError):
                delete_tree(str(folder))  # also read-only content


def _run_sandboxed(
    arguments: list[str],
    cwd: str,
    timeout_ms: int,
    *,
    environment: Mapping[str, str],
    scratch: str,
    worktree: str,
    sandbox: SandboxKind,
    repository: str | None,
    permissions: SandboxPermissions,
) -> CheckOutcome:
    home, private = os.path.join(scratch, "home"), os.path.join(scratch, "git")
    real_home = os.path.expanduser("~")
    os.mkdir(home, 0o700)
    checkout = find_checkout(repository, worktree) if repository is not None else None
    reads = [*permissions.reads, *list_toolchains(os.environ.get("PATH", os.defpath), real_home)]
    bounds = SandboxBounds(
        worktree=worktree,
        writable=(home,),
        readable=tuple(path for path in reads if os.path.exists(path)),
        network=permissions.network,
        limits=permissions.limits,
    )
    if checkout is not None:
        mounted = sandbox is SandboxKind.BUBBLEWRAP
        bounds = replace(bounds, git=private_git.prepare(checkout, private, mounted=mounted))
    try:
        wrapped = wrap_command(
            arguments, bounds, scratch=os.path.join(scratch, "tmp"), kind=sandbox
        )
        variables = build_environment("plain", os.environ) | dict(environment) | {"HOME": home}
        return _run(wrapped.words, cwd, timeout_ms, variables | wrapped.environment)
    finally:
        if checkout is not None:
            private_git.discard(checkout, private)


def _run(
    arguments: list[str], cwd: str, timeout_ms: int, environment: Mapping[str, str]
) -> CheckOutcome:
    os.stat(cwd)  # a missing folder is an error, not a failed check
    mark = f"CORRAL_CHECK={uuid4().hex}"
    name, _, value = mark.partition("=")
    alive, lifeline = os.pipe()  # the guard stops the check when this process closes its end
    try:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", GUARD_MODULE, cwd, str(alive), mark, *arguments],
            env=dict(environment) | {name: value},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(alive,),
        )
    except BaseException:
        os.close(lifeline)
        raise
    finally:
        os.close(alive)
    identity = process.identify(child.pid)
    assert child.stdout is not None
    with child.stdout as pipe:
        try:
            output = _read_end(pipe.fileno(), child, time.monotonic() + timeout_ms / 1_000)
            code = child.poll()
        finally:
            os.close(lifeline)
            _wait(child, 2 * GRACE_MS / 1_000)
            if child.poll() is None or child.returncode < 0:  # the guard was killed
                process.terminate_run_processes(identity, mark, grace_period_ms=0)
                child.kill()
                child.wait()
    if code is None:
        output += f"\nTimed out after {timeout_ms / 1_000:g} s.\n"
        return CheckOutcome(TIMEOUT_EXIT_CODE, output)
    return CheckOutcome(128 - code if code < 0 else code, output)


def _read_end(pipe: int, child: "subprocess.Popen[bytes]", deadline: float) -> str:
    """Return the end of the output, until the child exits or the deadline passes.

    Does not wait for other processes that hold the pipe, and bounds the memory used.
    """
    text, drained = b"", False
    while (remaining := deadline - time.monotonic()) > 0:
        ended = child.poll() is not None
        if select.select([pipe], [], [], 0 if ended else min(remaining, POLL_SECONDS))[0]:
            data = os.read(pipe, 65_536)
            text = (text + data)[-3 * MAX_OUTPUT_BYTES :]
            if not data:  # stdout is closed; the command may still run
                _wait(child, remaining)
                break
        elif ended:
            break
        if ended and not drained:
            drained, deadline = True, min(deadline, time.monotonic() + DRAIN_SECONDS)
    redactor = Redactor()
    # Redact more than is kept, so that a secret at the cut is seen completely.
    redacted = redactor.feed(text) + redactor.finish()
    tail = redacted[-MAX_OUTPUT_BYTES:]
    if len(tail) < len(redacted):
        tail = tail[tail.find(b"\n", 0, 1_000) + 1 :]
    return tail.decode(errors="replace").replace("\0", "")


def _wait(child: "subprocess.Popen[bytes]", seconds: float) -> None:
    with suppress(subprocess.TimeoutExpired):
        child.wait(seconds)
