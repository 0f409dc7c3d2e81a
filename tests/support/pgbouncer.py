"""A private pgbouncer in front of a test database, if it is installed."""

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg

from tests.support.postgres_server import NOBODY, reserve_port

SECONDS = 120.0  # only a guard against hanging


def find_pgbouncer() -> str | None:
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


class Pgbouncer:
    """Runs until `close`; as another user if we are root, because pgbouncer refuses root."""

    def __init__(self, program: str, url: str, mode: str, *, size: int = 5) -> None:
        info = psycopg.conninfo.conninfo_to_dict(url)
        self._folder = Path(tempfile.mkdtemp(prefix="corral-bouncer-"))
        self._reserved = reserve_port()
        port = self._reserved.getsockname()[1]
        (self._folder / "users").write_text('"postgres" ""\n')
        (self._folder / "ini").write_text(
            f"[databases]\nstore = host=127.0.0.1 port={info['port']} dbname={info['dbname']}"
            " user=postgres\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = any\nauth_file = {self._folder}/users\npool_mode = {mode}\n"
            f"default_pool_size = {size}\n"
        )
        user_options: dict[str, Any] = {}
        if os.geteuid() == 0:
            for path in (self._folder, *self._folder.iterdir()):
                os.chown(path, NOBODY, NOBODY)
            user_options = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [program, str(self._folder / "ini")],
                stdout=log,
                stderr=log,
                cwd="/",
                **user_options,
            )
        self.url = f"postgresql://postgres@127.0.0.1:{port}/store"
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=2).close()
                return
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((self._folder / "log").read_text()) from error
                time.sleep(0.02)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(SECONDS)
        self._reserved.close()
        shutil.rmtree(self._folder, ignore_errors=True)
