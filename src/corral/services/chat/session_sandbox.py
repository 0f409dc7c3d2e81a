"""The sandbox of a session: the command line, environment and programs of its agent."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from corral import config
from corral.adapters.sandbox import sandbox
from corral.adapters.sandbox.sandbox import (
    ResourceLimits,
    SandboxBounds,
    SandboxKind,
    WrappedCommand,
)
from corral.adapters.sandbox_bridge.schema import SessionFolder
from corral.domain.runs.model import SESSION_SANDBOX_PREFIX
from corral.kernel.errors import CorralError, Refused

if TYPE_CHECKING:
    from corral.adapters.providers.provider import LaunchCommand

AGENT_CLIENT = "corral.adapters.sandbox_bridge.agent_client"
REPAIR_SECONDS = 20
MAX_PROCESSES = 512  # concurrent processes of a sandboxed agent


class SandboxPaths(NamedTuple):
    """The paths of the host that matter to a sandboxed command."""

    work: str | None
    """The working directory, which it can write."""
    store: str
    """The address of the store, whose files it cannot see."""
    scratch: str
    """The folder for the files of the sandbox itself."""
    programs: Sequence[str] = ()
    """A command line whose programs and scripts it can read."""
    reads: Sequence[str] = ()
    """Further paths that it can read."""


def wrap_command(
    command: Sequence[str], folder: SessionFolder, paths: SandboxPaths, *, kind: str
) -> WrappedCommand:
    """Return a command that runs inside the sandbox of a session.

    The sandbox has no network. It can read the system's programs and the session's files, and write
    only its working directory and its own files. Raises Refused when no sandbox on this machine
    guarantees that, unless `kind` is `none`.
    """
    selected = _select_kind(kind)
    work = paths.work
    writable = {folder.outside, folder.home} | ({work} if work is not None else set())
    hidden = [str(config.home()), *_list_store_files(paths.store)]
    inner = [
        path for path in (*hidden, folder.top) if work is not None and sandbox.is_inside(path, work)
    ]
    if selected is SandboxKind.LANDLOCK and inner:
        raise Refused(
            f"Landlock cannot protect {inner[0]}, which is inside the working directory. Install "
            "bubblewrap, or use another working directory.",
            path=inner[0],
        )
    readable = [*_list_programs(paths.programs), *paths.reads, folder.inside]
    return sandbox.wrap_command(
        command,
        SandboxBounds(
            writable=tuple(sorted(writable)),
            readable=tuple(dict.fromkeys(path for path in readable if os.path.exists(path))),
            hidden=tuple(path for path in inner if path != folder.top),
            network=False,
            limits=ResourceLimits(processes=MAX_PROCESSES),
        ),
        scratch=paths.scratch,
        kind=selected,
    )


def _select_kind(kind: str) -> SandboxKind:
    """Return the sandbox of this name; for `auto`, the best one that works on this machine."""
    if kind != "auto":
        return SandboxKind(kind)
    probe = sandbox.probe_sandboxes(network=False)
    if probe.kind is SandboxKind.NONE or not sandbox.can_block_network(probe.kind):
        problems = probe.why_not | {probe.kind: "it does not block the network"}
        reasons = "; ".join(f"{name}: {reason}" for name, reason in problems.items())
        raise Refused(
            f"The agent requires a sandbox, and none works here ({reasons}). Install bubblewrap, "
            "or run the agent without one: `corral setting set chat.sandbox none`."
        )
    return probe.kind


def _list_programs(command: Sequence[str]) -> list[str]:
    """Return the paths of the programs and scripts of a command, with their link targets."""
    first = shutil.which(command[0]) if command else None
    named = [word for word in command if os.path.isabs(word) and os.path.isfile(word)]
    paths = [path for path in (first, *named) if path is not None]
    return [name for path in paths for name in (path, os.path.realpath(path))]


def _list_store_files(store: str) -> list[str]:
    """Return the files of a SQLite store, which the sandbox must hide."""
    if not store.startswith("sqlite"):
        return []
    path = Path("/" + store.partition("://")[2].lstrip("/"))
    return [str(file) for file in sorted(path.parent.glob(f"{path.name}*"))]


def build_agent_environment(folder: SessionFolder) -> dict[str, str]:
    """Return the environment of a sandboxed agent: few variables of the host, and its paths."""
    inherited = ("LANG", "LC_ALL", "LC_CTYPE", "TZ", "TERM")
    variables = {name: os.environ[name] for name in inherited if name in os.environ}
    paths = [os.path.join(folder.inside, "bin"), os.path.dirname(sys.executable)]
    package = str(Path(config.__file__).parent.parent)
    return variables | {
        "PATH": os.pathsep.join([*paths, os.environ.get("PATH", os.defpath)]),
        "HOME": folder.home,
        "PYTHONPATH": package,
        "PYTHONDONTWRITEBYTECODE": "1",
        "CORRAL_SESSION_FOLDER": folder.top,
        "CORRAL_AGENT_HOME": folder.home,
    }


def write_start_file(folder: SessionFolder, started: "LaunchCommand", provider: str) -> str:
    """Write the file with the start parameters of the agent for the sandbox; returns its path."""
    path = Path(folder.inside) / "start.json"
    content = {
        "top": folder.top,
        "args": started.args,
        "stdin": started.stdin,
        "env": started.env,
        "provider": provider,
    }
    config.write_private_file(path, json.dumps(content))
    return str(path)


def write_command(folder: SessionFolder) -> None:
    """Write the `corral` command of the sandbox."""
    path = Path(folder.inside) / "bin" / "corral"
    config.make_private_folder(path.parent)
    config.write_private_file(
        path, f'#!/bin/sh\nexec "{sys.executable}" -P -m {AGENT_CLIENT} "$@"\n'
    )
    path.chmod(0o700)


def repair_outbound(folder: SessionFolder, kind: str, store: str) -> None:
    """Roll back an interrupted transaction in the agent's file.

    Runs inside the sandbox, because opening an untrusted database can be exploited.
    """
    command = [sys.executable, "-P", "-m", AGENT_CLIENT, "repair", folder.outbound]
    try:
        wrapped = wrap_command(
            command,
            folder,
            SandboxPaths(work=None, store=store, scratch=os.path.join(folder.top, "scratch")),
            kind=kind.removeprefix(SESSION_SANDBOX_PREFIX),
        )
        subprocess.run(
            wrapped.words,
            env=build_agent_environment(folder) | wrapped.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=REPAIR_SECONDS,
            check=False,
        )
    except (CorralError, OSError, subprocess.TimeoutExpired):
        return  # the next read reports that the file is not readable
