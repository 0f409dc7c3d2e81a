import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from corral.api.guard import Guard
from corral.api.operation import Room, read, write
from corral.api.projects import Projects
from corral.db.tx import Tx
from corral.domain.locks import heartbeat, ops, queries, resolve
from corral.domain.locks.model import Lock, LockState
from corral.domain.projects.ops import real_dir
from corral.kernel.errors import Held, Invalid, Refused
from corral.kernel.pagination import Page
from corral.services.store.upkeep import try_upkeep

if TYPE_CHECKING:
    from corral.services.locks.commit import Committed
    from corral.services.locks.conflict_forecast import Clash
    from corral.services.locks.hook_install import Installed

# A process that waits keeps its place in line for so long after its last word.
PLACE_MS = 30_000
PLACE_SECONDS = 10.0
LONGEST_SLEEP = 1.0


class Locks(Room):
    """Leases on paths of a project, and the line of those who wait for them."""

    noun = "lock"

    request = write(ops.request, repeatable=True)
    renew = write(ops.renew, repeatable=True)
    release = write(ops.release, repeatable=True)
    revoke = write(ops.revoke)
    expire_due = write(ops.expire_due, repeatable=True)
    get = read(ops.get, mode="one")
    holders = read(queries.holders)
    touch = write(queries.touch)
    touches = read(queries.touches)

    _has_any_of_run = read(heartbeat.has_any, mode="one")
    _release_of_run = write(ops.release_of_run, repeatable=True)
    _acquire = write(ops.acquire, repeatable=True)
    _are_due = read(ops.are_due, mode="one")
    _live = read(queries.list_live)
    _all = read(queries.list_all)
    _of = read(queries.list_of)

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
        """Lock a path, a folder or a pattern of a project; Held when another stands in the way.

        With `wait` it stands in line until the lock is granted, for `timeout_ms` at the most.
        Asking for the same again renews it; the heartbeats of `run` renew it too, and it ends
        with that run.
        """
        if not wait:
            return self._acquire_or_refuse(
                project, path, agent, mode=mode, ttl_ms=ttl_ms, run=run, reason=reason
            )
        lock = self.request(
            project,
            path,
            agent,
            mode=mode,
            ttl_ms=ttl_ms,
            run=run,
            reason=reason,
            wait_ms=PLACE_MS,
            tells=False,
        )
        if lock.state is LockState.HELD:
            return lock
        try:
            return self.wait(lock.id, timeout_ms=timeout_ms)
        except Refused as error:
            self._leave(lock)
            raise Held(error.message, **error.details) from None
        except BaseException:
            self._leave(lock)
            raise

    def _acquire_or_refuse(self, project: str, path: str, agent: str, **how: Any) -> Lock:
        try:
            return self._acquire(project, path, agent, **how)
        except Held:
            if self._are_due():  # what the refused transaction found is told all the same
                self.expire_due()
            raise

    def wait(self, lock: str, *, timeout_ms: int | None = None) -> Lock:
        """Wait until a lock in line is granted; Refused when it is not within the time, Held when
        the place was lost.

        The place in line is kept while somebody waits.
        """
        deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1_000
        said = time.monotonic()
        with self._database.listening() as listener:
            while (found := self.get(lock)).state is LockState.WAITING:
                left = LONGEST_SLEEP if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    raise self._database.read(lambda tx: _still_waiting(tx, found))
                if self._are_due():
                    self.expire_due()
                    continue
                if time.monotonic() - said > PLACE_SECONDS:
                    self._keep_place(found)
                    said = time.monotonic()
                listener.wait(min(left, LONGEST_SLEEP))
        if found.state is not LockState.HELD:
            raise self._database.read(lambda tx: resolve.lost(tx, found))
        return found

    def _keep_place(self, lock: Lock) -> None:
        self._database.write(lambda tx: ops.keep_place(tx, lock, wait_ms=PLACE_MS), repeatable=True)

    def _leave(self, lock: Lock) -> None:
        with suppress(Held):  # it ran out meanwhile: nothing is left to give back
            self.release(lock)

    def install(self, folder: str | Path, *, targets: Sequence[str] = ()) -> Sequence["Installed"]:
        """Set up the hooks that refuse changes of what others hold: of git and of agent CLIs (git
        and claude, unless said otherwise). The folder becomes a project if it is in none."""
        from corral.services.locks import hook_install

        real = real_dir(folder, must_exist=True)
        if Guard(self._database)._around(real) is None:
            Projects(self._database).register(real)
        return hook_install.install(real, targets)

    def uninstall(
        self, folder: str | Path, *, targets: Sequence[str] = ()
    ) -> Sequence["Installed"]:
        """Take the hooks out again, and leave all else in their files as it was."""
        from corral.services.locks import hook_install as locks_hook_install

        return locks_hook_install.uninstall(real_dir(folder, must_exist=True), targets)

    def commit(
        self,
        folder: str | Path,
        message: str,
        *,
        agent: str,
        files: Sequence[str] = (),
        run: str | None = None,
        dry_run: bool = False,
    ) -> "Committed":
        """Commit exactly what an owner has locked, or names, in a git worktree; Held when another
        holds some of it. The answer tells what else has changed and was left out."""
        from corral.services.locks.commit import commit

        owner = self._database.read(lambda tx: resolve.owner_of(tx, agent))
        return commit(self._database, os.fspath(folder), message, files, owner, run, dry_run)

    def forecast(self, folder: str | Path, *, tell: bool = False) -> Sequence["Clash"]:
        """Which worktrees of a repository would conflict if they were merged as they are now, and
        in which files; nothing is changed. With `tell`, both owners get a letter."""
        from corral.services.locks.conflict_forecast import forecast

        return forecast(self._database, os.fspath(folder), tell=tell)

    def forecast_live(self) -> Sequence["Clash"]:
        """The same for all repositories on this machine in which runs are at work in worktrees of
        their own; their owners are told, once for the same two."""
        from corral.services.locks.conflict_forecast import forecast_live

        return forecast_live(self._database)

    def end_of_run(self, run: str) -> Sequence[Lock]:
        """Give back everything that a run has locked, or waits for; done at its end."""
        return self._release_of_run(run) if self._has_any_of_run(run) else []

    def list(
        self,
        *,
        project: str | None = None,
        agent: str | None = None,
        all: bool = False,
        after: str | None = None,
        limit: int = 50,
    ) -> Page[Lock]:
        """Locks that are held or waited for: by path, or those of one owner; or all that are kept,
        newest first."""
        if agent is not None and (project is not None or all):
            raise Invalid("Give an agent, or a project, not both.")
        if self._are_due():
            try_upkeep(self._database, "lock.expire_due", self.expire_due)
        if agent is not None:
            return self._of(agent, after=after, limit=limit)
        pages = self._all if all else self._live
        return pages(project=project, after=after, limit=limit)


def _still_waiting(tx: Tx, lock: Lock) -> Refused:
    ahead = queries.ahead_of(tx, lock)
    held = resolve.held(tx.now, lock.path, ahead[0] if ahead else lock)
    return Refused(held.message, **held.details)
