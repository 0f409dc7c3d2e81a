"""The stack of earlier tools: better-sqlite3 in node, alone and under query builders.

Each works on a file with Corral's own tables and writes the same rows, in a process that times
itself, so that the communication between node and Python is not measured. The programs are in
`bench/node`; `make bench-peers` installs their dependencies.
"""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from bench.harness import Rates
from bench.opponents import BODY, open_store
from bench.opponents.sessions import TEXT
from corral.db.sqlite_connection_set import WAL_CHECKPOINT_PAGES

HOME = Path(__file__).parent.parent / "node"
IMPLEMENTATIONS = {
    "better-sqlite3": "better",
    "drizzle on better-sqlite3": "drizzle",
    "kysely on better-sqlite3": "kysely",
}
TASKS = 100
OTHERS = 100  # locks of other agents


class Workplace:
    """A store with the same content for every contestant."""

    def __init__(self, path: Path) -> None:
        self.path = path
        folder = path.parent / "project"
        (folder / "src").mkdir(parents=True)
        with open_store(f"sqlite:///{path}") as store:
            store.agents.create("ada", role="builder")
            self.project = store.projects.register(folder).id
            self.session = store.sessions.open(title="bench").id
            store.tasks.declare(self.project, [_task(number) for number in range(TASKS)])
            for number in range(OTHERS):
                held = f"src/held-{number}.py"
                store.locks.acquire(self.project, held, f"other-{number % 10}", ttl_ms=3_600_000)


class NodePeer:
    """One node implementation, in its own process until closed."""

    def __init__(self, implementation: str, workplace: Workplace, *, full: bool) -> None:
        self._process = subprocess.Popen(
            ["node", "peer.mjs", IMPLEMENTATIONS[implementation]],
            cwd=HOME,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        values = {
            "project": workplace.project,
            "session": workplace.session,
            "body": BODY,
            "words": TEXT,
        }
        synchronous = "FULL" if full else "NORMAL"
        self._ask(
            file=str(workplace.path),
            synchronous=synchronous,
            pages=WAL_CHECKPOINT_PAGES,
            given=values,
        )

    def sample(self, counts: dict[str, int]) -> Rates:
        """Run each job so many times, one after the other; return their speeds."""
        rates: dict[str, float] = self._ask(counts=counts)
        return rates

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _ask(self, **request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the node process exited; its error output is above")
        return json.loads(answer)


def missing() -> str:
    """Return why node cannot be measured; empty if it can."""
    if shutil.which("node") is None:
        return "Not measured: node is not installed."
    if not (HOME / "node_modules" / "better-sqlite3" / "build").exists():
        return "Not measured: the dependencies of bench/node are not installed."
    return ""


def versions() -> dict[str, str]:
    """Return the versions of node and its packages, if installed."""
    if missing():
        return {}
    node = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True)
    packages = json.loads((HOME / "package.json").read_text())["dependencies"]
    return {"node": node.stdout.strip().removeprefix("v"), **packages}


def _task(number: int) -> dict[str, Any]:
    return {
        "key": f"task-{number}",
        "role": "builder",
        "title": f"Do the part {number}",
        "files": [f"src/{number}.py"],
    }
