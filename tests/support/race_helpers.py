"""Races for tests: a small repository, and agents that are shell scripts."""

import subprocess
from pathlib import Path
from typing import Any

from corral.api import Corral
from corral.domain.races.model import Attempt, Race


def git(where: Path | str, *words: str) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=tester", "-c", "user.email=tester@example.org", *words],
        cwd=where,
        check=True,
        capture_output=True,
    )
    return done.stdout.decode(errors="surrogateescape").strip()


def make_repository(where: Path, **files: str) -> Path:
    where.mkdir(parents=True)
    git(where, "init", "-q", "-b", "main")
    for name, text in {"README": "hello\n", **files}.items():
        (where / name).write_text(text)
    git(where, "add", "-A")
    git(where, "commit", "-qm", "first")
    return where


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


def tree_of(where: Path | str) -> dict[str, bytes]:
    """Return the content of every file of a folder, except git's own."""
    root = Path(where)
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".git" not in path.relative_to(root).parts
    }
