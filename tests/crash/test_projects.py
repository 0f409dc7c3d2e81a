"""Crashes during the deletion of a project: all of its data is deleted, or none."""

from pathlib import Path

from corral.api import Corral
from corral.kernel.clock import HOUR
from tests.crash.harness import FreshUrl, Scenario, World, crash_at_every_commit
from tests.support.store import rows
from tests.support.task_factories import project_with

TABLES = ("tasks", "plans", "progress", "delegations", "notes", "sessions")


def count_rows(store: Corral) -> list[int]:
    """Return the rows of every concept that belong to a project, and its settings."""
    of_projects = "SELECT count(*) FROM {} WHERE project_id IS NOT NULL"
    settings = "SELECT count(*) FROM settings WHERE scope LIKE 'project:%'"
    counts = [rows(store, of_projects.format(table))[0][0] for table in TABLES]
    return [*counts, rows(store, settings)[0][0]]


def test_project_deletion_is_atomic_across_concepts(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def prepare(store: Corral, world: World) -> None:
        world.folder.mkdir()
        project = project_with(store, world.folder, "A", agents=("ada",))
        store.plans.set(["look"], agent="ada", project_id=project)
        store.progress.report("half", agent="ada", project=project)
        store.delegations.delegate("ada", "look", project_id=project, sender="user:ann")
        store.notes.add("It is blue.", project=project)
        store.sessions.open("ada", project=project)
        store.settings.set("schedules.max_timers", 3, scope=f"project:{project}")
        store.schedules.create("agent:ada", 1, every_ms=HOUR, project=project)
        assert min(count_rows(store)) == 1

    def delete(store: Corral, world: World) -> None:
        for project in store.projects.list().items:
            store.projects.delete(project.id)

    def check_and_delete(store: Corral, world: World) -> None:
        expected = len(store.projects.list().items)
        assert {*count_rows(store)} == {expected}
        delete(store, world)

    def check(store: Corral, world: World) -> None:
        assert {*count_rows(store)} == {0}
        assert {schedule.state for schedule in store.schedules.list(all=True).items} == {
            "cancelled"
        }
        (letter,) = store.mail.list(mailbox="user:ann").items
        assert (letter.body["state"], letter.body["reason"]) == (
            "cancelled",
            "the project was deleted",
        )
        assert store.mail.list(mailbox="agent:ada").items == [], "the letter was unread"

    crash_at_every_commit(
        fresh_url,
        tmp_path,
        Scenario(prepare=prepare, run=delete, recover=check_and_delete, check=check),
    )
