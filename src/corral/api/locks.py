"""Operations of `store.locks`."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from corral.api import agent_rules as rules
from corral.api.operation import Resource, operation, read, write
from corral.api.policy import USES_FILES
from corral.domain.locks import ops, queries, resolve, touches
from corral.domain.locks.model import Lock
from corral.domain.projects import ops as projects
from corral.kernel.pagination import Page
from corral.services.locks import acquisition

if TYPE_CHECKING:
    from corral.services.locks.commit import CommitResult
    from corral.services.locks.conflict_forecast import MergeConflict
    from corral.services.locks.hook_install import HookChange


USE_REQUEST = "call locks.request and locks.wait instead"


class Locks(Resource):
    """Leases on paths of a project, with a queue of waiting owners.

    A lock is exclusive or shared and covers a file, a folder or a pattern. It expires unless it is
    renewed; the heartbeats of its run renew it. Its number is its fencing token.
    """

    noun = "lock"
    subjects = ("lock", "id")

    request = write(
        ops.request,
        repeatable=True,
        actor=("agent",),
        agent=rules.as_owner,
        objects={"run": "runs"},
    )
    renew = write(ops.renew, repeatable=True, actor=("agent",), agent=rules.as_owner)
    release = write(ops.release, repeatable=True, actor=("agent",), agent=rules.as_owner)
    revoke = write(ops.revoke, people_only=True)
    get = read(ops.get, mode="one", agent=rules.allow)
    holders = read(queries.list_holders, agent=rules.allow)
    touch = write(touches.record_touch, actor=("agent",), agent=rules.as_owner)
    touches = read(touches.list_touches, agent=rules.allow)

    @operation(
        local_arguments={"wait": USE_REQUEST, "timeout_ms": USE_REQUEST},
        actor=("agent",),
        agent=rules.as_owner,
        objects={"run": "runs"},
    )
    def acquire(
        self,
        project: str,
        path: str,
        agent: str,
        *,
        mode: Literal["exclusive", "shared"] = "exclusive",
        ttl_ms: int = ops.TTL_MS,
        wait: bool = False,
        timeout_ms: int | None = None,
        run: str | None = None,
        reason: str | None = None,
    ) -> Lock:
        """Lock a path, a folder or a pattern of a project.

        Idempotent: acquiring the same lock again renews it. With `run`, the heartbeats of the run
        renew the lock, and it is released when the run ends. Raises Held when another owner has a
        conflicting lock; with `wait`, waits in the queue first, up to `timeout_ms`.
        """
        return acquisition.acquire(
            self._database,
            project,
            path,
            agent,
            mode=mode,
            ttl_ms=ttl_ms,
            wait=wait,
            timeout_ms=timeout_ms,
            run=run,
            reason=reason,
        )

    @operation(waits="timeout_ms", agent=rules.only_own_lock)
    def wait(self, lock: str, *, timeout_ms: int | None = None) -> Lock:
        """Wait until a queued lock is granted and keep its queue position meanwhile.

        Raises NotYet after `timeout_ms`, and Held when the queue position was lost.
        """
        return acquisition.wait_for_lock(self._database, lock, timeout_ms=timeout_ms)

    @operation(reads=True, agent=rules.allow)
    def list(
        self,
        *,
        project: str | None = None,
        agent: str | None = None,
        all: bool = False,
        after: str | None = None,
        limit: int = 50,
    ) -> Page[Lock]:
        """List locks that are held or queued: by path, or those of one owner.

        With `all`, lists every lock, also ended ones, newest first.
        """
        return acquisition.list_locks(
            self._database, project=project, agent=agent, all=all, after=after, limit=limit
        )

    # -- git and agent CLIs ----------------------------------------------------------------------

    @operation(local=USES_FILES, people_only=True)
    def install(self, folder: str | Path, *, targets: Sequence[str] = ()) -> Sequence["HookChange"]:
        """Install hooks that reject changes to files which other owners have locked.

        `targets` are git and agent CLIs (default: git and claude). The folder is registered as a
        project if no project contains it. Idempotent.
        """
        from corral.services.locks import hook_install

        real = projects.resolve_dir(folder, must_exist=True)
        if self._database.read(lambda tx: projects.find_containing(tx, real), mode="one") is None:
            self._database.write(lambda tx: projects.register(tx, real), repeatable=True)
        return hook_install.install(real, targets)

    @operation(local=USES_FILES, people_only=True)
    def uninstall(
        self, folder: str | Path, *, targets: Sequence[str] = ()
    ) -> Sequence["HookChange"]:
        """Remove the hooks and leave everything else in their files unchanged. Idempotent."""
        from corral.services.locks import hook_install

        return hook_install.uninstall(projects.resolve_dir(folder, must_exist=True), targets)

    @operation(local=USES_FILES, actor=("agent",))
    def commit(
        self,
        folder: str | Path,
        message: str,
        *,
        agent: str,
        files: Sequence[str] = (),
        run: str | None = None,
        dry_run: bool = False,
    ) -> "CommitResult":
        """Commit exactly the changed files that an owner has locked, or `files`.

        The result lists the changed files that were left out. Raises Held, and commits nothing,
        when another owner has locked one of the files.
        """
        from corral.services.locks.commit import commit

        owner = self._database.read(lambda tx: resolve.resolve_owner(tx, agent))
        return commit(self._database, os.fspath(folder), message, files, owner, run, dry_run)

    @operation(local=USES_FILES)
    def forecast(self, folder: str | Path, *, notify: bool = False) -> Sequence["MergeConflict"]:
        """Find worktrees of a repository that would conflict if they were merged now.

        Returns the pairs with their files and changes nothing. With `notify`, both owners get a
        letter.
        """
        from corral.services.locks.conflict_forecast import forecast

        return forecast(self._database, os.fspath(folder), notify=notify)
