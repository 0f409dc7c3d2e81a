"""A description of the environment that a run was started in, without secrets.

Only variables on a short list are recorded with their values. For all others a keyed fingerprint is
recorded: it shows whether a value changed, and nothing else.
"""

import os
import shutil

# Not hashlib, which would load OpenSSL into every supervisor.
from _blake2 import blake2b
from typing import TYPE_CHECKING, Any

from corral import __version__, config
from corral.adapters.git import git
from corral.db.filesystem import create_private_file

if TYPE_CHECKING:
    from corral.adapters.worktrees.worktree_registry import Checkout
    from corral.domain.runs.model import Launch
    from corral.supervisor.launch_plan import LaunchPlan
    from corral.supervisor.worktree_sandbox import WorktreeSandbox

RECORDED_VARIABLES = (
    "PATH",
    "HOME",
    "USER",
    "SHELL",
    "LANG",
    "LC_ALL",
    "TERM",
    "TZ",
    "PWD",
    "VIRTUAL_ENV",
)
GIT_SECONDS = 5
STATUS_ARGS = ("status", "--porcelain=v2", "--branch", "--untracked-files=no")


def describe_environment(plan: "LaunchPlan") -> dict[str, Any]:
    """Return versions, git state, recorded variables and the sandbox of a run."""
    description = _describe_system() | {
        "git": describe_git(plan.run.cwd, plan.launch, plan.worktree_sandbox),
        "provider_version": _probe_provider_version(plan),
    }
    sandbox = plan.sandbox_description
    return description | {"sandbox": sandbox} if sandbox is not None else description


def _probe_provider_version(plan: "LaunchPlan") -> str | None:
    if plan.launch.raw or plan.provider.name == "plain":
        return None
    return plan.provider.probe_version(shutil.which(plan.run.command) or plan.run.command)


def _describe_system() -> dict[str, Any]:
    """Return versions, recorded variables and fingerprints of the others."""
    system = os.uname()
    return {
        "corral_version": __version__,
        "system": f"{system.sysname} {system.release} {system.machine}",
        "variables": {name: os.environ[name] for name in RECORDED_VARIABLES if name in os.environ},
        "fingerprints": _compute_fingerprints(),
    }


def describe_git(
    cwd: str, launch: "Launch", worktree_sandbox: "WorktreeSandbox | None"
) -> dict[str, Any] | None:
    """Return the git state of a run's working directory; None outside of git.

    Git must not execute programs that a sandboxed agent wrote. With a worktree sandbox the known
    repository is used; with a session sandbox git is not called at all.
    """
    if launch.has_session_sandbox:
        return None
    if worktree_sandbox is None:
        return read_git_state(cwd)
    return read_worktree_state(worktree_sandbox.checkout)


def read_git_state(cwd: str) -> dict[str, Any] | None:
    """Return commit, branch and dirty flag of a directory; None outside of git."""
    output = git.try_output(cwd, *STATUS_ARGS, seconds=GIT_SECONDS)
    return None if output is None else _parse_status(output)


def read_worktree_state(checkout: "Checkout") -> dict[str, Any] | None:
    """Like `read_git_state`, for a worktree whose `.git` an agent may have changed.

    Git uses the directories of the known repository, and runs no program that the worktree's own
    configuration names.
    """
    from corral.adapters.worktrees.worktree_registry import sanitize_config
    from corral.kernel.errors import Refused

    sanitize_config(checkout.own)
    args = (*STATUS_ARGS, "--ignore-submodules=dirty")
    environment = checkout.environment | {"GIT_OPTIONAL_LOCKS": "0"}
    try:
        result = git.run(checkout.folder, *args, environment=environment, seconds=GIT_SECONDS)
    except Refused:
        return None
    return None if result.code else _parse_status(result.out)


def _parse_status(output: bytes) -> dict[str, Any]:
    headers = {}
    dirty = False
    for line in output.decode(errors="replace").splitlines():
        if line.startswith("# branch."):
            name, _, value = line[len("# branch.") :].partition(" ")
            headers[name] = value
        else:
            dirty = True
    return {"commit": headers.get("oid"), "branch": headers.get("head"), "dirty": dirty}


def _compute_fingerprints() -> dict[str, str]:
    key = _read_key()
    return {
        name: blake2b(value.encode(errors="surrogateescape"), key=key, digest_size=8).hexdigest()
        for name, value in sorted(os.environ.items())
        if name not in RECORDED_VARIABLES and not name.startswith("CORRAL_")
    }


def _read_key() -> bytes:
    """Return the random key of this home, so that fingerprints cannot be looked up in a table."""
    path = config.home() / "fingerprint.key"
    try:
        return path.read_bytes()
    except FileNotFoundError:
        config.make_private_folder(path.parent)
        part = path.with_name(f"{path.name}.{os.getpid()}")
        create_private_file(part)
        part.write_bytes(os.urandom(32))
        try:
            os.link(part, path)  # atomic: of several concurrent processes, the first one wins
        except FileExistsError:
            pass
        finally:
            part.unlink()
        return path.read_bytes()
