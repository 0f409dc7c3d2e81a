"""Looking at all that Corral needs: the program, the folders, the store."""

import os
import shutil
import stat
import sys
from pathlib import Path

from corral import config
from corral.db.database import Finding
from corral.kernel.errors import CorralError

LITTLE_SPACE = 256 * 1024 * 1024


def examine(url: str | None = None, *, fix: bool = False) -> list[Finding]:
    """Check everything, also when the store cannot be opened; `fix` mends what is safe to mend."""
    findings = [_python(), _sqlite(), _folder(config.home(), fix)]
    from corral.library import open

    try:
        with open(url, create=False) as store:
            findings.append(Finding("store", "ok", f"{store.db.url} can be opened."))
            findings += store.db.check()
            if store.db.path is not None:
                findings += _file(store.db.path, fix)
            findings.append(_durability(store.db.durability()))
    except CorralError as error:
        missing = error.details.get("reason") == "missing"
        findings.append(Finding("store", "warning" if missing else "broken", error.message))
    return findings


def _python() -> Finding:
    return Finding("python", "ok", f"{sys.version.split()[0]}")


def _sqlite() -> Finding:
    import apsw

    from corral.db.sqlite import require_current_sqlite

    try:
        require_current_sqlite()
    except CorralError as error:
        return Finding("sqlite", "broken", error.message)
    return Finding("sqlite", "ok", f"{apsw.sqlite_lib_version()}, brought along by apsw")


def _folder(home: Path, fix: bool) -> Finding:
    if not home.exists():
        return Finding("home", "ok", f"{home} is made when it is first used.")
    return _private("home", home, 0o700, fix)


def _file(path: Path, fix: bool) -> list[Finding]:
    from corral.db.filesystem import REMOTE, file_system

    kind = file_system(path)
    free = shutil.disk_usage(path.parent).free
    return [
        _private("store file", path, 0o600, fix),
        Finding(
            "file system",
            "warning",
            f"{kind} is shared over a network; one process at a time "
            "may use the store. PostgreSQL serves several machines.",
        )
        if kind in REMOTE
        else Finding("file system", "ok", kind or "local, as far as can be told"),
        Finding(
            "space",
            "ok" if free > LITTLE_SPACE else "warning",
            f"{free // (1024 * 1024):,} MiB are free.",
        ),
    ]


def _private(check: str, path: Path, wanted: int, fix: bool) -> Finding:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077 and fix:
        os.chmod(path, wanted)
        return Finding(check, "ok", f"{path} was open to others and is private now.")
    if mode & 0o077:
        return Finding(
            check,
            "warning",
            f"{path} can be read by others; `corral doctor --fix` makes it private.",
        )
    return Finding(check, "ok", f"{path} is private to its user.")


def _durability(durability: str) -> Finding:
    survives = "any process's death" if durability == "normal" else "a power cut too"
    return Finding("durability", "ok", f"{durability}: what was accepted survives {survives}.")
