"""Retrospectives: what happened in a session, how long it took, cost, files and failures.

They are computed from the session, its runs and its charges, without judgement.
"""

from collections import Counter
from typing import Any

import msgspec

from corral.db.tx import Tx
from corral.domain.charges import ops as charges
from corral.domain.runs import ops as runs
from corral.domain.runs.model import Run, RunState
from corral.domain.sessions import ops as sessions
from corral.domain.sessions.model import Turn

PAGE_SIZE = 1_000
MAX_SHOWN = 20
MAX_EXCERPT = 300
# The argument names by which tools get the file to work on.
FILE_ARGUMENTS = ("file_path", "path", "file", "notebook_path", "filename")
_FAILED = (RunState.FAILED, RunState.CRASHED, RunState.TIMED_OUT, RunState.INTERRUPTED)


class Retrospective(msgspec.Struct, frozen=True):
    """The content of a retrospective."""

    turns: dict[str, int]
    """The number of turns by role."""
    tools: dict[str, int]
    """The number of calls by tool."""
    files: list[str]
    """The files that tools worked on, most frequent first."""
    failures: list[str]
    """Tool errors and failed runs, latest last."""
    runs: int
    running_ms: int
    """The total duration of its runs."""
    began_at: int | None
    ended_at: int | None
    tokens: int
    cost_micros: int | None
    last_words: str | None
    """The beginning of the agent's last message."""


def build_retrospective(tx: Tx, session: str) -> Retrospective:
    """Compute the retrospective of a session as of now."""
    current = sessions.get(tx, session)
    roles: Counter[str] = Counter()
    tools: Counter[str] = Counter()
    files: Counter[str] = Counter()
    failures: list[str] = []
    first: Turn | None = None
    last: Turn | None = None
    last_message: str | None = None
    after: str | None = None
    while True:
        page = sessions.list_turns(tx, current, after=after, limit=PAGE_SIZE)
        for turn in page.items:
            first, last = first or turn, turn
            roles[turn.role] += 1
            _count_tools(turn, tools, files, failures)
            if turn.role == "assistant" and turn.content:
                last_message = turn.content
        after = page.next
        if len(page.items) < PAGE_SIZE or after is None:
            break
    session_runs = _list_runs(tx, current.id)
    failures += [
        f"{run.id} {run.state}: {run.reason}" for run in session_runs if run.state in _FAILED
    ]
    total = charges.get_total(tx, f"session:{current.id}")
    return Retrospective(
        turns=dict(roles),
        tools=dict(tools.most_common(MAX_SHOWN)),
        files=[name for name, _ in files.most_common(MAX_SHOWN)],
        failures=failures[-MAX_SHOWN:],
        runs=len(session_runs),
        running_ms=sum(_measure_duration_ms(tx, run) for run in session_runs),
        began_at=first.at if first else None,
        ended_at=last.at if last else None,
        tokens=total.tokens,
        cost_micros=total.cost_micros,
        last_words=last_message[:MAX_EXCERPT] if last_message else None,
    )


def _count_tools(turn: Turn, tools: Counter[str], files: Counter[str], failures: list[str]) -> None:
    if turn.role == "assistant" and turn.tool_name:
        tools[turn.tool_name] += 1
        if (name := _find_file(turn.arguments)) is not None:
            files[name] += 1
    elif turn.role == "tool" and turn.is_error:
        failures.append(f"{turn.tool_name or 'tool'}: {turn.content[:MAX_EXCERPT]}")


def _find_file(arguments: Any) -> str | None:
    if not isinstance(arguments, dict):
        return None
    values = (arguments.get(name) for name in FILE_ARGUMENTS)
    return next((value[:MAX_EXCERPT] for value in values if isinstance(value, str) and value), None)


def _list_runs(tx: Tx, session_id: str) -> list[Run]:
    """List the latest runs of a session, oldest first; at most one page."""
    return runs.list_runs(tx, session=session_id, limit=PAGE_SIZE).items[::-1]


def _measure_duration_ms(tx: Tx, run: Run) -> int:
    return 0 if run.started_at is None else (run.ended_at or tx.now) - run.started_at
