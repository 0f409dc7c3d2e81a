"""The daemon of a store, as other programs of the same user find it.

A private file in the home folder tells which process it is and where it listens; the process keeps
that file locked for as long as it lives, so a file that was left behind fools nobody.
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
from corral.adapters import process
from corral.adapters.process import Identity, Standing
from corral.adapters.supervisor_process import OWN_VARIABLES
from corral.kernel.errors import Refused

PORT = 7717
ANSWER_SECONDS = 10.0
PROBE_SECONDS = 2.0
PROBE_BYTES = 4_096


class Daemon(msgspec.Struct, frozen=True):
    """Who serves a store from this home."""

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
    def identity(self) -> Identity:
        # A machine may be renamed while it is up, as many are by each network; its boot stays.
        same_boot = self.boot_id == process.boot_id() != process.UNKNOWN_BOOT
        here = same_boot and self.pid_space == process.pid_space()
        host = process.host() if here else self.host
        return Identity(host, self.boot_id, self.pid, self.start_token)

    @property
    def token(self) -> str | None:
        """What opens its door; None when the file is gone."""
        try:
            return Path(self.token_file).read_text().strip()
        except OSError:
            return None

    @property
    def link(self) -> str:
        """The address that a browser is to open: it carries the token, once."""
        token = self.token
        return f"{self.url}/?token={token}" if token else f"{self.url}/"


def file_of(store: str, end: str = ".json") -> Path:
    """Where the daemon of a store is told: one file for the home's own store, and one for each
    other. `store` is its URL without a password."""
    home = config.home()
    if store == f"sqlite:///{home / 'corral.db'}":
        return home / f"daemon{end}"
    return home / f"daemon-{sha256(store.encode()).hexdigest()[:12]}{end}"


def find(store: str) -> Daemon | None:
    """The daemon that serves a store from this home, if its process lives."""
    found = _told(store)
    if found is None or process.look(found.identity) is not Standing.ALIVE:
        return None
    return found


def version_at(address: str, port: int) -> str | None:
    """The version of the Corral daemon that listens there; None: another program does, or none."""
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


def _told(store: str) -> Daemon | None:
    try:
        return msgspec.json.decode(file_of(store).read_bytes(), type=Daemon)
    except (OSError, msgspec.DecodeError):
        return None


class Seat:
    """The one place for a daemon of a store in a home; given up with the process."""

    def __init__(self, store: str) -> None:
        """Refused when another daemon has it."""
        self._path = file_of(store)
        config.make_private_folder(self._path.parent)
        while True:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._descriptor)
                raise _is_up(store) from None
            if self._is_current():
                break
            os.close(self._descriptor)  # whoever had it removed it at this very moment
        os.truncate(self._descriptor, 0)

    def _is_current(self) -> bool:
        with suppress(OSError):
            return os.path.samestat(os.fstat(self._descriptor), os.stat(self._path))
        return False

    def tell(self, daemon: Daemon) -> None:
        """Say who has it and where it listens."""
        os.truncate(self._descriptor, 0)
        os.pwrite(self._descriptor, msgspec.json.encode(daemon) + b"\n", 0)

    def leave(self) -> None:
        if self._is_current():
            self._path.unlink()
        os.close(self._descriptor)


def _is_up(store: str) -> Refused:
    if (daemon := find(store)) is not None:
        which, there = f" with pid {daemon.pid} at {daemon.url}", ""
    elif (daemon := _told(store)) is not None:
        which, there = f" with pid {daemon.pid} on {daemon.host}", " there"
    else:
        which = there = ""
    return Refused(
        f"A daemon{which} serves this store from this home already; end it{there} with "
        "`corral down`.",
        pid=daemon.pid if daemon else None,
    )


# -- starting and ending -----------------------------------------------------------------------


def command(options: Sequence[str]) -> list[str]:
    # -P: nothing is loaded from the folder in which it is started.
    return [sys.executable, "-P", "-m", "corral.serve", *options]


def environment(address: str) -> dict[str, str]:
    """The address may hold a password, and a command line can be read by everybody."""
    kept = {name: value for name, value in os.environ.items() if name not in OWN_VARIABLES}
    return kept | {"CORRAL_STORE": address}


def start(address: str, options: Sequence[str], log: Path) -> dict[str, Any]:
    """Start the daemon in a session of its own, and wait until it serves, or says why not.

    What it says is given back; it says nothing when it dies, and its log tells why.
    """
    config.make_private_folder(log.parent)
    answer, tell = os.pipe()
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    try:
        os.posix_spawn(
            sys.executable,
            command([*options, "--log", str(log), "--ready", str(tell)]),
            environment(address),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
                (os.POSIX_SPAWN_DUP2, tell, tell),
            ],
            setsid=True,
        )
    finally:
        os.close(tell)
    with os.fdopen(answer, "rb") as pipe:
        line = pipe.readline()
    said: dict[str, Any] = msgspec.json.decode(line) if line else {}
    return said


def end(daemon: Daemon, *, seconds: float, at_once: bool = False) -> bool:
    """Ask a daemon to end, and wait for it; whether it is gone. Asked twice, it ends at once."""
    process.send(daemon.identity, signal.SIGTERM)
    if at_once:
        time.sleep(0.1)  # two signals that come together are one
        process.send(daemon.identity, signal.SIGTERM)
    deadline = time.monotonic() + seconds
    while process.look(daemon.identity) is Standing.ALIVE:
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True


def ask(daemon: Daemon) -> dict[str, Any] | None:
    """How a daemon says that it is; None when it does not answer."""
    import http.client
    from urllib.parse import urlsplit

    where = urlsplit(daemon.url).hostname or "127.0.0.1"
    connection = http.client.HTTPConnection(where, daemon.port, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", "/healthz", headers={"Authorization": f"Bearer {daemon.token}"})
        told: dict[str, Any] = msgspec.json.decode(connection.getresponse().read())
        return told
    except (OSError, http.client.HTTPException, msgspec.DecodeError):
        return None
    finally:
        connection.close()
