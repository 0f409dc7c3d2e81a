"""Find, start and stop the daemon of a store.

A private file in the home folder describes the process and its address. The daemon holds a lock on
the file for as long as it lives, so a stale file is recognized.
"""

import fcntl
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from corral import config
from corral.adapters.processes import process
from corral.adapters.processes.process import Liveness, ProcessIdentity
from corral.adapters.supervisor_process import RUN_VARIABLES
from corral.kernel.errors import Refused

DEFAULT_PORT = 7717
ANSWER_SECONDS = 10.0
PROBE_SECONDS = 2.0
PROBE_BYTES = 4_096


class Daemon(msgspec.Struct, frozen=True):
    """The daemon that serves a store from this home, as written to its file."""

    pid: int
    start_token: str
    host: str
    boot_id: str
    store: str
    url: str
    port: int
    token_file: str
    started_at: int
    pid_space: str | None = None

    @property
    def identity(self) -> ProcessIdentity:
        # A network may rename a machine while it is up; its boot id does not change.
        is_same_boot = self.boot_id == process.boot_id() != process.UNKNOWN_BOOT
        is_local = is_same_boot and self.pid_space == process.pid_namespace()
        host = process.host() if is_local else self.host
        return ProcessIdentity(host, self.boot_id, self.pid, self.start_token)

    @property
    def token(self) -> str | None:
        """The API token of the daemon; None if its file is gone."""
        try:
            return Path(self.token_file).read_text().strip()
        except OSError:
            return None

    @property
    def link(self) -> str:
        """The address to open in a browser, with the token for the first request."""
        token = self.token
        return f"{self.url}/?token={token}" if token else f"{self.url}/"


def info_path(store: str, suffix: str = ".json") -> Path:
    """Return the path of a file that belongs to the daemon of a store.

    `store` is the URL without a password. The home's own store has the short name.
    """
    home = config.home()
    if store == f"sqlite:///{home / 'corral.db'}":
        return home / f"daemon{suffix}"
    return home / f"daemon-{sha256(store.encode()).hexdigest()[:12]}{suffix}"


def find_daemon(store: str) -> Daemon | None:
    """Return the daemon that serves a store from this home, if its process is alive."""
    daemon = _read_info(store)
    if daemon is None or process.check(daemon.identity) is not Liveness.ALIVE:
        return None
    return daemon


def probe_version(address: str, port: int) -> str | None:
    """Return the version of the Corral daemon at an address; None if there is none."""
    from http.client import HTTPConnection, HTTPException

    connection = HTTPConnection(address, port, timeout=PROBE_SECONDS)
    try:
        connection.request("GET", "/healthz")
        body = msgspec.json.decode(connection.getresponse().read(PROBE_BYTES))
        return str(body["version"]) if body["name"] == "corral" else None
    except (OSError, HTTPException, msgspec.DecodeError, KeyError, TypeError):
        return None
    finally:
        connection.close()


def _read_info(store: str) -> Daemon | None:
    try:
        return msgspec.json.decode(info_path(store).read_bytes(), type=Daemon)
    except (OSError, msgspec.DecodeError):
        return None


class DaemonLock:
    """The lock that makes a daemon the only one of a store in a home. The process holds it."""

    def __init__(self, store: str) -> None:
        """Raises Refused if another daemon holds the lock."""
        self._path = info_path(store)
        config.make_private_folder(self._path.parent)
        while True:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._descriptor)
                raise _already_running_error(store) from None
            if self._is_current():
                break
            os.close(self._descriptor)  # the previous daemon removed the file concurrently
        os.truncate(self._descriptor, 0)

    def _is_current(self) -> bool:
        with suppress(OSError):
            return os.path.samestat(os.fstat(self._descriptor), os.stat(self._path))
        return False

    def publish(self, daemon: Daemon) -> None:
        """Write the description of the daemon to the file."""
        os.truncate(self._descriptor, 0)
        os.pwrite(self._descriptor, msgspec.json.encode(daemon) + b"\n", 0)

    def release(self) -> None:
        """Remove the file and release the lock."""
        if self._is_current():
            self._path.unlink()
        os.close(self._descriptor)


def _already_running_error(store: str) -> Refused:
    if (daemon := find_daemon(store)) is not None:
        which, where = f" (pid {daemon.pid}, {daemon.url})", ""
    elif (daemon := _read_info(store)) is not None:
        which, where = f" (pid {daemon.pid} on {daemon.host})", " there"
    else:
        which = where = ""
    return Refused(
        f"A daemon{which} already serves this store from this home. Stop it{where} with "
        "`corral down`.",
        pid=daemon.pid if daemon else None,
    )


# -- start and stop ----------------------------------------------------------------------------


def command(options: Sequence[str]) -> list[str]:
    """Return the command line of the daemon."""
    # -P: do not import modules from the current directory.
    return [sys.executable, "-P", "-m", "corral.serve", *options]


def environment(address: str) -> dict[str, str]:
    """Return the environment of the daemon, with the address of the store.

    Not on the command line: the address may contain a password, and every user can read arguments.
    """
    variables = {name: value for name, value in os.environ.items() if name not in RUN_VARIABLES}
    return variables | {"CORRAL_STORE": address}


def start(address: str, options: Sequence[str], log: Path) -> dict[str, Any]:
    """Start the daemon in a session of its own, wait until it is ready or failed, and return its
    message.

    The message is empty if the daemon died; its log has the reason.
    """
    config.make_private_folder(log.parent)
    ready_reader, ready_writer = os.pipe()
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    try:
        os.posix_spawn(
            sys.executable,
            command([*options, "--log", str(log), "--ready", str(ready_writer)]),
            environment(address),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
                (os.POSIX_SPAWN_DUP2, ready_writer, ready_writer),
            ],
            setsid=True,
        )
    finally:
        os.close(ready_writer)
    with os.fdopen(ready_reader, "rb") as pipe:
        line = pipe.readline()
    message: dict[str, Any] = msgspec.json.decode(line) if line else {}
    return message


def stop(daemon: Daemon, *, seconds: float, at_once: bool = False) -> bool:
    """Send SIGTERM to a daemon and wait; return whether it exited.

    `at_once` sends a second SIGTERM: the daemon then exits without finishing its work.
    """
    process.send_signal(daemon.identity, signal.SIGTERM)
    if at_once:
        time.sleep(0.1)  # two pending signals of one kind are merged
        process.send_signal(daemon.identity, signal.SIGTERM)
    deadline = time.monotonic() + seconds
    while process.check(daemon.identity) is Liveness.ALIVE:
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True


def read_health(daemon: Daemon) -> dict[str, Any] | None:
    """Return the health report of a daemon; None if it does not respond."""
    import http.client
    from urllib.parse import urlsplit

    hostname = urlsplit(daemon.url).hostname or "127.0.0.1"
    connection = http.client.HTTPConnection(hostname, daemon.port, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", "/healthz", headers={"Authorization": f"Bearer {daemon.token}"})
        report: dict[str, Any] = msgspec.json.decode(connection.getresponse().read())
        return report
    except (OSError, http.client.HTTPException, msgspec.DecodeError):
        return None
    finally:
        connection.close()
