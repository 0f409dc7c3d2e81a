"""The sandbox of a run: its files and environment, its limits, and the import of its results."""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from corral.adapters import private_git, private_home, process, sandbox
from corral.adapters.leftovers import delete
from corral.adapters.private_home import (
    RealHome,
    environment_of,
    program_folders,
    toolchains,
    without_places,
)
from corral.adapters.process import Identity
from corral.domain.runs.model import Launch, Mode, Run
from corral.kernel.clock import DAY
from corral.kernel.errors import CorralError
from corral.supervisor.agent_io import Log

if TYPE_CHECKING:
    from corral.adapters.checkouts import Checkout
    from corral.adapters.providers.provider import Start
    from corral.api import Corral

HOME, GIT, SCRATCH, RECORDS = "home", "git", "scratch", "records"
TOKEN_MS = 30 * DAY  # longer than a run; the token is revoked when the run ends
LOOK_SECONDS = 0.5
DISK_SECONDS = 2.0
DISK_SHARE = 20  # measuring the disk takes at most one of so many seconds
NO_DAEMON = "http://127.0.0.1:9"  # the discard port: `corral` reports that it is not reachable


class Confinement:
    """The sandbox of one run, for all of its attempts."""

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
        self._kind = sandbox.Kind(str(launch.sandbox))
        self._folder = folder
        self._provider = provider
        self._setting = setting
        self.home = str(folder / HOME)
        """The private home folder. A hostile agent may write whatever it likes there."""
        self._git = str(folder / GIT)
        self._scratch = str(folder / SCRATCH)
        whole = os.environ | launch.env
        self._real_home = os.path.expanduser("~")
        self._real = RealHome(self._real_home, whole)
        self._token: str | None = None
        self._added: dict[str, str] = {}
        self._next_look = self._next_disk = 0.0
        self._disk_before: int | None = None
        self._places: list[str] = []
        self.lacks: list[str] = []

    def wrap(self, started: "Start", found: "Checkout", session: str | None) -> "Start":
        """Return the start of an attempt inside the sandbox."""
        mounted = self._kind is sandbox.Kind.BUBBLEWRAP
        private_home.prepare(self.home, self._provider, session, self._real)
        private = private_git.prepare(found, self._git, mounted=mounted)
        processes = int(self._setting("sandbox.processes"))
        reads = [*self._setting("sandbox.reads")]
        reads += toolchains(os.environ.get("PATH", os.defpath), self._real_home)
        reads += program_folders(list(started.args), self._real_home)
        wrapped = sandbox.wrap(
            started.args,
            sandbox.Bounds(
                worktree=found.folder,
                git=private,
                writable=(self.home,),
                readable=tuple(path for path in dict.fromkeys(reads) if os.path.exists(path)),
                terminal=self._run.mode is Mode.PTY,
                network=bool(self._setting("sandbox.network")),
                limits=sandbox.ResourceLimits(
                    processes=processes * sandbox.TASKS_PER_PROCESS,
                    file_bytes=int(self._setting("sandbox.disk_bytes")),
                ),
            ),
            scratch=self._scratch,
            kind=self._kind,
        )
        self.lacks = wrapped.lacks
        self._places = [found.folder, self.home, self._git, self._scratch]
        self._disk_before = None
        self._added = wrapped.environment
        return msgspec.structs.replace(started, args=wrapped.words)

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """What it has of the supervisor's environment and of the variables `given` to it, its
        private home, and how it reaches Corral: by the daemon, with a token that acts for its
        agent alone. It learns nothing of the store itself."""
        kept = environment_of(self._provider, os.environ) | without_places(given)
        kept |= {"HOME": self.home, "CORRAL_STORE": NO_DAEMON}
        return kept | self._added | self._reach()

    @property
    def records_folder(self) -> Path:
        """Where this supervisor copies the records of the CLI to; a fenced one may still run."""
        return self._folder / f"{RECORDS}.{os.getpid()}"

    def _reach(self) -> dict[str, str]:
        from corral.adapters import daemon_process

        run = self._run
        daemon = daemon_process.find(self._store.db.url)
        if daemon is None or run.agent_id is None or not self._setting("sandbox.network"):
            return {}
        if self._token is None:
            with suppress(CorralError):
                with suppress(CorralError):  # left by an earlier supervisor of this run
                    self._store.tokens.revoke(self._token_name)
                scope = f"agent:{self._store.agents.get(run.agent_id).name}"
                made = self._store.tokens.create(
                    self._token_name, scope=scope, ttl_ms=TOKEN_MS, project=run.project_id
                )
                self._token = made.value
        return {"CORRAL_STORE": daemon.url, "CORRAL_TOKEN": self._token} if self._token else {}

    # -- limits ----------------------------------------------------------------------------------

    @property
    def next_look(self) -> float:
        """When to check the limits again, by the monotonic clock."""
        return self._next_look

    def excess(self, agent: Identity) -> str | None:
        """Return a sentence about the limit that the run exceeds, or None."""
        now = time.monotonic()
        if now < self._next_look:
            return None
        self._next_look = now + LOOK_SECONDS
        used = process.usage(agent.pid)
        if used is not None:
            # Pages of a file that is mapped are in both figures, so they are not added up.
            memory = max(used.memory_bytes, process.memory_file_bytes(agent.pid))
            for what, amount in (("processes", used.processes), ("memory_bytes", memory)):
                most = int(self._setting(f"sandbox.{what}"))
                if amount > most:
                    return f"it exceeded sandbox.{what}: {amount} of {most}"
        return self._disk_excess(now)

    def _disk_excess(self, now: float) -> str | None:
        if now < self._next_disk or not self._places:
            return None
        most = int(self._setting("sandbox.disk_bytes"))
        before = self._disk_before or 0
        used = _disk_usage(self._places, before + most)
        took = time.monotonic() - now
        self._next_disk = time.monotonic() + max(DISK_SECONDS, took * DISK_SHARE)
        if self._disk_before is None:
            self._disk_before = min(used, most)
        elif used - before > most:
            return f"it exceeded sandbox.disk_bytes: more than {most}"
        return None

    # -- after the run ---------------------------------------------------------------------------

    def collect(self, found: "Checkout", session: str | None, log: Log) -> None:
        """Import the attempt's commits onto its own branch, and the transcripts of its session.

        Call it when all processes of the attempt are dead. Idempotent. Failures are logged; the
        files stay in the worktree.
        """
        try:
            private_git.import_commits(found, self._git)
        except (CorralError, OSError) as error:
            log("warn", f"Cannot import the commits of the attempt: {error}", None)
        # A `.git` that the attempt left would have the user's git run programs of the attempt.
        try:
            private_git.restore_link(found)
        except OSError as error:
            log("warn", f"Do not call git in {found.folder}: its .git is not reset: {error}", None)
        try:
            private_home.write_back(self.home, self._provider, session, self._real)
        except OSError as error:
            log("warn", f"Cannot copy the transcript of the attempt: {error}", None)

    def close(self, found: "Checkout") -> None:
        """Delete the private folders, with the copies of logins, and revoke the token."""
        with suppress(OSError, CorralError):
            private_git.discard(found, self._git)
        copies = [str(path) for path in self._folder.glob(f"{RECORDS}.*")]
        for folder in (self.home, self._scratch, *copies):
            with suppress(OSError):
                delete(folder)
        with suppress(CorralError):  # no daemon, no token
            self._store.tokens.revoke(self._token_name)
        self._token = None

    @property
    def _token_name(self) -> str:
        return f"run-{self._run.id.removeprefix('run_')}"


def _disk_usage(places: list[str], most: int) -> int:
    """Return the bytes on disk below some folders; stops counting above `most`."""
    used = 0
    waiting = [place for place in places if os.path.isdir(place)]
    while waiting and used <= most:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    used += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
    return used
