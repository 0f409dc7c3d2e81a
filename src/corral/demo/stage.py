"""Where the story plays: a home of its own, and real `corral` processes in it."""

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
from corral.adapters import process
from corral.api import Corral
from corral.cli.render import console

T = TypeVar("T")


class Unexpected(Exception):
    """The story went another way than it should."""


class Stage:
    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="corral-demo-"))
        self.project = self.home / "hello"
        self.project.mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("CORRAL_")}
        self.environment = kept | {"CORRAL_HOME": str(self.home), "CORRAL_AGENT": ""}
        self._console = console()
        self._children: list[subprocess.Popen[str]] = []
        self.slowest = 0.0
        """Seconds that the slowest command took."""

    def corral(self, *arguments: str) -> Any:
        """Run one `corral` command to its end; gives back its JSON."""
        began = time.monotonic()
        done = subprocess.run(
            [*self._program(), *arguments, "--json"],
            env=self.environment,
            cwd=self.project,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise Unexpected(f"corral {' '.join(arguments)}: {done.stderr.strip()}")
        self.slowest = max(self.slowest, time.monotonic() - began)
        return msgspec.json.decode(done.stdout)

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start a `corral` command that goes on by itself."""
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

    def until(self, look: Callable[[Corral], T], seconds: float = 120) -> T:
        """Read the store again and again until there is something to see.

        A command for each look would take most of the machine.
        """
        deadline = time.monotonic() + seconds
        with corral.open(f"sqlite:///{self.home / 'corral.db'}") as store:
            while not (found := look(store)):
                if time.monotonic() > deadline:
                    raise Unexpected("what should have come did not come")
                time.sleep(0.1)
        return found

    @staticmethod
    def opens(link: str) -> bool:
        """Whether a browser that opens a link gets to see a page."""
        from http.cookiejar import CookieJar
        from urllib.request import HTTPCookieProcessor, build_opener

        with build_opener(HTTPCookieProcessor(CookieJar())).open(link, timeout=30) as page:
            return bool(page.status == 200 and b"<html" in page.read())

    def kill(self, child: "subprocess.Popen[str]") -> None:
        """As the power button does: no chance to tidy up."""
        child.send_signal(signal.SIGKILL)
        child.wait()

    @staticmethod
    def kill_processes(*pids: int) -> None:
        """Kill processes that this one did not start; returns when they are dead."""
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            while (found := process.stat(pid)) is not None and found.state not in "ZX":
                time.sleep(0.01)

    def clear(self) -> None:
        with suppress(Unexpected):
            self.corral("down")
        for child in self._children:
            if child.poll() is None:
                self.kill(child)
            if child.stdout is not None:
                child.stdout.close()

    @staticmethod
    def _program() -> list[str]:
        return [sys.executable, "-P", "-m", "corral"]

    # -- telling --------------------------------------------------------------------------------

    def chapter(self, title: str) -> None:
        self._console.print()
        self._console.print(title, style="bold")

    def tell(self, sentence: str) -> None:
        self._console.print(f"  {sentence}")

    def prove(self, claim: str, holds: bool) -> None:
        """Say what must be true, and stop the story when it is not."""
        if not holds:
            raise Unexpected(f"not true: {claim}")
        self._console.print(f"  ✓ {claim}", style="green")

    def wait(self, seconds: float, why: str) -> None:
        """Let real time pass, with a sign of life."""
        if self._console.is_terminal:
            with self._console.status(f"  {why} …"):
                time.sleep(seconds)
        else:
            self.tell(f"{why} …")
            time.sleep(seconds)
