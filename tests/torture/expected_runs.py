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
    except OSError:  # the terminal is closed
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
        killed = ", ".join(f"{role} {n}x" for role, n in self.killed.items()) or "none"
        stopped = ", stopped" if self.stopped else ""
        return f"intended {self.end}, started {self.started_attempts}, killed {killed}{stopped}"

    @property
    def started_attempts(self) -> int:
        """The number of attempts that started, by the agent's own record."""
        return sum(note.startswith("begin") for note in self.notes())

    def attempt_of(self, run: Run) -> int | None:
        """Return the attempt of the run's last process, by its own count.

        An attempt killed before its first record is not counted; None if that was the last one.
        """
        if self.kind == "stream":
            return 1 if self.started_attempts else None
        for note in self.notes():
            if note.startswith("begin") and note.endswith(f" {run.pid}"):
                return int(note.split()[1])
        return None

    def intended_end(self, attempt: int) -> str | None:
        """How this attempt intended to end."""
        begins = f"end {attempt} "
        results = [note.removeprefix(begins) for note in self.notes() if note.startswith(begins)]
        return results[-1] if results else None

    def count_written(self, attempt: int) -> int:
        """How many lines this attempt has certainly written."""
        return sum(note.startswith(f"wrote {attempt}:") for note in self.notes())


def judge(store: Corral, plan: Plan) -> list[str]:
    run = store.runs.get(plan.id)
    wrong = []
    if run.is_live:
        return [f"still {run.state}"]
    wrong += _check_end(run, plan)
    wrong += _check_output(store, run, plan)
    if plan.kind == "stream":
        wrong += _check_turns(store, run)
    return [f"{text} ({_describe(run, plan)})" for text in wrong]


def _check_output(store: Corral, run: Run, plan: Plan) -> list[str]:
    if not plan.started_attempts:
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
        is_complete = plan.intended_end(1) is not None
        return (
            [f"{len(results)} of {plan.lines} printed"]
            if is_complete and len(results) < plan.lines
            else []
        )
    return _check_lines(data, plan)


def _check_lines(data: bytes, plan: Plan) -> list[str]:
    wrong = []
    lines_by_attempt: dict[int, list[int]] = {}
    for line in data.decode().replace("\r", "").split("\n"):
        if match := re.fullmatch(r"(\d+):(\d{6}) x{40}", line):
            lines_by_attempt.setdefault(int(match[1]), []).append(int(match[2]))
        elif line and plan.kind != "pty":
            wrong.append(f"a torn line: {line!r}")
    for attempt in range(1, plan.started_attempts + 1):
        numbers = lines_by_attempt.get(attempt, [])
        if numbers != list(range(1, len(numbers) + 1)):
            wrong.append(f"attempt {attempt}: not every line in order")
        # Data still buffered in a terminal is lost with its supervisor.
        lossy = plan.kind == "pty" and plan.killed["supervisor"]
        if len(numbers) < plan.count_written(attempt) and not lossy:
            wrong.append(
                f"attempt {attempt}: {len(numbers)} of {plan.count_written(attempt)} lines"
            )
    return wrong


def _check_end(run: Run, plan: Plan) -> list[str]:
    """Check that the stored outcome is one that the process can have had."""
    # The last attempt may have ended before its launch; then no earlier exit counts.
    number = plan.attempt_of(run)
    was_started = number is not None
    intended = plan.intended_end(number) if number is not None else None
    if run.exit_code is not None:
        if intended != f"exit{run.exit_code}":
            return [f"exit code {run.exit_code} was never returned"]
    elif run.signal is not None:
        if run.signal not in _possible_signals(plan) and intended != f"signal{run.signal}":
            return [f"signal {run.signal} was not sent"]
    elif not plan.killed["guard"] and was_started and not _was_stopped_in_queue(run, plan):
        return ["the exit status is unknown although the guard was not killed"]
    if run.exit_code != 0 and not plan.stopped and run.attempts <= plan.max_restarts:
        return ["restarts were left"]
    states = {RunState.CANCELLED} if plan.stopped else set()
    if run.exit_code is None:
        states.add(RunState.CRASHED)
    else:
        states.add(RunState.COMPLETED if run.exit_code == 0 else RunState.FAILED)
    return [] if run.state in states else [f"state {run.state}"]


def _was_stopped_in_queue(run: Run, plan: Plan) -> bool:
    """Return whether it was stopped while queued for its next attempt, which has no outcome."""
    return run.state is RunState.CANCELLED and plan.stopped and run.attempts <= plan.max_restarts


def _possible_signals(plan: Plan) -> set[int]:
    """Return the signals that the test or a closing terminal may have sent."""
    result = {int(signal.SIGKILL)} if plan.killed["agent"] else set()
    if plan.kind == "pty" and plan.killed["supervisor"]:
        result.add(int(signal.SIGHUP))
    if plan.stopped:
        result |= {int(signal.SIGTERM), int(signal.SIGKILL)}
    return result


def _check_turns(store: Corral, run: Run) -> list[str]:
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


def _describe(run: Run, plan: Plan) -> str:
    return (
        f"{run.id} {plan.kind} -> {run.state} exit {run.exit_code} signal {run.signal} "
        f"reason {run.reason!r} attempts {run.attempts}; {plan}"
    )
