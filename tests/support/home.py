"""Real runs for tests: a private home, commands as processes, and their clean-up.

Every process that a test starts, directly or not, has the test's CORRAL_HOME in its environment.
`kill_processes` finds the processes by that variable.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

import corral
from corral.adapters.processes import process, process_marks
from corral.api import Corral
from corral.domain.runs.model import Run, RunState
from corral.kernel.errors import NotFound
from tests.support.command_server import run_command

T = TypeVar("T")

SECONDS = 40.0
CORRAL = [sys.executable, "-m", "corral"]


def wait_until(probe: Callable[[], T | None], what: str, seconds: float = SECONDS) -> T:
    """Return the first true result of `probe`; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    pause = 0.005
    while not (result := probe()):
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(pause)
        pause = min(pause * 2, 0.1)
    return result


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    result = process.read_stat(pid)
    return result is not None and result.state not in "ZX"


def processes_with_variable(mark: str) -> list[int]:
    """Return the live processes with `NAME=value` in their environment, except this one."""
    results = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with suppress(OSError):
                variables = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                if mark.encode() in variables and is_alive(int(name)):
                    results.append(int(name))
    return results


def kill_processes(list_pids: Callable[[], list[int]]) -> None:
    """Kill the listed processes until none is left."""
    for _ in range(100):
        pids = list_pids()
        if not pids:
            return
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


class Command(subprocess.Popen[bytes]):
    """A background command; leaving its block kills it."""

    def __exit__(self, *error: Any) -> None:
        if self.poll() is None:
            self.kill()
        super().__exit__(*error)


class Home:
    """One store, one folder for its runs, and all processes started there."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.work = folder / "work"
        self.work.mkdir(exist_ok=True)
        self.env = os.environ | {
            "CORRAL_STORE": url,
            "CORRAL_AGENT_HOME": str(folder / "conversations"),
            "TERM": "xterm-256color",
        }
        for name in ("COLUMNS", "LINES"):  # a terminal sets them itself
            self.env.pop(name, None)
        assert self.env["CORRAL_HOME"].startswith(str(folder)), (
            "the home is inside the test's folder"
        )

    @property
    def mark(self) -> str:
        return f"CORRAL_HOME={self.env['CORRAL_HOME']}"

    # -- the command line ----------------------------------------------------------------------

    def corral(
        self,
        *arguments: str,
        input: bytes = b"",
        env: Mapping[str, str] | None = None,
        seconds: float = SECONDS,
    ) -> "subprocess.CompletedProcess[bytes]":
        """Run a command to its end, with its input, output and exit code.

        It is a new process if `env` is given, otherwise a fork of the command server.
        """
        if env is None:
            process_result = run_command(
                arguments, input=input, cwd=self.work, env=self.env, timeout=seconds
            )
            if process_result is not None:
                return process_result
        return subprocess.run(
            [*CORRAL, *arguments],
            input=input,
            capture_output=True,
            cwd=self.work,
            env={**self.env, **(env or {})},
            timeout=seconds,
            check=False,
        )

    def json(self, *arguments: str, env: Mapping[str, str] | None = None) -> Any:
        result = self.corral(*arguments, env=env)
        assert result.returncode == 0, result.stderr.decode(errors="replace")
        return json.loads(result.stdout)

    def begin(self, *arguments: str, **options: Any) -> Command:
        """Start a command in the background; the caller ends it."""
        usual: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "cwd": self.work,
            "env": self.env,
        }
        return Command([*CORRAL, *arguments], **(usual | options))

    def start_detached(
        self, *command: str, options: tuple[str, ...] = (), env: Mapping[str, str] | None = None
    ) -> Run:
        """Start a detached run of a command."""
        return self._start(*options, "--", *command, env=env)

    def start_agent(
        self, agent: str, prompt: str, *options: str, env: Mapping[str, str] | None = None
    ) -> Run:
        """Start a detached run of an agent with a prompt."""
        return self._start("--agent", agent, *options, prompt, env=env)

    def _start(self, *arguments: str, env: Mapping[str, str] | None = None) -> Run:
        return self.get(self.json("run", "--detach", "--json", *arguments, env=env)["id"])

    @contextmanager
    def environment(self, env: Mapping[str, str] | None = None) -> Iterator[None]:
        """Give this process the environment and working directory of the home's commands."""
        with pytest.MonkeyPatch.context() as patch:
            variables = {**self.env, **(env or {})}
            for name in os.environ.keys() - variables.keys():
                patch.delenv(name)
            for name, value in variables.items():
                patch.setenv(name, value)
            patch.chdir(self.work)
            process.host.cache_clear()
            try:
                yield
            finally:
                process.host.cache_clear()

    # -- the library ---------------------------------------------------------------------------

    @contextmanager
    def store(self) -> Iterator[Corral]:
        with corral.open(self.url, actor="user:tester") as store:
            yield store

    def get(self, id: str) -> Run:
        with self.store() as store:
            return store.runs.get(id)

    def only_run(self) -> Run:
        """Return the only run of the store."""
        with self.store() as store:
            (run,) = store.runs.list().items
            return run

    def wait_for_end(self, id: str, seconds: float = SECONDS) -> Run:
        with self.store() as store:
            return store.runs.wait(id, timeout_ms=int(seconds * 1_000))

    def in_state(self, id: str, state: RunState, seconds: float = SECONDS) -> Run:
        def read_run() -> Run | None:
            run = self.get(id)
            return run if run.state is state else None

        return wait_until(read_run, f"{id} is {state}", seconds)

    def recover(self) -> list[Any]:
        with self.store() as store:
            return list(store.runs.recover())

    def output(self, run: Run, stream: str = "output") -> bytes:
        """Return the whole visible output of a run."""
        with self.store() as store:
            text = store.outputs.open(run.id, stream=stream)
            content, offset = b"", 0
            while data := text.bytes(offset, 1 << 20):
                content += data
                offset += len(data)
            return content

    def output_so_far(self, run: Run) -> bytes:
        """Return the output, or nothing if there is none yet."""
        with suppress(NotFound):
            return self.output(self.get(run.id))
        return b""

    def log(self, run: Run) -> list[str]:
        with self.store() as store:
            return [line.message for line in store.outputs.log_lines(run.id).items]

    def events(self, run: Run) -> list[str]:
        """Return the event verbs of a run, in order."""
        with self.store() as store:
            return [event.verb for event in store.events.after(subject=run.id).items]

    def folder_of(self, run: Run) -> Path:
        return Path(self.env["CORRAL_HOME"]) / "runs" / run.id

    # -- processes -----------------------------------------------------------------------------

    def guard_pid(self, run: Run) -> int:
        """Return the process between supervisor and agent."""
        assert run.pid is not None
        result = process.read_stat(run.pid)
        assert result is not None
        return result.parent

    def read_pid(self, name: str) -> int:
        """Wait for a pid that a process writes into a file of the working directory."""
        file = self.work / name

        def read_pid_file() -> int:
            text = file.read_text() if file.exists() else ""
            return int(text) if text.endswith("\n") else 0

        return wait_until(read_pid_file, f"a pid in {name}")

    def processes(self) -> list[int]:
        return processes_with_variable(self.mark)

    def processes_of(self, run: Run) -> list[int]:
        return processes_with_variable(process_marks.run_mark(run.id))

    def wait_for_all_processes(self) -> None:
        """Wait until all supervisors, guards and agents have ended, and output is sealed."""
        wait_until(lambda: not self.processes(), "all processes have ended")

    def kill_processes(self) -> None:
        kill_processes(self.processes)
