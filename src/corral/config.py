"""The configuration of this process: home folder, private files, store URL and caller."""

import os
import sys
from pathlib import Path

TYPE_CHECKING = False  # `typing` takes longer to load than all of this
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.kernel.identity import CallerIdentity


def home() -> Path:
    """Return `$CORRAL_HOME`, or the platform's folder for user data. It may not exist yet."""
    value = os.environ.get("CORRAL_HOME")
    if value:
        return Path(value).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "corral"
    data = os.environ.get("XDG_DATA_HOME", "")
    # The XDG specification says to ignore a relative path.
    return (Path(data) if os.path.isabs(data) else Path.home() / ".local" / "share") / "corral"


def run_folder(id: str) -> Path:
    """Return the folder of a run's files on the machine that runs it. It may not exist yet."""
    return home() / "runs" / id


def races_folder() -> Path:
    """Return the folder of race worktrees: one folder for each race."""
    return home() / "races"


def worktrees_folder() -> Path:
    """Return the folder of task worktrees: PROJECT_ID/TASK_ID below it."""
    return home() / "worktrees"


def repository_folder(project_id: str) -> Path:
    """Return the private repository of a project whose directory is in none."""
    return home() / "repositories" / project_id


def sandbox_folder(session: str) -> Path:
    """Return the folder of the files of a sandboxed session."""
    return home() / "sandboxes" / session


def is_own_worktree(dir: str) -> bool:
    """Whether a directory is in a worktree that Corral created for a race or a task."""
    real = os.path.realpath(dir)
    return any(
        real.startswith(f"{os.path.realpath(folder)}/")
        for folder in (races_folder(), worktrees_folder())
    )


def make_private_folder(path: Path) -> None:
    """Create a folder and its missing parents, accessible only by their user."""
    if not path.is_dir():
        make_private_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


def write_private_file(path: Path, text: str) -> None:
    """Write a small file that only its user may read, whatever the umask is."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def fsync_path(path: str | Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def store_url(value: str | None = None) -> str:
    """Return the given URL, or `$CORRAL_STORE`, or the URL of the store in the home folder."""
    return value or os.environ.get("CORRAL_STORE") or f"sqlite:///{home() / 'corral.db'}"


def is_remote(url: str) -> bool:
    """Whether a store's URL is that of a daemon, which is called over HTTP."""
    return url.startswith(("http://", "https://"))


def identify_caller(environment: "Mapping[str, str]") -> "CallerIdentity":
    """Return the agent, session and run that the variables of a process name, else the user.

    An opened store knows better who the caller is: inside a run, `store.caller` is the run's agent,
    whatever the variables are.
    """
    from corral.kernel.identity import CallerIdentity

    agent, session, run = (
        environment.get(f"CORRAL_{name}") or None for name in ("AGENT", "SESSION", "RUN")
    )
    actor = f"agent:{agent}" if agent else f"user:{user()}"
    if agent or not (session or run):
        return CallerIdentity(agent, run, session, actor, actor, actor)
    mailbox = f"session:{session}" if session else actor
    owner = f"session:{session}" if session else f"run:{run}"
    return CallerIdentity(agent, run, session, actor, owner, mailbox)


def user() -> str:
    """Return the name of the user of this process."""
    return os.environ.get("USER") or os.environ.get("LOGNAME") or _account()


def _account() -> str:
    """Return the user's account name; a container may only have a numeric id."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def token() -> str:
    """Return the token for calls to a daemon: `$CORRAL_TOKEN`."""
    return os.environ.get("CORRAL_TOKEN", "")
