"""`corral task clean` lists worktrees and removes them with `--yes`."""

from pathlib import Path

import corral
from corral import config
from corral.adapters.worktrees import worktrees
from tests.support.cli_runner import Cli
from tests.support.git_repositories import new_repository


def test_clean_lists_first_and_then_removes(cli: Cli, url: str, tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "repository")
    with corral.open(url) as store:
        project = store.projects.register(repository).id
        (task,) = store.tasks.declare(project, [{"key": "A"}])
        store.tasks.cancel(task.id)
    folder = config.worktrees_folder() / project / task.id
    worktrees.create(str(repository), str(folder), worktrees.make_branch_name("A", task.id))
    output = cli("task", "clean", "--project", project).out
    assert "Dry run" in output
    assert folder.exists()
    (removal,) = cli.json("task", "clean", "--project", project, "--yes")
    assert (removal["key"], removal["action"]) == ("A", "removed")
    assert not folder.exists()
    assert "No worktrees to remove" in cli("task", "clean", "--project", project).out
