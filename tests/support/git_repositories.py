"""Real git repositories for tests."""

import os
import subprocess
from pathlib import Path

IDENTITY = {
    f"GIT_{role}_{field}": value
    for role in ("AUTHOR", "COMMITTER")
    for field, value in (("NAME", "tester"), ("EMAIL", "tester@example.org"))
}


def git(folder: Path | str, *arguments: str, given: bytes = b"") -> str:
    """Run git with a test identity and without the user's configuration; return its output."""
    process = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        input=given,
        capture_output=True,
        check=False,
        env=os.environ
        | IDENTITY
        | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull},
    )
    assert process.returncode == 0, (arguments, process.stderr.decode(errors="replace"))
    return os.fsdecode(process.stdout).strip()


def write(top: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        file = top / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)


def commit(top: Path, files: dict[str, str | bytes], message: str = "more") -> str:
    """Write files, commit everything and return the commit id."""
    write(top, files)
    git(top, "add", "-A")
    git(top, "commit", "-qm", message)
    return git(top, "rev-parse", "HEAD")


def new_repository(top: Path, files: dict[str, str | bytes] | None = None) -> Path:
    """Create a repository on the branch main with one commit."""
    top.mkdir(parents=True)
    git(top, "init", "-q", "-b", "main")
    commit(top, files if files is not None else {"README": "hello\n"}, "first")
    return top
