"""The configuration of this process: home folder, private files, store URL, actor and mailbox."""

import os
import sys
from pathlib import Path

TYPE_CHECKING = False  # `typing` takes longer to load than all of this
if TYPE_CHECKING:
    from corral.kernel.identity import RunIdentity


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


_run_identity: "RunIdentity | None" = None


def set_run_identity(identity: "RunIdentity | None") -> None:
    """Set the run that this process belongs to, as determined by the store that it opened.

    From then on the `CORRAL_*` variables of the process are ignored.
    """
    global _run_identity
    _run_identity = identity


def agent_name() -> str | None:
    """Return the agent that this process acts as: that of its run, or `$CORRAL_AGENT`."""
    return _run_identity.agent if _run_identity else os.environ.get("CORRAL_AGENT") or None


def session_id() -> str | None:
    """Return the session of this process's run, if any."""
    return _run_identity.session if _run_identity else os.environ.get("CORRAL_SESSION") or None


def run_id() -> str | None:
    """Return the run that this process belongs to, if any."""
    return _run_identity.run if _run_identity else os.environ.get("CORRAL_RUN") or None


def owner() -> str:
    """Return the owner of locks that this process takes: the agent, session or run that Corral
    started, or the user."""
    if _run_identity:
        return _run_identity.owner
    for name, kind in (("AGENT", "agent"), ("SESSION", "session"), ("RUN", "run")):
        if value := os.environ.get(f"CORRAL_{name}"):
            return f"{kind}:{value}"
    return actor()


def actor() -> str:
    """Return the actor for events: the agent that Corral started, or the user."""
    if _run_identity:
        return _run_identity.actor
    agent = os.environ.get("CORRAL_AGENT")
    if agent:
        return f"agent:{agent}"
    return f"user:{user()}"


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


def mailbox() -> str:
    """Return the mailbox of this process: of the agent or session that Corral started, or of the
    user."""
    if _run_identity:
        return _run_identity.mailbox
    session = session_id()
    return f"session:{session}" if session and not agent_name() else actor()


def token() -> str:
    """Return the token for calls to a daemon: `$CORRAL_TOKEN`."""
    return os.environ.get("CORRAL_TOKEN", "")
