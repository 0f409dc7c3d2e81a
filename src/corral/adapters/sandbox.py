"""Running a program so that it can change only what it is meant to.

Bubblewrap where that is there and works, else Landlock (Linux, no package needed), else nothing;
which one it is, why not a better one, and what it does not keep is always said.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import cache
from typing import NamedTuple

import msgspec

from corral.adapters.checkouts import (
    Checkout,
    has_own_configuration,
    known_checkout,
    make_own_configuration,
)
from corral.kernel.errors import Refused
from corral.scratch import scratch_folder

SECONDS = 20
# What a probe does inside: change what it may, fail to change what it may not, count the networks.
_PROBE = 'echo x > "$1/in" && ! echo x 2>/dev/null > "$2/out" && wc -l < /proc/net/dev'
LINES_OF_LOOPBACK = "3"  # two of heading, and the one network


class Kind(StrEnum):
    BUBBLEWRAP = "bubblewrap"
    LANDLOCK = "landlock"
    NONE = "none"


class Bounds(msgspec.Struct, frozen=True):
    """What a program may do. The system is there to read; all else is named."""

    writable: tuple[str, ...] = ()
    """Folders and files that it may change."""
    readable: tuple[str, ...] = ()
    """What it may read, and not change, although it is in a hidden or a writable place (Landlock
    cannot take the right to change back)."""
    hidden: tuple[str, ...] = ()
    """Folders and files that it does not see into: they are empty, or cannot be opened. With `/`
    among them there is nothing but what is named readable or writable."""
    worktree: str | None = None
    """A git worktree that it may change, with as much of its repository as commits need: objects,
    its own index and its own branch's folder, not the configurations and not the hooks."""
    repository: str | None = None
    """Whose worktree that is; without, it may change the files and cannot commit."""
    network: bool = True
    terminal: bool = False
    """It is used at a terminal, and keeps that."""
    own_processes: bool = True
    """It sees no process but its own (Landlock: it sees them, and cannot signal them)."""


class Wrapped(msgspec.Struct, frozen=True):
    """A command as it is to be started."""

    words: list[str]
    environment: dict[str, str]
    """To be added to its environment."""
    kind: Kind
    lacks: list[str]
    """What the bounds ask for and this kind does not keep, in sentences for a person."""


class Probe(msgspec.Struct, frozen=True):
    kind: Kind
    """The best that works here."""
    why_not: dict[Kind, str]
    """Why the better ones do not."""


def probe(*, network: bool = True) -> Probe:
    """Try what this machine has, once for a process: each is really started. `network=False` asks
    for one that can keep a program off the network."""
    why_not: dict[Kind, str] = {}
    for kind in (Kind.BUBBLEWRAP, Kind.LANDLOCK):
        trouble, _ = _tried(kind, network)
        if trouble is None:
            return Probe(kind, why_not)
        why_not[kind] = trouble
    return Probe(Kind.NONE, why_not)


def keeps_off_network(kind: Kind) -> bool:
    """Whether a kind works here and keeps a program off all networks, not off TCP alone."""
    trouble, off = _tried(kind, False)
    return trouble is None and off


@cache
def _tried(kind: Kind, network: bool) -> tuple[str | None, bool]:
    """Why a kind does not work here, if it does not; and whether it keeps all networks away."""
    if not sys.platform.startswith("linux"):
        return f"{kind} is a part of Linux", False
    if kind is Kind.BUBBLEWRAP and shutil.which("bwrap") is None:
        return "there is no `bwrap` on the PATH; install bubblewrap", False
    with scratch_folder("sandbox") as folder:
        inside, outside, temporary = (os.path.join(folder, name) for name in ("in", "out", "tmp"))
        os.mkdir(inside)
        os.mkdir(outside)
        bounds = Bounds(writable=(inside,), readable=(outside,), network=network)
        words = ["/bin/sh", "-c", _PROBE, "probe", inside, outside]
        wrapped = _MAKERS[kind](words, bounds, temporary)
        try:
            done = subprocess.run(
                wrapped.words,
                env=os.environ | wrapped.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error), False
        if done.returncode or not os.path.exists(os.path.join(inside, "in")):
            said = done.stderr.strip().rpartition("\n")[2]
            return said or f"it did not keep a program in bounds ({done.returncode})", False
        return None, done.stdout.strip() == LINES_OF_LOOPBACK


def wrap(
    words: Sequence[str], bounds: Bounds, *, scratch: str, kind: Kind | None = None
) -> Wrapped:
    """A command inside of bounds, by the best kind that works here or by the one that is named.

    `scratch` is a folder of its own for what it writes to a temporary place; it is made, for its
    user alone. Refused for a kind that does not work here, and for a path that is not there.
    """
    for path in (*bounds.writable, *bounds.readable):
        if not os.path.exists(path):
            raise Refused(f"{path} is not there; a sandbox cannot have it.", path=path)
    if kind is None:
        kind = probe(network=bounds.network).kind
    elif kind is not Kind.NONE:
        trouble, _ = _tried(kind, bounds.network)
        if trouble is not None:
            raise Refused(f"{kind} does not work here: {trouble}.", kind=str(kind))
    made = _MAKERS[kind](words, bounds, scratch)
    if kind is Kind.NONE or bounds.network or _tried(kind, False)[1]:
        return made
    said = "It is kept off TCP, not off other kinds of network."
    return msgspec.structs.replace(made, lacks=[*made.lacks, said])


