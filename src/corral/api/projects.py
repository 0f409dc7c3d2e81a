"""Operations of `store.projects`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from corral.api.operation import Resource, operation, read, write
from corral.api.policy import USES_FILES
from corral.db.types import ProgressCallback, no_progress
from corral.domain.projects import ops
from corral.domain.projects.model import Project

if TYPE_CHECKING:
    from corral.services.projects.agent_docs import AgentDocChange
    from corral.services.store.project_export import ExportedProject


class Projects(Resource):
    """Projects: the directories that agents work in."""

    noun = "project"
    subjects = ("id",)

    register = write(ops.register, repeatable=True, paths=("dir",))
    by_dir = read(ops.get_by_dir, mode="one", paths=("dir",))
    containing = read(ops.find_containing, mode="one")
    get = read(ops.get)
    list = read(ops.list_projects, mode="one")
    rename = write(ops.rename, repeatable=True)
    touch = write(ops.touch, repeatable=True)
    archive = write(ops.archive)

    @operation(local=USES_FILES)
    def configure(self, folder: str | Path) -> Project:
        """Register a folder as a project and apply its `.corral/config.toml`.

        Creates a template of the file if there is none. The file is applied completely or, when it
        is invalid, not at all. Idempotent.
        """
        from corral.services.projects import config as projects_config

        real = ops.resolve_dir(folder, must_exist=True)
        config = projects_config.read_config(real)
        project = self._database.write(lambda tx: projects_config.apply_config(tx, real, config))
        projects_config.write_template(real)
        return project

    @operation(local=USES_FILES)
    def install_agent_docs(
        self, folder: str | Path, *, remove: bool = False
    ) -> "Sequence[AgentDocChange]":
        """Write the instructions for agents into a folder: a section of AGENTS.md and a skill.

        With `remove`, remove them again. Other content of the files is not changed. Idempotent.
        """
        from corral.services.projects.agent_docs import write_agent_docs

        return write_agent_docs(str(folder), remove=remove)

    @operation(local=USES_FILES)
    def export(
        self, project: str, file: str | Path, *, on_progress: ProgressCallback | None = None
    ) -> "ExportedProject":
        """Write a snapshot of everything that belongs to a project into a new private file.

        The file is a store of its own, without other projects, secrets and chats. `on_progress` is
        called with the progress.
        """
        from corral.services.store.project_export import export_project

        return export_project(self._database, project, file, on_progress or no_progress)

    @operation(slow=True, people_only=True)
    def delete(self, id: str) -> Project:
        """Delete a project with its runs, settings, budgets, schedules, sessions and notes.

        Letters, events, charges and the directory are kept. Raises Conflict while a run is live.
        """
        from corral.services.runs.lifecycle import delete_runs_of_project
        from corral.services.store.deletion import delete_project

        delete_runs_of_project(self._database, id)
        return self._database.write(lambda tx: delete_project(tx, id))
