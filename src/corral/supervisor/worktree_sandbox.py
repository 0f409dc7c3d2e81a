"""The worktree sandbox of a run: files, environment, limits, and the import of its results."""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from corral import config
from corral.adapters.git import private_git
from corral.adapters.processes import process
from corral.adapters.processes.process import ProcessIdentity
from corral.adapters.sandbox import private_home, sandbox
from corral.adapters.sandbox.private_home import (
    RealHome,
    build_environment,
    drop_path_variables,
    list_program_paths,
    list_toolchains,
)
from corral.adapters.worktrees.worktree_leftovers import delete_tree, measure_disk_usage
from corral.domain.runs.model import Launch, Run, RunMode
from corral.kernel.clock import DAY
from corral.kernel.errors import CorralError, StoreUnavailable
from corral.supervisor.agent_io import Log

if TYPE_CHECKING:
    from corral.adapters.providers.provider import LaunchCommand
    from corral.adapters.worktrees.worktree_registry import Checkout
    from corral.api import Corral

HOME, GIT, SCRATCH, TRANSCRIPTS = "home", "git", "scratch", "transcripts"
TOKEN_MS = 30 * DAY  # longer than a run; the token is revoked when the run ends
LIMIT_CHECK_SECONDS = 0.5
DISK_CHECK_SECONDS = 2.0
DISK_SHARE = 20  # measuring the disk takes at most 1/20 of the time
NO_DAEMON = "http://127.0.0.1:9"  # the discard port: `corral` reports that it is not reachable


