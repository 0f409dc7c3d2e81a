"""Whole runs of real agent CLIs: a fake user's machine with a private store."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

import corral
from corral.domain.runs.model import Run
from corral.domain.sessions.model import Session, Turn
from tests.real.machine import INSTALL_HINT, Machine, program, steps
from tests.support import home
from tests.support.home import Home

T = TypeVar("T")

SECONDS = 100.0  # the CLIs start slowly on a busy machine
USAGE = {"input": 1_000, "output": 50, "cache_read": 300}


def wait_until(probe: Callable[[], T | None], message: str) -> T:
    return home.wait_until(probe, message, SECONDS)


class RealHome(Home):
    """The fake user calls `corral` there; the agent CLIs are on the PATH."""

    def __init__(self, machine: Machine, corral_home: Path) -> None:
        self.machine = machine
        self.stub = machine.stub
        self.folder = corral_home.parent
        self.url = f"sqlite:///{corral_home}/corral.db"
        self.work = machine.work
        self.programs = self.folder / "programs"
        self.programs.mkdir()
        machine.env |= {
            "CORRAL_HOME": str(corral_home),
            "CORRAL_STORE": self.url,
            "PATH": f"{self.programs}:{machine.env['PATH']}",
            "USER": "tester",
        }
        if "PYTHONPATH" in os.environ:  # so that commands and MCP servers use this Corral
            machine.env["PYTHONPATH"] = os.environ["PYTHONPATH"]
        self.env = machine.env
        corral_home.mkdir(mode=0o700)
        corral.open(self.url).close()

    def install(self, name: str) -> None:
        """Put a real program on the PATH, or skip the test with the reason."""
        result = program(name)
        if result is None:
            pytest.skip(f"{name} is not installed: {INSTALL_HINT}")
        (self.programs / name).symlink_to(result)

    def corral(self, *arguments: str, seconds: float = SECONDS, **options: Any) -> Any:
        return super().corral(*arguments, seconds=seconds, **options)

    def wait_for_end(self, id: str, seconds: float = SECONDS) -> Run:
        return super().wait_for_end(id, seconds)

    def session_of(self, run: Run) -> Session:
        assert run.session_id is not None
        with self.store() as store:
            return store.sessions.get(run.session_id)

    def turns(self, run: Run) -> list[Turn]:
        assert run.session_id is not None
        with self.store() as store:
            return list(store.sessions.turns(run.session_id, limit=200).items)

    def texts(self, run: Run) -> list[str]:
        """Return the texts of the agent."""
        turns = [turn for turn in self.turns(run) if turn.role == "assistant"]
        return [turn.content for turn in turns if turn.tool_name is None]

    def charged(self, scope: str) -> tuple[int, int, int, int]:
        """Return the stub's usage for the provider: input, output, from and to the cache."""
        with self.store() as store:
            total = store.charges.total(scope)
        return total.input, total.output, total.cache_read, total.cache_write

    def requests(self) -> list[dict[str, Any]]:
        """Return the model requests of the conversation, without those for its title."""
        return [entry for entry in self.stub.seen if entry.get("tools")]

    def count_prompts(self, text: str) -> int:
        """Return how often the text is in the last request of the conversation."""
        last = self.requests()[-1]["body"]
        messages = last.get("messages") or last.get("input") or last.get("contents")
        return str(messages).count(text)


class AgentKind:
    """What one test sends to each agent CLI."""

    def __init__(self, name: str, home: RealHome) -> None:
        self.name = name
        self.home = home

    @property
    def approvals(self) -> tuple[str, ...]:
        return ("--yes", "all") if self.name == "codex" else ("--yes", "edit", "--yes", "run")

    def write(self, file: str, content: str = "hi", **fields: Any) -> dict[str, Any]:
        """Return a step that writes a file with one of the agent's tools."""
        if self.name == "codex":
            return self.shell(f"printf {content} > {file}", **fields)
        args = {"file_path": f"{self.home.work}/{file}", "content": content}
        return {"tool": "Write", "args": args, **fields}

    def shell(self, command: str, **fields: Any) -> dict[str, Any]:
        if self.name == "codex":
            return {"tool": "exec_command", "args": {"cmd": command}, **fields}
        return {"tool": "Bash", "args": {"command": command}, **fields}

    def used(self) -> tuple[int, int, int, int]:
        """Return the stub's usage as Corral counts it: cached tokens are not input."""
        total, output, cache_read, cache_write = self.home.machine.used()
        return (
            total - cache_read if self.name == "codex" else total,
            output,
            cache_read,
            cache_write,
        )

    def begin_long(self, *options: str) -> tuple[Run, str]:
        """Start a run that has used a tool and blocks in its second reply.

        It continues when the gate `go` opens. Also returns the marker of its prompt.
        """
        mark = "first-prompt"
        first = self.write("a.txt", text="I begin.", usage=USAGE)
        last = {"text": "I finished.", "gate": "go"}
        # Claude adds an assistant line before it continues, which the stub counts.
        prompt = f"{mark} " + steps(first, last, last)
        run = self.home.start_agent(self.name, prompt, *self.approvals, *options)
        wait_until(lambda: len(self.home.requests()) == 2, "the second model request")
        wait_until(lambda: [t for t in self.home.turns(run) if t.role == "tool"], "the tool's turn")
        return self.home.get(run.id), mark
