"""Where things are and who speaks: the home folder, private files, the store, the actor."""

import os
import sys
from pathlib import Path

TYPE_CHECKING = False  # `typing` takes longer to load than all of this
if TYPE_CHECKING:
    from corral.kernel.identity import RunIdentity


def home() -> Path:
    """`$CORRAL_HOME`, else the platform's folder for a user's data. It may not exist yet."""
    given = os.environ.get("CORRAL_HOME")
    if given:
        return Path(given).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "corral"
    data = os.environ.get("XDG_DATA_HOME", "")
    # The XDG specification says to ignore a relative path.
    return (Path(data) if os.path.isabs(data) else Path.home() / ".local" / "share") / "corral"


def run_folder(id: str) -> Path:
    """Where the files of a run are on the machine that runs it. It may not exist yet."""
    return home() / "runs" / id


def make_private_folder(path: Path) -> None:
    """Make a folder and whatever is missing above it, each for its user alone."""
    if not path.is_dir():
        make_private_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


def write_private_file(path: Path, text: str) -> None:
    """Write a small file that its user alone may read, whatever the umask says."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def sync(path: str | Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def store_url(given: str | None = None) -> str:
    """The store that was named, else `$CORRAL_STORE`, else the one in the home folder."""
    return given or os.environ.get("CORRAL_STORE") or f"sqlite:///{home() / 'corral.db'}"


def is_afar(url: str) -> bool:
    """Whether a store's URL is that of a daemon, which is asked over HTTP."""
    return url.startswith(("http://", "https://"))


_adopted: "RunIdentity | None" = None


def adopt(identity: "RunIdentity | None") -> None:
    """Set the run that this process belongs to, as found by the store that it opened. From then on
    the process's own `CORRAL_*` variables are ignored."""
    global _adopted
    _adopted = identity


def agent_name() -> str | None:
    """Return the agent that this process acts as: that of its run, else that of CORRAL_AGENT."""
    return _adopted.agent if _adopted else os.environ.get("CORRAL_AGENT") or None


def session_id() -> str | None:
    """Return the session of this process's run, if any."""
    return _adopted.session if _adopted else os.environ.get("CORRAL_SESSION") or None


def run_id() -> str | None:
    """Return the run that this process belongs to, if any."""
    return _adopted.run if _adopted else os.environ.get("CORRAL_RUN") or None


def owner() -> str:
    """Who holds what this process locks: the agent, conversation or run that Corral started, else
    the user."""
    if _adopted:
        return _adopted.owner
    for name, kind in (("AGENT", "agent"), ("SESSION", "session"), ("RUN", "run")):
        if given := os.environ.get(f"CORRAL_{name}"):
            return f"{kind}:{given}"
    return actor()


def actor() -> str:
    """Who acts, for the record of changes: the agent that Corral started, else the user."""
    if _adopted:
        return _adopted.actor
    agent = os.environ.get("CORRAL_AGENT")
    if agent:
        return f"agent:{agent}"
    return f"user:{user()}"


def user() -> str:
    """The person whose processes these are, by one name wherever they speak."""
    return os.environ.get("USER") or os.environ.get("LOGNAME") or _account()


def _account() -> str:
    """What this machine calls whoever runs this; a container may know a number alone."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def mailbox() -> str:
    """Where letters for this process go: to the agent or the conversation that Corral started,
    else to the user."""
    if _adopted:
        return _adopted.mailbox
    session = session_id()
    return f"session:{session}" if session and not agent_name() else actor()


def token() -> str:
    """The secret that a daemon is called with: `$CORRAL_TOKEN`."""
    return os.environ.get("CORRAL_TOKEN", "")
