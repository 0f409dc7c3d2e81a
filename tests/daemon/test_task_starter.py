"""Automatic start of ready tasks: real agents in real worktrees."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import corral
from corral.adapters.processes import process
from corral.api import Corral
from corral.daemon.loops import check_next_task, start_ready_tasks
from tests.support.task_factories import board, task_notices

# Processes and worktrees; the queries are tested on both engines in tests/domain.
pytestmark = pytest.mark.parametrize("engine", ["sqlite"])


@pytest.fixture
def live_store(url: str) -> Iterator[Corral]:
    with corral.open(url, actor="user:tester") as store:
        yield store


def git(folder: Path, *arguments: str) -> str:
    result = subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)
    return result.stdout.decode().strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "tester")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "tester@example.org")
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "README").write_text("hello\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    return folder


def create_agent(store: Corral, folder: Path, script: str, name: str = "bob") -> None:
    """Create an agent of the role builder that runs a shell script."""
    file = folder / f"{name}.sh"
    file.write_text(f"corral() {{ '{sys.executable}' -m corral \"$@\"; }}\n{script}\n")
    store.agents.create(name, command=f"sh {file}", role="builder")


def declare_tasks(store: Corral, repository: Path, *tasks: dict[str, object]) -> str:
    project = store.projects.register(repository).id
    store.settings.set("tasks.auto_start", True, scope=f"project:{project}")
    store.tasks.declare(project, [{"role": "builder", **task} for task in tasks])
    return project


def test_ready_task_runs_with_its_role_agent_in_a_worktree(
    live_store: Corral, repository: Path, tmp_path: Path
) -> None:
    script = """
        cat > prompt
        echo x > result && git add result && git commit -qm result
        corral task submit "$CORRAL_TASK" --commit "$(git rev-parse HEAD)" --text "finished"
    """
    create_agent(live_store, tmp_path, script)
    project = declare_tasks(
        live_store,
        repository,
        {"key": "make/it", "title": "Make it", "check": "test -e result"},
        {"key": "B"},
    )
    (run,) = live_store.internal.tasks.start_ready()
    assert run.title == "Make it", "the title of the task, not its prompt"
    assert live_store.tasks.get("make/it").run_id == run.id
    assert run.project_id == project
    assert live_store.runs.wait(run.id, timeout_ms=60_000).state == "completed"
    task = live_store.tasks.get("make/it")
    assert (task.state, task.evidence and task.evidence.text) == ("submitted", "finished")
    assert task.dir is not None
    assert task.dir != str(repository)
    assert not (repository / "result").exists(), "the project folder is unchanged"
    assert git(Path(task.dir), "branch", "--show-current").startswith("corral/make-it-")
    prompt = (Path(task.dir) / "prompt").read_text()
    assert task.id in prompt
    assert "test -e result" in prompt
    assert check_next_task(live_store) == 1, "the check runs in the worktree"
    assert live_store.tasks.get("make/it").state == "done"


def test_agent_without_a_submit_is_restarted_up_to_the_limit(
    live_store: Corral, repository: Path, tmp_path: Path
) -> None:
    create_agent(live_store, tmp_path, "echo x >> attempts")
    project = declare_tasks(live_store, repository, {"key": "A"})
    live_store.settings.set("tasks.max_attempts", 2, scope=f"project:{project}")
    folders = set()
    for _ in range(2):
        assert start_ready_tasks(live_store) == 1
        # A quick run has ended and released its task already, so the list of runs names it.
        run = live_store.runs.list().items[0]
        folders.add(run.cwd)
        ended = live_store.runs.wait(run.id, timeout_ms=60_000)
        live_store.internal.runs.clean_up(ended)
    assert start_ready_tasks(live_store) == 0
    assert board(live_store, project) == {"A": "failed"}
    (folder,) = folders
    assert folder is not None
    assert (Path(folder) / "attempts").read_text() == "x\nx\n", "the worktree is reused"
    assert [event for event, _, _ in task_notices(live_store, "user:tester")] == [
        "returned",
        "failed",
    ]


def test_tasks_start_only_where_enabled_and_possible(
    live_store: Corral, repository: Path, tmp_path: Path
) -> None:
    create_agent(live_store, tmp_path, "true")
    plain = tmp_path / "plain"
    plain.mkdir()
    project = declare_tasks(live_store, repository, {"key": "A"})
    live_store.settings.set("tasks.auto_start", False, scope=f"project:{project}")
    assert live_store.internal.tasks.start_ready() == []
    declare_tasks(live_store, plain, {"key": "B"}, {"key": "C", "role": "unknown role"})
    for _ in range(2):
        assert live_store.internal.tasks.start_ready() == []
    ((event, key, reason),) = task_notices(live_store, "user:tester")
    assert (event, key) == ("not started", "B")
    assert "not a git repository" in (reason or "")
    assert live_store.runs.list().items == [], "no run is queued"


def test_project_of_another_machine_uses_no_slot_and_no_agent(
    live_store: Corral, repository: Path, tmp_path: Path
) -> None:
    create_agent(live_store, tmp_path, "true")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    declare_tasks(live_store, elsewhere, {"key": "A"})
    elsewhere.rmdir()
    declare_tasks(live_store, repository, {"key": "B"})
    live_store.settings.set("runs.max_concurrent", 1)
    (run,) = live_store.internal.tasks.start_ready()
    assert live_store.tasks.get("B").run_id == run.id
    live_store.runs.wait(run.id, timeout_ms=60_000)


def test_task_starts_respect_the_slots_of_this_machine(
    live_store: Corral, repository: Path, tmp_path: Path
) -> None:
    create_agent(live_store, tmp_path, "true")
    declare_tasks(live_store, repository, {"key": "A"})
    owner = process.identify_self().as_owner("daemon")
    live_store.internal.nodes.join(process.host(), process.boot_id(), owner=owner, slots=0)
    assert live_store.internal.tasks.start_ready() == []


def test_task_starts_respect_limits_and_budgets(
    live_store: Corral, repository: Path, tmp_path: Path
) -> None:
    create_agent(live_store, tmp_path, "sleep 600")
    create_agent(live_store, tmp_path, "sleep 600", name="zoe")
    project = declare_tasks(live_store, repository, *({"key": f"k{n}"} for n in range(4)))
    live_store.settings.set("tasks.max_started", 1, scope=f"project:{project}")
    live_store.budgets.set(f"project:{project}", 0)
    assert live_store.internal.tasks.start_ready() == [], "the budget is spent"
    live_store.budgets.remove(f"project:{project}")
    (run,) = live_store.internal.tasks.start_ready()
    try:
        assert live_store.internal.tasks.start_ready() == [], "the limit is reached"
        live_store.settings.set("tasks.max_started", 9, scope=f"project:{project}")
        live_store.settings.set("runs.max_concurrent", 1)
        assert live_store.internal.tasks.start_ready() == []
    finally:
        live_store.runs.stop(run.id, grace_period_ms=100)
        live_store.runs.wait(run.id, timeout_ms=60_000)


CALL_HOOK = """#!{python}
import json, os, subprocess, sys

