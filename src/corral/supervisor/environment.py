"""What a run found where it runs: enough to understand it later, and no secret.

Of the environment only names on a short list are kept with their values; of all others there is a
fingerprint, made with a key of this store's own, that tells whether a value changed and nothing
else.
"""

import os

# Not by way of hashlib, which brings a whole library of cryptography into every keeper.
from _blake2 import blake2b
from typing import TYPE_CHECKING, Any

from corral import __version__, config
from corral.adapters import git
from corral.db.filesystem import make_new_private_file

if TYPE_CHECKING:
    from corral.adapters.checkouts import Checkout

ALLOWED = ("PATH", "HOME", "USER", "SHELL", "LANG", "LC_ALL", "TERM", "TZ", "PWD", "VIRTUAL_ENV")
GIT_SECONDS = 5
STATUS = ("status", "--porcelain=v2", "--branch", "--untracked-files=no")


def describe() -> dict[str, Any]:
    """Versions, and the environment as far as it may be kept."""
    system = os.uname()
    return {
        "corral_version": __version__,
        "system": f"{system.sysname} {system.release} {system.machine}",
        "variables": {name: os.environ[name] for name in ALLOWED if name in os.environ},
        "fingerprints": _fingerprints(),
    }


def git_at(cwd: str) -> dict[str, Any] | None:
    """The commit and the branch that a folder is at, and whether files of it are changed; None
    where git does not tell."""
    told = git.ask(cwd, *STATUS, seconds=GIT_SECONDS)
    return None if told is None else _read(told)


def git_of(found: "Checkout") -> dict[str, Any] | None:
    """The same of a worktree that an agent may have changed, by what its repository says."""
    from corral.adapters.checkouts import disarm
    from corral.kernel.errors import Refused

    disarm(found.own)
    words = (*STATUS, "--ignore-submodules=dirty")
    as_known = found.environment | {"GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = git.run(found.folder, *words, environment=as_known, seconds=GIT_SECONDS)
    except Refused:
        return None
    return None if done.code else _read(done.out)


def _read(told: bytes) -> dict[str, Any]:
    heads = {}
    dirty = False
    for line in told.decode(errors="replace").splitlines():
        if line.startswith("# branch."):
            name, _, value = line[len("# branch.") :].partition(" ")
            heads[name] = value
        else:
            dirty = True
    return {"commit": heads.get("oid"), "branch": heads.get("head"), "dirty": dirty}


def _fingerprints() -> dict[str, str]:
    key = _key()
    return {
        name: blake2b(value.encode(errors="surrogateescape"), key=key, digest_size=8).hexdigest()
        for name, value in sorted(os.environ.items())
        if name not in ALLOWED and not name.startswith("CORRAL_")
    }


def _key() -> bytes:
    """A random key of this home's own, so that a fingerprint cannot be looked up anywhere."""
    path = config.home() / "fingerprint.key"
    try:
        return path.read_bytes()
    except FileNotFoundError:
        config.make_private_folder(path.parent)
        part = path.with_name(f"{path.name}.{os.getpid()}")
        make_new_private_file(part)
        part.write_bytes(os.urandom(32))
        try:
            os.link(part, path)  # of several at once, the first one stays
        except FileExistsError:
            pass
        finally:
            part.unlink()
        return path.read_bytes()
