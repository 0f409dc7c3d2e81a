"""The environment of the demo: a temporary home, real `corral` processes, and the output."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

import corral
from corral.adapters.processes import process
from corral.api import Corral
from corral.cli.render import console

T = TypeVar("T")


class DemoFailed(Exception):
    """A command failed, or a result was not as claimed."""


class Harness:
    """Runs `corral` commands in a temporary home, kills processes, and prints the story."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="corral-demo-"))
        self.project = self.home / "hello"
        self.project.mkdir()
        env = {name: value for name, value in os.environ.items() if not name.startswith("CORRAL_")}
        self.environment = env | {"CORRAL_HOME": str(self.home), "CORRAL_AGENT": ""}
        self.killed = 0
        """Number of processes that were killed."""
        self._console = console()
        self._children: list[subprocess.Popen[str]] = []

    # -- commands --------------------------------------------------------------------------------

    def corral(self, *arguments: str) -> Any:
        """Run a `corral` command and return its JSON. Raises DemoFailed when it fails."""
        done = subprocess.run(
            [*self._program(), *arguments, "--json"],
            env=self.environment,
            cwd=self.project,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise DemoFailed(f"corral {' '.join(arguments)}: {done.stderr.strip()}")
        return msgspec.json.decode(done.stdout)

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start a `corral` command in the background."""
        child = subprocess.Popen(
            [*self._program(), *arguments, "--json"],
            env=self.environment,
            cwd=self.project,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._children.append(child)
        return child

    def wait_for(self, condition: Callable[[Corral], T], seconds: float = 120) -> T:
        """Poll the store until a condition holds, and return its value.

        Reads the store directly: starting a command for each poll would load the machine.
        """
        deadline = time.monotonic() + seconds
        with corral.open(f"sqlite:///{self.home / 'corral.db'}") as store:
            while not (value := condition(store)):
                if time.monotonic() > deadline:
                    raise DemoFailed(f"an expected change did not happen within {seconds:.0f} s")
                time.sleep(0.1)
        return value

    def kill(self, child: "subprocess.Popen[str]") -> None:
        """Send SIGKILL to a command, and wait until it is dead."""
        child.send_signal(signal.SIGKILL)
        child.wait()
        self.killed += 1

    def kill_processes(self, *pids: int) -> None:
        """Send SIGKILL to processes that are not our children, and wait until they are dead."""
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            while (stat := process.read_stat(pid)) is not None and stat.state not in "ZX":
                time.sleep(0.01)
            self.killed += 1

    def close(self) -> None:
        """Stop what is still running."""
        with suppress(DemoFailed):
            self.corral("down")
        for child in self._children:
            if child.poll() is None:
                child.kill()
                child.wait()
            if child.stdout is not None:
                child.stdout.close()

    @staticmethod
    def _program() -> list[str]:
        return [sys.executable, "-P", "-m", "corral"]

    # -- output ----------------------------------------------------------------------------------

    def title(self, text: str) -> None:
        """Print the title of a chapter."""
        self._console.print()
        self._console.print(text, style="bold")

    def say(self, text: str) -> None:
        """Print a line of the story."""
        self._console.print(f"  {text}")

    def prove(self, claim: str, holds: bool) -> None:
        """Print a claim that holds. Raises DemoFailed when it does not."""
        if not holds:
            raise DemoFailed(f"not true: {claim}")
        self._console.print(f"  ✓ {claim}", style="green")
