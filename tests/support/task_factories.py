"""Task graphs for tests: a project, agents, and the states of the tasks."""

from pathlib import Path
from typing import Any

from corral.api import Corral
from corral.domain.tasks.model import Task
from tests.support.store import rows


def board(store: Corral, project: str) -> dict[str, str]:
    """Return the state of every task, by key."""
    result = rows(
        store,
        "SELECT key, state FROM tasks WHERE project_id = :project ORDER BY id",
        project=project,
    )
    return dict(result)


def project_with(
    store: Corral, folder: Path, *tasks: Any, agents: tuple[str, ...] = ("ada",)
) -> str:
    """Create a project with these tasks (objects, or `B:A,C` for B that depends on A and C)."""
    for name in agents:
        store.agents.create(name)
    project = store.projects.register(folder).id
    if tasks:
        store.tasks.declare(project, [task(item) for item in tasks])
    return project


def task(value: Any) -> dict[str, Any]:
    if not isinstance(value, str):
        return dict(value)
    key, _, needs = value.partition(":")
    return {"key": key, "depends_on": [need for need in needs.split(",") if need]}


def finish(store: Corral, project: str, key: str, agent: str = "ada") -> Task:
    """Claim a task, submit it and accept it as a person."""
    claimed = store.tasks.claim(project, agent, key=key)
    assert claimed is not None
    store.tasks.submit(claimed, "it works")
    return store.tasks.accept(claimed)


def fail(store: Corral, project: str, key: str, reason: str = "no way", agent: str = "ada") -> Task:
    claimed = store.tasks.claim(project, agent, key=key)
    assert claimed is not None
    return store.tasks.fail(claimed, reason)


def task_notices(store: Corral, mailbox: str) -> list[tuple[str, str, str | None]]:
    """Return the task notices of a mailbox: (what, key, reason)."""
    return [
        (letter.body["event"], letter.body["key"], letter.body["reason"])
        for letter in store.mail.list(mailbox=mailbox, limit=500).items
        if letter.body["kind"] == "task"
    ]


def check_counts(store: Corral) -> None:
    """Every counter and cause stored on a task matches its dependencies."""
    values = {
        id: (state, open_, broken, cause)
        for id, state, open_, broken, cause in rows(
            store,
            "SELECT id, state, open_dependencies, failed_dependencies, blocked_by_id FROM tasks",
        )
    }
    needs: dict[str, list[str]] = {id: [] for id in values}
    for id, need in rows(store, "SELECT task_id, depends_on_id FROM task_dependencies"):
        needs[id].append(need)

    def is_broken(id: str) -> bool:
        state, _, broken, _ = values[id]
        return state in ("failed", "cancelled") or (
            state in ("pending", "ready", "blocked", "paused") and broken > 0
        )

    for id, (state, open_, broken, cause) in values.items():
        assert open_ == sum(values[need][0] not in ("done", "skipped") for need in needs[id]), id
        assert broken == sum(map(is_broken, needs[id])), id
        if state == "ready":
            assert (open_, broken) == (0, 0), id
        if state == "pending":
            assert open_ > 0, id
            assert broken == 0, id
        if state == "blocked":
            assert broken > 0, id
            assert values[cause][0] in ("failed", "cancelled"), id
            assert cause in _above(id, needs), id


def _above(id: str, needs: dict[str, list[str]]) -> set[str]:
    seen: set[str] = set()
    pending = [id]
    while pending:
        for need in needs[pending.pop()]:
            if need not in seen:
                seen.add(need)
                pending.append(need)
    return seen
