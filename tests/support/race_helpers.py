"""Races for tests: a small repository, and agents that are shell scripts."""

import subprocess
from pathlib import Path
from typing import Any

from corral.api import Corral
from corral.domain.races.model import Attempt, Race


def git(folder: Path | str, *arguments: str) -> str:
    process = subprocess.run(
        ["git", "-c", "user.name=tester", "-c", "user.email=tester@example.org", *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return process.stdout.decode(errors="surrogateescape").strip()


def make_repository(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    for name, text in {"README": "hello\n", **files}.items():
        (folder / name).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    return folder


def agent(store: Corral, folder: Path, name: str, script: str, **more: Any) -> str:
    """Create an agent that runs a shell script with the prompt on stdin."""
    file = folder / f"{name}.sh"
    file.write_text(f"{script}\n")
    store.agents.create(name, command=f"sh {file}", **more)
    return name


def attempts(race: Race, round: int = -1) -> list[Attempt]:
    return race.rounds[round].attempts


def states(race: Race, round: int = -1) -> list[str]:
    return [str(attempt.state) for attempt in attempts(race, round)]


def tree_of(folder: Path | str) -> dict[str, bytes]:
    """Return the content of every file of a folder, except git's own."""
    root = Path(folder)
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".git" not in path.relative_to(root).parts
    }