class WorktreeSandbox:
    """The worktree sandbox of one run, for all of its attempts."""

    def __init__(
        self,
        store: "Corral",
        run: Run,
        launch: Launch,
        folder: Path,
        provider: str,
        setting: Callable[[str], Any],
    ) -> None:
        self._store = store
        self._run = run
        self._kind = sandbox.SandboxKind(str(launch.sandbox))
        self._folder = folder
        self._provider = provider
        self._setting = setting
        self.home = str(folder / HOME)
        """The private home folder. Its contents are not trusted."""
        self._git = str(folder / GIT)
        self._scratch = str(folder / SCRATCH)
        self._real_home = os.path.expanduser("~")
        self._real = RealHome(self._real_home, os.environ | launch.env)
        self._token: str | None = None
        self._added: dict[str, str] = {}
        self._next_check = self._next_disk_check = 0.0
        self._disk_before: int | None = None
        self._measured_folders: list[str] = []
        self.missing_protections: list[str] = []
        """Protections that this system does not offer."""

    @cached_property
    def checkout(self) -> "Checkout":
        """The worktree of the run, as the store and the project's repository know it.

        Files inside the worktree are not trusted: an agent may have written them to escape. Raises
        Refused if there is no such worktree, and if it is the project's own folder, whose identity
        only its own files could prove.
        """
        from corral.adapters.git import git, snapshot_repositories
        from corral.adapters.worktrees.worktree_registry import get_checkout
        from corral.kernel.errors import Refused

        run = self._run
        assert run.project_id is not None
        repository = project = self._store.projects.get(run.project_id).dir
        subfolder = ""
        if snapshot_repositories.is_in_git(repository):
            prefix = git.check_output(repository, "rev-parse", "--show-prefix")
            subfolder = os.fsdecode(prefix).rstrip("/\n")
        elif (private := config.repository_folder(run.project_id)).is_dir():
            repository = str(private)
        top = run.cwd.removesuffix(f"/{subfolder}") if subfolder else run.cwd
        if f"{os.path.realpath(project)}/".startswith(f"{os.path.realpath(top)}/"):
            raise Refused(
                f"Cannot sandbox a run in {top}: it is the project's own directory. Create a "
                "worktree with `git worktree add` and run there.",
                dir=top,
            )
        return get_checkout(repository, top)

    def wrap(self, command: "LaunchCommand", session: str | None, log: Log) -> "LaunchCommand":
        """Prepare the sandbox for an attempt and return the attempt's command inside of it.

        Creates the private folders and the token of the attempt. Commits that an interrupted
        attempt left are imported; if that fails, it is logged and they are discarded.
        """
        checkout = self.checkout
        mounted = self._kind is sandbox.SandboxKind.BUBBLEWRAP
        private_home.prepare(self.home, self._provider, session, self._real)
        self._import_commits(checkout, log)
        private = private_git.prepare(checkout, self._git, mounted=mounted)
        processes = int(self._setting("sandbox.processes"))
        reads = [*self._setting("sandbox.read_paths")]
        reads += list_toolchains(os.environ.get("PATH", os.defpath), self._real_home)
        reads += list_program_paths(list(command.args), self._real_home)
        wrapped = sandbox.wrap_command(
            command.args,
            sandbox.SandboxBounds(
                worktree=checkout.folder,
                git=private,
                writable=(self.home,),
                readable=tuple(path for path in dict.fromkeys(reads) if os.path.exists(path)),
                terminal=self._run.mode is RunMode.PTY,
                network=bool(self._setting("sandbox.network")),
                limits=sandbox.ResourceLimits(
                    processes=processes * sandbox.TASKS_PER_PROCESS,
                    file_bytes=int(self._setting("sandbox.disk_bytes")),
                ),
            ),
            scratch=self._scratch,
            kind=self._kind,
        )
        self.missing_protections = wrapped.missing_protections
        self._measured_folders = [checkout.folder, self.home, self._git, self._scratch]
        self._disk_before = None
        self._added = wrapped.environment | self._grant_daemon_access()
        return msgspec.structs.replace(command, args=wrapped.words)

    def build_environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the agent.

        It has an allowed part of the supervisor's environment, the variables `given` to the run and
        a private home. It reaches Corral through the daemon, with a token that acts for its agent
        only; the address of the store itself is not passed on. A supervisor that adopted an agent
        has not prepared the sandbox: its result lacks the address of the daemon and the token.
        """
        environment = build_environment(self._provider, os.environ) | drop_path_variables(given)
        environment |= {"HOME": self.home, "CORRAL_STORE": NO_DAEMON}
        return environment | self._added

    @property
    def transcripts_folder(self) -> Path:
        """The folder into which this supervisor copies the CLI's transcripts.

        The pid is in the name because a replaced supervisor may still run.
        """
        return self._folder / f"{TRANSCRIPTS}.{os.getpid()}"

    def _grant_daemon_access(self) -> dict[str, str]:
        """Create a token for the run's agent; return the variables for the daemon's API.

        Revokes the token of an earlier supervisor of this run. Call it for a new attempt only: an
        agent that was adopted uses that token.
        """
        from corral.adapters import daemon_process

        run = self._run
        daemon = daemon_process.find_daemon(self._store.db.url)
        if daemon is None or run.agent_id is None or not self._setting("sandbox.network"):
            return {}
        if self._token is None:
            with suppress(CorralError):
                with suppress(CorralError):
                    self._store.tokens.revoke(self._token_name)
                scope = f"agent:{self._store.agents.get(run.agent_id).name}"
                token = self._store.tokens.create(
                    self._token_name, scope=scope, ttl_ms=TOKEN_MS, project=run.project_id
                )
                self._token = token.value
        return {"CORRAL_STORE": daemon.url, "CORRAL_TOKEN": self._token} if self._token else {}

    # -- limits ----------------------------------------------------------------------------------

    @property
    def next_poll(self) -> float:
        """When to check the limits again, by the monotonic clock."""
        return self._next_check

    def find_exceeded_limit(self, agent: ProcessIdentity) -> str | None:
        """Return a description of the limit that the run exceeds, or None."""
        now = time.monotonic()
        if now < self._next_check:
            return None
        self._next_check = now + LIMIT_CHECK_SECONDS
        usage = process.measure_usage(agent.pid)
        if usage is not None:
            # Mapped pages of a memfd are in both figures, so the figures are not added up.
            memory = max(usage.memory_bytes, process.measure_memfd_bytes(agent.pid))
            for name, amount in (("processes", usage.processes), ("memory_bytes", memory)):
                limit = int(self._setting(f"sandbox.{name}"))
                if amount > limit:
                    return f"it exceeded sandbox.{name}: {amount} of {limit}"
        return self._find_exceeded_disk_limit(now)

    def _find_exceeded_disk_limit(self, now: float) -> str | None:
        if now < self._next_disk_check or not self._measured_folders:
            return None
        limit = int(self._setting("sandbox.disk_bytes"))
        before = self._disk_before or 0
        used = measure_disk_usage(*self._measured_folders, limit=before + limit)
        duration = time.monotonic() - now
        self._next_disk_check = time.monotonic() + max(DISK_CHECK_SECONDS, duration * DISK_SHARE)
        if self._disk_before is None:
            self._disk_before = min(used, limit)
        elif used - before > limit:
            return f"it exceeded sandbox.disk_bytes: more than {limit}"
        return None

    # -- after the run ---------------------------------------------------------------------------

    def collect(self, session: str | None, log: Log) -> None:
        """Import the attempt's commits onto its own branch, and the transcripts of its session.

        Call it when all processes of the attempt are dead. Idempotent. Failures are logged; the
        files stay in the worktree. Raises StoreUnavailable: the next recovery collects the results.
        """
        try:
            checkout = self.checkout
        except StoreUnavailable:
            raise
        except (CorralError, OSError) as error:  # the worktree was removed
            log("warn", f"Cannot import the commits of the attempt: {error}", None)
        else:
            self._collect_commits(checkout, log)
        try:
            private_home.write_back_transcripts(self.home, self._provider, session, self._real)
        except OSError as error:
            log("warn", f"Cannot copy the transcript of the attempt: {error}", None)

    def _import_commits(self, checkout: "Checkout", log: Log) -> None:
        try:
            private_git.import_commits(checkout, self._git)
        except (CorralError, OSError) as error:
            log("warn", f"Cannot import the commits of the attempt: {error}", None)

    def _collect_commits(self, checkout: "Checkout", log: Log) -> None:
        self._import_commits(checkout, log)
        # A `.git` that the attempt wrote could make the user's git run programs of the attempt.
        try:
            private_git.restore_link(checkout)
        except OSError as error:
            log("warn", f"Do not run git in {checkout.folder}: cannot reset .git: {error}", None)

    def close(self) -> None:
        """Delete the private folders, with the copies of logins, and revoke the token.

        If the worktree is gone, the private repository stays in the run folder.
        """
        with suppress(OSError, CorralError):
            private_git.discard(self.checkout, self._git)
        copies = [str(path) for path in self._folder.glob(f"{TRANSCRIPTS}.*")]
        for folder in (self.home, self._scratch, *copies):
            with suppress(OSError):
                delete_tree(folder)
        with suppress(CorralError):  # there is no token without a daemon
            self._store.tokens.revoke(self._token_name)
        self._token = None

    @property
    def _token_name(self) -> str:
        return f"run-{self._run.id.removeprefix('run_')}"
