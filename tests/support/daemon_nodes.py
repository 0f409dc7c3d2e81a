"""Several nodes on one store: each has a home, a name and a daemon that can be killed."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from corral.adapters.processes import process
from tests.support.home import SECONDS, Home, is_alive, wait_until


class Machine(Home):
    """A home with a daemon; for the store, a separate node."""

    def __init__(self, folder: Path, url: str, name: str) -> None:
        folder.mkdir()
        overrides = {"CORRAL_HOME": str(folder / "home"), "CORRAL_HOST": name}
        saved = dict(os.environ)
        os.environ.update(overrides)
        try:
            super().__init__(folder, url)
        finally:
            os.environ.clear()
            os.environ.update(saved)
        self.name = name
        self.link = ""
        self.pid = 0

    def up(self, *options: str) -> dict[str, Any]:
        """Start the daemon and return its output."""
        result: dict[str, Any] = self.json("up", "--port", "0", "--json", *options)
        self.link = result["link"]
        self.pid = result["daemon"]["pid"]
        return result

    def status(self) -> dict[str, Any]:
        """Return the output of `corral status`, whether healthy or not."""
        result: dict[str, Any] = json.loads(self.corral("status", "--json").stdout)
        return result

    def loop(self, name: str) -> dict[str, Any]:
        """Return one loop as the daemon reports it."""
        loops = {loop["name"]: loop for loop in self.get_url("/healthz").json()["status"]["loops"]}
        result: dict[str, Any] = loops[name]
        return result

    def get_url(self, path: str) -> httpx.Response:
        """Return the daemon's response to a request with its own token."""
        address, _, token = self.link.partition("/?token=")
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.get(f"{address}{path}", headers=headers, timeout=60)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def has_ended(self, seconds: float = SECONDS) -> bool:
        return wait_until(lambda: not is_alive(self.pid), "the daemon has ended", seconds)

    def signal_all(self, number: int) -> None:
        """Send a signal to the daemon and all supervisors, guards and agents."""
        for pid in self.processes():
            with suppress(OSError):
                os.kill(pid, number)

    def lose_power(self) -> None:
        """Kill all processes at once."""
        self.signal_all(signal.SIGKILL)
        self.kill_processes()


@contextmanager
def on_machine(name: str) -> Iterator[None]:
    """Make this process act as the node of that name, whose files are on this machine."""
    previous = os.environ.get("CORRAL_HOST")
    os.environ["CORRAL_HOST"] = name
    process.host.cache_clear()
    try:
        yield
    finally:
        if previous is None:
            del os.environ["CORRAL_HOST"]
        else:
            os.environ["CORRAL_HOST"] = previous
        process.host.cache_clear()


def children_of(pid: int) -> Iterator[process.ProcessStat]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                result = process.read_stat(int(name))
                if result is not None and result.parent == pid:
                    yield result


def cpu_of(pid: int, seconds: float) -> float:
    """Return the share of one core that a process uses during `seconds`."""
    before = process.read_stat(pid)
    time.sleep(seconds)
    after = process.read_stat(pid)
    assert before is not None
    assert after is not None
    return (after.cpu_ticks - before.cpu_ticks) / os.sysconf("SC_CLK_TCK") / seconds


def memory_of(pid: int) -> int:
    """Return the memory of a process in bytes, private and shared, as the kernel counts it."""
    fields = Path(f"/proc/{pid}/status").read_text().split()
    return int(fields[fields.index("VmRSS:") + 1]) * 1024