class _Git(NamedTuple):
    """What a worktree needs of its repository, and what is not kept by that."""

    writable: list[str]
    readable: list[str]
    lacks: list[str]


def _git_of(bounds: Bounds, kind: Kind) -> _Git:
    if bounds.worktree is None:
        return _Git([], [], [])
    if bounds.repository is None:
        return _Git([os.path.realpath(bounds.worktree)], [], [])
    # Not what is written in the worktree: an agent may have written it, to be let out.
    found = known_checkout(bounds.repository, bounds.worktree)
    if kind is Kind.LANDLOCK and has_own_configuration(found):
        said = "It cannot commit: git reads a configuration there that it could write."
        return _Git([found.folder], [found.common], [said])
    branch = [*_branch_folders(found)]
    lacks = [] if branch else ["It cannot commit: its branch is in no folder of its own."]
    folders = [found.folder, found.own, os.path.join(found.common, "objects"), *branch]
    return _Git(folders, [found.common, make_own_configuration(found)], lacks)


def _branch_folders(found: Checkout) -> Iterator[str]:
    branch = found.branch or ""
    if "/" in branch:
        for above in ("refs/heads", "logs/refs/heads"):
            folder = os.path.join(found.common, above, os.path.dirname(branch))
            os.makedirs(folder, exist_ok=True)
            yield folder


def _bubblewrap(words: Sequence[str], bounds: Bounds, scratch: str) -> Wrapped:
    os.makedirs(scratch, mode=0o700, exist_ok=True)
    git = _git_of(bounds, Kind.BUBBLEWRAP)
    bare = "/" in bounds.hidden
    made = ["bwrap", "--die-with-parent", "--unshare-ipc"]
    # Whoever is root inside must not be able to mount what was left out.
    made += ["--cap-drop", "ALL"] if bare else ["--ro-bind", "/", "/"]
    made += ["--dev", "/dev"]
    if bounds.own_processes:
        made += ["--unshare-pid", "--proc", "/proc"]
    if not bounds.network:
        made += ["--unshare-net"]
    if not bounds.terminal:
        made += ["--new-session"]
    made += ["--bind", os.path.realpath(scratch), "/tmp"]  # noqa: S108  that is the point of it
    binds = [
        *(
            (path, ["--tmpfs"] if os.path.isdir(path) else ["--ro-bind", "/dev/null"])
            for path in map(os.path.realpath, bounds.hidden)
            if os.path.exists(path) and path != "/"
        ),
        *((path, ["--bind", path]) for path in map(os.path.realpath, bounds.writable)),
        *((path, ["--bind", path]) for path in git.writable),
        *((path, ["--ro-bind", path]) for path in git.readable),
        *((path, ["--ro-bind", path]) for path in map(os.path.realpath, bounds.readable)),
    ]
    # What is inside of another one comes after it, so that the nearest word counts.
    for path, how in sorted(binds, key=lambda bind: bind[0].count("/")):
        made += [*how, path]
    made += [*_other_names(bounds), "--remount-ro", "/"] if bare else []
    return Wrapped([*made, "--", *words], {"TMPDIR": "/tmp"}, Kind.BUBBLEWRAP, git.lacks)  # noqa: S108


def _other_names(bounds: Bounds) -> Iterator[str]:
    """Links, where what is named is really somewhere else (`/bin`, say)."""
    named = (*bounds.writable, *bounds.readable)
    there = {os.path.realpath(path) for path in named}
    for path in sorted({*named} - there):
        if not any(path.startswith(f"{top}/") for top in there):
            yield from ("--symlink", os.path.realpath(path), path)


def _landlock(words: Sequence[str], bounds: Bounds, scratch: str) -> Wrapped:
    os.makedirs(scratch, mode=0o700, exist_ok=True)
    git = _git_of(bounds, Kind.LANDLOCK)
    order = {
        "write": [*bounds.writable, *git.writable, scratch],
        "hidden": bounds.hidden,
        "readable": [*bounds.readable, *git.readable],
        "network": bounds.network,
        "signals": not bounds.own_processes,
    }
    lacks = [*git.lacks]
    if "/" not in bounds.hidden:
        lacks.append("It can read /tmp; it writes what is temporary to TMPDIR.")
    else:
        lacks.append("It can talk to programs that listen at a socket in a folder.")
    if bounds.own_processes:
        lacks.append("It can see other processes.")
    launcher = [sys.executable, "-P", "-m", "corral.adapters.landlock", json.dumps(order)]
    return Wrapped([*launcher, *words], {"TMPDIR": scratch}, Kind.LANDLOCK, lacks)


def _nothing(words: Sequence[str], bounds: Bounds, scratch: str) -> Wrapped:
    os.makedirs(scratch, mode=0o700, exist_ok=True)
    said = ["Nothing keeps it in bounds: it may change whatever its user may."]
    return Wrapped([*words], {"TMPDIR": scratch}, Kind.NONE, said)


_MAKERS = {Kind.BUBBLEWRAP: _bubblewrap, Kind.LANDLOCK: _landlock, Kind.NONE: _nothing}
