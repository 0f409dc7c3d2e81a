"""Operations of `store.guard`."""

from collections.abc import Sequence

from corral.api import agent_rules as rules
from corral.api.operation import Resource, operation, read
from corral.api.policy import USES_FILES
from corral.domain.locks import queries
from corral.domain.locks.model import Lock, LockConflict
from corral.services.locks import edit_lease, project_paths
from corral.services.locks.project_paths import ProjectPath


class Guard(Resource):
    """The checks that hooks make before a file is changed.

    Separate from `Locks`, because hooks run at every tool call and import only what these checks
    need.
    """

    noun = "lock"

    check = read(queries.find_conflicts, agent=rules.as_owner, objects={"run": "runs"})

    @operation(local=USES_FILES)
    def locate(self, path: str) -> ProjectPath:
        """Return the project that contains a file, and the file's path in it; raises NotFound.

        In a linked git worktree these are the project and the path of the main worktree, so that a
        lock binds in all worktrees.
        """
        return project_paths.find_project_path(self._database, path)

    @operation(local=USES_FILES)
    def locate_all(self, path: str) -> list[ProjectPath]:
        """Return every project in which a path could be locked, nearest first.

        Projects may be nested, and a linked git worktree may be a project besides its repository.
        For a folder the result includes the projects inside it.
        """
        return project_paths.find_project_paths(self._database, path)

    @operation(local=USES_FILES)
    def check_commit(
        self, top: str, names: Sequence[str], agent: str, *, run: str | None = None
    ) -> list[LockConflict]:
        """Return the files of a commit that other owners have locked, in any project.

        `names` are paths as git prints them, relative to the top of the worktree.
        """
        return project_paths.find_commit_conflicts(self._database, top, names, agent, run=run)

    @operation(local=USES_FILES)
    def acquire_for_edit(
        self, project: str, path: str, agent: str, *, run: str | None = None
    ) -> Lock | None:
        """Lock a file that is about to be edited, if the setting `locks.edit_lease_ms` is on.

        Returns None when the setting is off. Raises Held when another owner has the lock.
        """
        return edit_lease.acquire_for_edit(self._database, project, path, agent, run=run)
