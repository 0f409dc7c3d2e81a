"""Claude Code and Codex at a terminal: their screens are parsed, and answered by policy only."""

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time

import pytest

from corral.adapters.providers.provider import LaunchCommand, LaunchRequest
from corral.adapters.providers.screens import ScreenLayout, ScreenReader, ScreenReading
from tests.real.conftest import Agent
from tests.real.machine import Machine, steps

pyte = pytest.importorskip("pyte", reason="pyte renders the screen: make test-real installs it")
ROWS, COLUMNS = 45, 120


class Terminal:
    def __init__(
        self, start: LaunchCommand, machine: Machine, screen: ScreenLayout, policy: set[str]
    ) -> None:
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self.stream = pyte.ByteStream(self.screen)
        self.reader = ScreenReader(screen, frozenset(policy))
        self.typed: list[str] = []
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(machine.work)
            env = {**machine.env, **start.env}
            os.execve(start.args[0], start.args, env)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))

    def wait_until(self, *states: str, seconds: float = 40) -> ScreenReading:
        """Poll the screen like a supervisor, and type the policy's answers.

        A working CLI redraws all the time, so waiting for quiet would never end.
        """
        end = time.monotonic() + seconds
        reading = ScreenReading("unknown")
        next_poll = 0.0
        display: list[str] = []
        while time.monotonic() < end:
            if select.select([self.fd], [], [], 0.4)[0]:
                self._feed(os.read(self.fd, 65_536))
                if time.monotonic() < next_poll:
                    continue
            next_poll = time.monotonic() + 0.4
            has_changed, display = display != self.screen.display, list(self.screen.display)
            reading = self.reader.look(display)
            keys = reading.answer
            if reading.state == "needs_input" and self.typed and not has_changed:
                keys = self.reader.retry_keys()
            if keys:
                self.type(keys)
            elif reading.state in states:
                return reading
        text = "\n".join(line for line in self.screen.display if line.strip())
        raise AssertionError(f"no {states}: {reading}\n{text}")

    def _feed(self, data: bytes) -> None:
        self.stream.feed(data)
        if b"\x1b[6n" in data:  # a cursor position request
            cursor = self.screen.cursor
            os.write(self.fd, f"\x1b[{cursor.y + 1};{cursor.x + 1}R".encode())
        if b"\x1b[c" in data:  # a terminal type request
            os.write(self.fd, b"\x1b[?62;c")

    def type(self, keys: str) -> None:
        self.typed.append(keys)
        os.write(self.fd, keys.encode())

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


def test_claude_asks_and_only_the_allowed_class_is_answered(
    claude: Agent, machine: Machine
) -> None:
    write = {"tool": "Write", "args": {"file_path": f"{machine.work}/a.txt", "content": "hi"}}
    text = "1. Yes, the rate limit\n2. Do you want to proceed?\n3. No"
    prompt = steps(
        {"text": text, **write},
        {"tool": "Bash", "args": {"command": "rm -rf build"}},
        {"text": "done"},
    )
    ask = LaunchRequest(prompt, interactive=True, extra=("--permission-mode", "manual"))
    assert claude.provider.screen
    terminal = Terminal(claude.build_command(ask), machine, claude.provider.screen, {"edit"})
    try:
        reading = terminal.wait_until("needs_input")
        assert (reading.kind, reading.answer) == ("run", None)
        assert set(terminal.typed) == {"\r"}
        assert (machine.work / "a.txt").read_text() == "hi"
    finally:
        terminal.close()


def test_claude_works_gets_ready_and_quits(claude: Agent, machine: Machine) -> None:
    prompt = steps({"text": "a longer answer that takes its time", "hang": 3})
    assert claude.provider.screen
    terminal = Terminal(
        claude.build_command(LaunchRequest(prompt, interactive=True)),
        machine,
        claude.provider.screen,
        set(),
    )
    try:
        terminal.wait_until("working")
        terminal.wait_until("ready")
        assert terminal.typed == []
        command = claude.provider.quit_command
        assert command
        for key in f"{command}\r":
            terminal.type(key)
            time.sleep(0.1)
        with pytest.raises(OSError, match="Input/output error"):
            terminal.wait_until("never", seconds=10)
    finally:
        terminal.close()


def test_codex_asks_and_is_answered(codex: Agent, machine: Machine) -> None:
    machine.configure(sandbox="read-only", approval="on-request")
    call = {
        "cmd": "touch a.txt",
        "sandbox_permissions": "require_escalated",
        "justification": "to make a file",
    }
    prompt = steps({"text": "1. Yes\n2. No", "tool": "exec_command", "args": call}, {"text": "ok"})
    assert codex.provider.screen
    start = codex.build_command(LaunchRequest(prompt, interactive=True))
    terminal = Terminal(start, machine, codex.provider.screen, {"run"})
    try:
        end = time.monotonic() + 60
        while not (machine.work / "a.txt").exists() and time.monotonic() < end:
            terminal.wait_until("ready", "working", "needs_input")
        assert (machine.work / "a.txt").exists()
        assert set(terminal.typed) == {"\r"}  # the first may come too early
    finally:
        terminal.close()
