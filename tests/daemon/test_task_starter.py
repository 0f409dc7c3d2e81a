"""Tasks that start by themselves: real agents in real worktrees."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import corral
from corral.api import Corral
from corral.daemon.loops import check_next_task, start_ready_tasks
from tests.support.task_factories import board, task_notices

# Processes and worktrees; the queries are tested on both engines in tests/domain.
pytestmark = pytest.mark.parametrize("engine", ["sqlite"])


@pytest.fixture
def live(url: str) -> Iterator[Corral]:
    with corral.open(url, actor="user:tester") as store:
        yield store


def git(where: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(where), *words], check=True, capture_output=True)
    return done.stdout.decode().strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "tester")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "tester@example.org")
    where = tmp_path / "repository"
    where.mkdir()
    git(where, "init", "-q", "-b", "main")
    (where / "README").write_text("hello\n")
    git(where, "add", "-A")
    git(where, "commit", "-qm", "first")
    return where


def agent(store: Corral, folder: Path, script: str, name: str = "bob") -> None:
    """An agent of the role builder, which does what a shell script says."""
    file = folder / f"{name}.sh"
    file.write_text(f"corral() {{ '{sys.executable}' -m corral \"$@\"; }}\n{script}\n")
    store.agents.create(name, command=f"sh {file}", role="builder")


def begin(store: Corral, repository: Path, *tasks: dict[str, object]) -> str:
    project = store.projects.register(repository).id
    store.settings.set("tasks.auto_start", True, scope=f"project:{project}")
    store.tasks.declare(project, [{"role": "builder", **task} for task in tasks])
    return project


def test_ready_task_runs_with_its_role_agent_in_a_worktree(
    live: Corral, repository: Path, tmp_path: Path
) -> None:
    script = """
        cat > prompt
        echo made > made && git add made && git commit -qm made
        corral task submit "$CORRAL_TASK" --commit "$(git rev-parse HEAD)" --text "made it"
    """
    agent(live, tmp_path, script)
    project = begin(
        live,
        repository,
        {"key": "make/it", "title": "Make it", "check": "test -e made"},
        {"key": "B"},
    )
    (run,) = live.internal.tasks.start_ready()
    assert run.title == "Make it", "not the preamble of its prompt"
    assert live.tasks.get("make/it").run_id == run.id
    assert run.project_id == project
    assert live.runs.wait(run.id, timeout_ms=60_000).state == "completed"
    task = live.tasks.get("make/it")
    assert (task.state, task.evidence and task.evidence.text) == ("submitted", "made it")
    assert task.dir is not None
    assert task.dir != str(repository)
    assert not (repository / "made").exists(), "the project's own directory is left alone"
    assert git(Path(task.dir), "branch", "--show-current").startswith("corral/make-it-")
    told_prompt = (Path(task.dir) / "prompt").read_text()
    assert task.id in told_prompt
    assert "test -e made" in told_prompt
    assert check_next_task(live) == 1, "its check is run there too"
    assert live.tasks.get("make/it").state == "done"


def test_agent_without_a_submit_is_restarted_up_to_the_limit(
    live: Corral, repository: Path, tmp_path: Path
) -> None:
    agent(live, tmp_path, "echo x >> tried")
    project = begin(live, repository, {"key": "A"})
    live.settings.set("tasks.max_attempts", 2, scope=f"project:{project}")
    folders = set()
    for _ in range(2):
        assert start_ready_tasks(live) == 1
        # A quick run has ended and released its task already, so the list of runs names it.
        run = live.runs.list().items[0]
        folders.add(run.cwd)
        ended = live.runs.wait(run.id, timeout_ms=60_000)
        live.internal.runs.clean_up(ended)
    assert start_ready_tasks(live) == 0
    assert board(live, project) == {"A": "failed"}
    (folder,) = folders
    assert folder is not None
    assert (Path(folder) / "tried").read_text() == "x\nx\n", "what was left is found again"
    assert [what for what, _, _ in task_notices(live, "user:tester")] == ["returned", "failed"]


def test_tasks_start_only_where_enabled_and_possible(
    live: Corral, repository: Path, tmp_path: Path
) -> None:
    agent(live, tmp_path, "true")
    plain = tmp_path / "plain"
    plain.mkdir()
    project = begin(live, repository, {"key": "A"})
    live.settings.set("tasks.auto_start", False, scope=f"project:{project}")
    assert live.internal.tasks.start_ready() == []
    begin(live, plain, {"key": "B"}, {"key": "C", "role": "nobody has it"})
    for _ in range(2):
        assert live.internal.tasks.start_ready() == []
    ((what, key, reason),) = task_notices(live, "user:tester")
    assert (what, key) == ("not started", "B")
    assert "not a git repository" in (reason or "")
    assert live.runs.list().items == [], "nothing is left half-done"


def test_task_starts_respect_limits_and_budgets(
    live: Corral, repository: Path, tmp_path: Path
) -> None:
    agent(live, tmp_path, "sleep 600")
    agent(live, tmp_path, "sleep 600", name="zoe")
    project = begin(live, repository, *({"key": f"k{n}"} for n in range(4)))
    live.settings.set("tasks.max_started", 1, scope=f"project:{project}")
    live.budgets.set(f"project:{project}", 0)
    assert live.internal.tasks.start_ready() == [], "there is nothing to be spent"
    live.budgets.remove(f"project:{project}")
    (run,) = live.internal.tasks.start_ready()
    try:
        assert live.internal.tasks.start_ready() == [], "as many as may are going"
        live.settings.set("tasks.max_started", 9, scope=f"project:{project}")
        live.settings.set("runs.max_concurrent", 1)
        assert live.internal.tasks.start_ready() == []
    finally:
        live.runs.stop(run.id, grace_period_ms=100)
        live.runs.wait(run.id, timeout_ms=60_000)


ASKS_ITS_HOOK = """#!{python}
import json, os, subprocess, sys

given = next(word.partition("=")[2] for word in sys.argv if word.startswith("--settings="))
hook = json.loads(given)["hooks"]["PreToolUse"][0]["hooks"][0]["command"]
for name in ("held.py", "free.py"):
    path = os.path.join(os.getcwd(), name)
    told = json.dumps({{"tool_name": "Write", "tool_input": {{"file_path": path}}}})
    done = subprocess.run(hook, shell=True, input=told.encode(), capture_output=True)
    with open("answer-" + name, "w") as file:
        file.write(f"{{done.returncode}} {{done.stderr.decode()}}")
"""


def test_locks_apply_in_a_worktree_without_hooks(
    live: Corral, repository: Path, tmp_path: Path
) -> None:
    program = tmp_path / "claude"
    program.write_text(ASKS_ITS_HOOK.format(python=sys.executable))
    program.chmod(0o755)
    live.agents.create("bob", provider="claude", command=str(program), role="builder")
    live.agents.create("ada")
    project = begin(live, repository, {"key": "A"})
    live.locks.acquire(project, "held.py", "ada", ttl_ms=3_600_000)
    (run,) = live.internal.tasks.start_ready()
    live.runs.wait(run.id, timeout_ms=60_000)
    where = Path(live.tasks.get("A").dir or "")
    assert where != repository
    held, free = ((where / f"answer-{name}.py").read_text() for name in ("held", "free"))
    assert held.startswith("2 ")
    assert "agent:ada holds held.py" in held
    assert free.startswith("0 ")
