"""The expected outcome of a run, and its comparison with the store."""

import re
import signal
from collections import Counter
from pathlib import Path

import msgspec

from corral.api import Corral
from corral.domain.runs.model import Run, RunState
from corral.kernel.errors import CorralError

AGENT = r"""
import os, signal, sys, time
record, lines, pause, end = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
notes = os.open(record, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
attempt = os.pread(notes, 1 << 20, 0).count(b"begin") + 1
os.write(notes, b"begin %d %d\n" % (attempt, os.getpid()))
for number in range(1, lines + 1):
    try:
        os.write(1, b"%d:%06d %s\n" % (attempt, number, b"x" * 40))
    except OSError:  # its terminal is gone
        os.write(notes, b"end %d exit74\n" % attempt)
        os._exit(74)
    os.write(notes, b"wrote %d:%d\n" % (attempt, number))
    time.sleep(pause)
os.write(notes, b"end %d %s\n" % (attempt, end.encode()))
if end.startswith("exit"):
    os._exit(int(end[4:]))
os.kill(os.getpid(), int(end[6:]))
time.sleep(60)
"""


class Plan(msgspec.Struct):
    """What the test knows of one run."""

    kind: str
    record: Path
    lines: int
    end: str
    max_restarts: int = 0
    id: str = ""
    killed: Counter[str] = msgspec.field(default_factory=Counter)
    stopped: bool = False

    def notes(self) -> list[str]:
        files = (self.record.with_suffix(".begin"), self.record)
        return [note for file in files if file.exists() for note in file.read_text().splitlines()]

    def __str__(self) -> str:
        killed = ", ".join(f"{role} {n}x" for role, n in self.killed.items()) or "nobody"
        stopped = ", stopped" if self.stopped else ""
        return f"meant {self.end}, begun {self.begun}, killed {killed}{stopped}"

    @property
    def begun(self) -> int:
        """The number of attempts that started, by the agent's own record."""
        return sum(note.startswith("begin") for note in self.notes())

    def number_of(self, run: Run) -> int | None:
        """Return the attempt of the run's last process, by its own count.

        An attempt killed before its first record is not counted; None if that was the last one.
        """
        if self.kind == "stream":
            return 1 if self.begun else None
        for note in self.notes():
            if note.startswith("begin") and note.endswith(f" {run.pid}"):
                return int(note.split()[1])
        return None

    def meant(self, attempt: int) -> str | None:
        """How this attempt intended to end."""
        begins = f"end {attempt} "
        results = [note.removeprefix(begins) for note in self.notes() if note.startswith(begins)]
        return results[-1] if results else None

    def wrote(self, attempt: int) -> int:
        """How many lines this attempt has certainly written."""
        return sum(note.startswith(f"wrote {attempt}:") for note in self.notes())


def judge(store: Corral, plan: Plan) -> list[str]:
    run = store.runs.get(plan.id)
    wrong = []
    if run.is_live:
        return [f"still {run.state}"]
    wrong += _end(run, plan)
    wrong += _output(store, run, plan)
    if plan.kind == "stream":
        wrong += _turns(store, run)
    return [f"{text} ({_story(run, plan)})" for text in wrong]


def _output(store: Corral, run: Run, plan: Plan) -> list[str]:
    if not plan.begun:
        return []
    try:
        text = store.outputs.open(run.id)
        data, offset = b"", 0
        while piece := text.bytes(offset, 1 << 20):
            data += piece
            offset += len(piece)
    except CorralError as error:
        lossy = plan.kind == "pty" and plan.killed["supervisor"]
        return [] if lossy else [f"no output: {error.message}"]
    if plan.kind == "stream":
        results = [int(n) for n in re.findall(rb'"type": "text", "text": "(\d+)"', data)]
        if results != list(range(1, len(results) + 1)):
            return [f"the stream is not in order: {results}"]
        whole = plan.meant(1) is not None
        return (
            [f"{len(results)} of {plan.lines} said"] if whole and len(results) < plan.lines else []
        )
    return _lines(data, plan)


def _lines(data: bytes, plan: Plan) -> list[str]:
    wrong = []
    values: dict[int, list[int]] = {}
    for line in data.decode().replace("\r", "").split("\n"):
        if match := re.fullmatch(r"(\d+):(\d{6}) x{40}", line):
            values.setdefault(int(match[1]), []).append(int(match[2]))
        elif line and plan.kind != "pty":
            wrong.append(f"a torn line: {line!r}")
    for attempt in range(1, plan.begun + 1):
        got = values.get(attempt, [])
        if got != list(range(1, len(got) + 1)):
            wrong.append(f"attempt {attempt}: not every line in order")
        # Data still buffered in a terminal is lost with its supervisor.
        lossy = plan.kind == "pty" and plan.killed["supervisor"]
        if len(got) < plan.wrote(attempt) and not lossy:
            wrong.append(f"attempt {attempt}: {len(got)} of {plan.wrote(attempt)} lines")
    return wrong


def _end(run: Run, plan: Plan) -> list[str]:
    """Check that the stored outcome is one that the process can have had."""
    # The last attempt may have ended at the gate; the exit of an earlier one is not its outcome.
    number = plan.number_of(run)
    began = number is not None
    meant = plan.meant(number) if number is not None else None
    if run.exit_code is not None:
        if meant != f"exit{run.exit_code}":
            return [f"exit code {run.exit_code} was never returned"]
    elif run.signal is not None:
        if run.signal not in _signals(plan) and meant != f"signal{run.signal}":
            return [f"signal {run.signal} was sent by nobody"]
    elif not plan.killed["guard"] and began and not _left_the_line(run, plan):
        return ["how it ended is unknown, though its guard lived"]
    if run.exit_code != 0 and not plan.stopped and run.attempts <= plan.max_restarts:
        return ["it had attempts left"]
    states = {RunState.CANCELLED} if plan.stopped else set()
    if run.exit_code is None:
        states.add(RunState.CRASHED)
    else:
        states.add(RunState.COMPLETED if run.exit_code == 0 else RunState.FAILED)
    return [] if run.state in states else [f"state {run.state}"]


def _left_the_line(run: Run, plan: Plan) -> bool:
    """Return whether it was stopped while queued for its next attempt, which has no outcome."""
    return run.state is RunState.CANCELLED and plan.stopped and run.attempts <= plan.max_restarts


def _signals(plan: Plan) -> set[int]:
    """Return the signals that the test or a closing terminal may have sent."""
    result = {int(signal.SIGKILL)} if plan.killed["agent"] else set()
    if plan.kind == "pty" and plan.killed["supervisor"]:
        result.add(int(signal.SIGHUP))
    if plan.stopped:
        result |= {int(signal.SIGTERM), int(signal.SIGKILL)}
    return result


def _turns(store: Corral, run: Run) -> list[str]:
    """Check that the stream's messages are in the session exactly once."""
    assert run.session_id is not None
    results: list[int] = []
    cursor = None
    while True:
        page = store.sessions.turns(run.session_id, after=cursor, limit=200)
        results += [int(turn.content) for turn in page.items if turn.content.isdigit()]
        cursor = page.next
        if cursor is None:
            break
    if results != sorted(set(results)):
        return [f"turns twice or out of order: {results}"]
    return []


def _story(run: Run, plan: Plan) -> str:
    return (
        f"{run.id} {plan.kind} -> {run.state} exit {run.exit_code} signal {run.signal} "
        f"reason {run.reason!r} attempts {run.attempts}; {plan}"
    )
