from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from corral.api.operation import Room, read, write
from corral.db.database import Told, silent
from corral.db.tx import Tx
from corral.domain.projects import ops
from corral.domain.projects.model import Project

if TYPE_CHECKING:
    from corral.services.projects.agent_docs import Equipped
    from corral.services.store.project_export import Exported


def delete(tx: Tx, id: str) -> Project:
    """Forget a project that has no runs any more, its settings, budgets, schedules, sessions,
    notes, tasks, races, delegations, plans and locks; what is still asked or proposed in it is
    withdrawn, and its groups are archived."""
    from corral.api import notes
    from corral.api.sessions import forget_project
    from corral.domain.charges import ops as charges
    from corral.domain.decisions import ops as decisions
    from corral.domain.delegations import ops as delegations
    from corral.domain.groups import ops as groups
    from corral.domain.locks import ops as locks
    from corral.domain.plans import ops as plans
    from corral.domain.questions import ops as questions
    from corral.domain.races import retention as forgetting_races
    from corral.domain.schedules import ops as schedules  # brings calendars along
    from corral.domain.tasks import retention

    project = ops.get(tx, id)
    schedules.cancel_all(tx, project.id)
    charges.forget_scope(tx, f"project:{project.id}")
    forget_project(tx, project.id)
    retention.forget_project(tx, project.id)
    forgetting_races.forget_project(tx, project.id)
    delegations.forget_project(tx, project.id)
    plans.forget_project(tx, project.id)
    locks.forget_project(tx, project.id)
    questions.withdraw_all(tx, project.id)
    notes.forget_project(tx, project.id)
    decisions.dismiss_all(tx, project.id)
    groups.archive_all(tx, project.id)
    return ops.delete(tx, project.id)


class Projects(Room):
    """Directories that agents work in."""

    noun = "project"

    register = write(ops.register, repeatable=True)
    by_dir = read(ops.by_dir, mode="one")
    around = read(ops.around, mode="one")
    get = read(ops.get)
    list = read(ops.list_projects, mode="one")
    rename = write(ops.rename, repeatable=True)
    touch = write(ops.touch, repeatable=True)
    archive = write(ops.archive)
    _delete = write(delete)

    def configure(self, folder: str | Path) -> Project:
        """Make a folder a project, as its `.corral/config.toml` tells; one that says nothing is
        written where there is none. All of it counts, or nothing."""
        from corral.services.projects import config as projects_config

        real = ops.real_dir(folder, must_exist=True)
        config = projects_config.read(real)
        project = self._database.write(lambda tx: projects_config.configure(tx, real, config))
        projects_config.write(real)
        return project

    def equip(self, folder: str | Path, *, remove: bool = False) -> "Sequence[Equipped]":
        """Write what agents read of Corral into a folder (a section of AGENTS.md, a skill), or take
        it out again."""
        from corral.services.projects.agent_docs import equip

        return equip(str(folder), remove=remove)

    def export(self, project: str, file: str | Path, *, told: Told | None = None) -> "Exported":
        """Write all that belongs to a project, as it is at one moment, into a new private file: a
        store of its own, without other projects, secrets and chats. `told` hears how far it is."""
        from corral.services.store.project_export import export

        return export(self._database, project, file, told or silent)

    def delete(self, id: str) -> Project:
        """Forget a project with its runs, their output and files, its settings, budgets,
        schedules, sessions and notes. Letters, events, charges and the directory stay."""
        from corral.api.runs import Runs

        Runs(self._database).delete_all(project=id)
        return self._delete(id)
