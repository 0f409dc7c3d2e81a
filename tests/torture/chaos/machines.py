"""Nodes whose clocks, disks and networks the test controls."""

import os
import signal
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.daemon_nodes import Machine
from tests.support.home import CORRAL, SECONDS, is_alive
from tests.support.postgres_server import PostgresServer

SITE = Path(__file__).parent / "site"
ROOT = Path(__file__).parents[3]
DISK_MB = 48


class Network:
    """A network namespace with one link that can be cut: packets are then dropped silently."""

    def __init__(self) -> None:
        """Raises OSError where that is not permitted."""
        self._link = ""
        self._holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self.enter = ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net"]
        try:
            self._wait_for_namespace()
            number = self._add_link()
            self.host_address, self.node_address = f"10.213.{number}.1", f"10.213.{number}.2"
            self._ip("addr", "add", f"{self.host_address}/30", "dev", self._link)
            self._ip("link", "set", self._link, "up")
            for arguments in (
                ["link", "set", "lo", "up"],
                ["addr", "add", f"{self.node_address}/30", "dev", "eth0"],
                ["link", "set", "eth0", "up"],
            ):
                self._run([*self.enter, "ip", *arguments])
        except OSError:
            self.close()
            raise

    def _add_link(self) -> int:
        """Add the link under a number that no other process on this machine uses."""
        for offset in range(250):
            number = (os.getpid() + offset) % 250
            name = f"chaos{number}"
            try:
                self._ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns",
                         str(self._holder.pid))  # fmt: skip
            except OSError as error:
                if "File exists" not in str(error):
                    raise
            else:
                self._link = name
                return number
        raise OSError("all link numbers are in use")

    def _wait_for_namespace(self) -> None:
        host_namespace = os.readlink("/proc/self/ns/net")
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            if self._holder.poll() is not None:
                break
            if os.readlink(f"/proc/{self._holder.pid}/ns/net") != host_namespace:
                return
            time.sleep(0.01)
        raise OSError("a network namespace cannot be created")

    def cut(self) -> None:
        self._ip("link", "set", self._link, "down")

    def restore(self) -> None:
        self._ip("link", "set", self._link, "up")

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait()
        if self._link:
            subprocess.run(["ip", "link", "del", self._link], check=False, capture_output=True)

    def _ip(self, *arguments: str) -> None:
        self._run(["ip", *arguments])

    @staticmethod
    def _run(command: list[str]) -> None:
        result = subprocess.run(command, check=False, capture_output=True, text=True)
        if result.returncode != 0:
            raise OSError(f"{' '.join(command)}: {result.stderr.strip()}")


class Server(PostgresServer):
    """A PostgreSQL server that nodes in another network namespace can reach."""

    def __init__(self, extra_address: str | None) -> None:
        self._extra_address = extra_address
        super().__init__()

    def _launch(self, settings: list[str], log: Any) -> "subprocess.Popen[bytes]":
        if self._extra_address is not None:
            rules = self.folder / "data" / "pg_hba.conf"
            line = f"host all all {self._extra_address}/24 trust\n"
            if line not in rules.read_text():
                rules.write_text(rules.read_text() + line)
            settings = [*settings, "-c", f"listen_addresses=127.0.0.1,{self._extra_address}"]
        return super()._launch(settings, log)


class Disk:
    """A small disk that can be filled."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError where mounting is not permitted."""
        folder.mkdir()
        self.folder = folder
        Network._run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(folder)])

    def fill(self) -> None:
        from tests.support.full_disk import fill

        fill(self.folder / "ballast")

    def free(self) -> None:
        (self.folder / "ballast").unlink(missing_ok=True)

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], check=False)


class ChaosNode(Machine):
    """A node whose clock can be moved, optionally behind a link that can be cut."""

    def __init__(self, folder: Path, url: str, name: str, network: Network | None) -> None:
        super().__init__(folder, url, name)
        self.network = network
        self._enter = network.enter if network is not None else []
        self._clock = folder / "clock"
        self.move_clock(0)
        paths = [str(SITE), str(ROOT / "src"), str(ROOT)]
        self.env |= {"CHAOS_CLOCK": str(self._clock), "PYTHONPATH": os.pathsep.join(paths)}
        self.workers: dict[str, subprocess.Popen[bytes]] = {}

    def move_clock(self, ms: int) -> None:
        """Set the offset from the true time, in milliseconds."""
        file = os.open(self._clock, os.O_WRONLY | os.O_CREAT, 0o600)
        os.pwrite(file, struct.pack("<q", ms), 0)
        os.close(file)

    def corral(self, *arguments: str, **how: Any) -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(
            [*self._enter, *CORRAL, *arguments],
            capture_output=True,
            cwd=self.work,
            env={**self.env, **(how.get("env") or {})},
            timeout=how.get("seconds", SECONDS),
            check=False,
        )

    def is_up(self) -> bool:
        return self.pid != 0 and is_alive(self.pid)

    def ensure_up(self) -> bool:
        """Start the daemon unless it runs; return False if that failed."""
        if self.is_up():
            return True
        with suppress(AssertionError, subprocess.TimeoutExpired, ValueError):
            self.up("--label", "chaos", "--slots", "4")
            return True
        return False

    def start_worker(self, name: str, folder: Path, seed: int) -> None:
        command = [sys.executable, "-m", "tests.torture.chaos.worker", self.url, str(folder), name]
        log = (folder / f"{name}.log").open("ab")
        with log:
            self.workers[name] = subprocess.Popen(
                [*self._enter, *command, str(seed)],
                cwd=self.work,
                env=self.env | {"CHAOS_WORKER": "1"},
                stdout=log,
                stderr=log,
            )

    def kill_worker(self, name: str) -> bool:
        """Kill a worker; return whether it was alive."""
        was_alive = self.workers[name].poll() is None
        self.workers[name].kill()
        self.workers[name].wait()
        return was_alive

    def signal_all(self, number: int) -> int:
        """Signal all processes except workers, which have their own faults; return how many."""
        workers = {worker.pid for worker in self.workers.values()}
        count = 0
        for pid in self.processes():
            if pid not in workers:
                with suppress(OSError):
                    os.kill(pid, number)
                    count += 1
        return count

    def kill_all(self) -> int:
        """Kill all processes at once; return how many."""
        return self.signal_all(signal.SIGKILL) + sum(map(self.kill_worker, [*self.workers]))