settings = next(arg.partition("=")[2] for arg in sys.argv if arg.startswith("--settings="))
hook = json.loads(settings)["hooks"]["PreToolUse"][0]["hooks"][0]["command"]
for name in ("held.py", "free.py"):
    path = os.path.join(os.getcwd(), name)
    call = json.dumps({{"tool_name": "Write", "tool_input": {{"file_path": path}}}})
    result = subprocess.run(hook, shell=True, input=call.encode(), capture_output=True)
    with open("answer-" + name, "w") as file:
        file.write(f"{{result.returncode}} {{result.stderr.decode()}}")
"""


def test_locks_apply_in_a_worktree_without_hooks(
    live_store: Corral, repository: Path, tmp_path: Path
) -> None:
    program = tmp_path / "claude"
    program.write_text(CALL_HOOK.format(python=sys.executable))
    program.chmod(0o755)
    live_store.agents.create("bob", provider="claude", command=str(program), role="builder")
    live_store.agents.create("ada")
    project = declare_tasks(live_store, repository, {"key": "A"})
    live_store.locks.acquire(project, "held.py", "ada", ttl_ms=3_600_000)
    (run,) = live_store.internal.tasks.start_ready()
    live_store.runs.wait(run.id, timeout_ms=60_000)
    worktree = Path(live_store.tasks.get("A").dir or "")
    assert worktree != repository
    locked_answer, free_answer = (
        (worktree / f"answer-{name}.py").read_text() for name in ("held", "free")
    )
    assert locked_answer.startswith("2 ")
    assert "agent:ada holds held.py" in locked_answer
    assert free_answer.startswith("0 ")
