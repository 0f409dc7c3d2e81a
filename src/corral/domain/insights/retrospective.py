"""A look back at a session: what happened, how long, at what cost, which files, what failed.

It is made of what the session, its runs and its charges say; nothing is judged.
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

PAGE = 1_000
SHOWN = 20
LONGEST = 300
# Under these names tools are told which file to work on.
FILE_ARGUMENTS = ("file_path", "path", "file", "notebook_path", "filename")
_FAILED = (RunState.FAILED, RunState.CRASHED, RunState.TIMED_OUT, RunState.INTERRUPTED)


class LookBack(msgspec.Struct, frozen=True):
    """What is kept as a retrospective."""

    turns: dict[str, int]
    """How many, by role."""
    tools: dict[str, int]
    """Calls, by tool."""
    files: list[str]
    """Files that tools were told to work on, most often first."""
    failures: list[str]
    """Tools that answered with an error, and runs that did not end well; the latest last."""
    runs: int
    running_ms: int
    """Time in which a run of it was going."""
    began_at: int | None
    ended_at: int | None
    tokens: int
    cost_micros: int | None
    last_words: str | None
    """What the agent said last."""


def look_back(tx: Tx, session: str) -> LookBack:
    """Look back at a session as it is now."""
    found = sessions.get(tx, session)
    roles: Counter[str] = Counter()
    tools: Counter[str] = Counter()
    files: Counter[str] = Counter()
    failures: list[str] = []
    first: Turn | None = None
    last: Turn | None = None
    words: str | None = None
    after: str | None = None
    while True:
        page = sessions.turns(tx, found, after=after, limit=PAGE)
        for turn in page.items:
            first, last = first or turn, turn
            roles[turn.role] += 1
            _count_tools(turn, tools, files, failures)
            if turn.role == "assistant" and turn.content:
                words = turn.content
        after = page.next
        if len(page.items) < PAGE or after is None:
            break
    own = _runs_of(tx, found.id)
    failures += [f"{run.id} {run.state}: {run.reason}" for run in own if run.state in _FAILED]
    total = charges.total(tx, f"session:{found.id}")
    return LookBack(
        turns=dict(roles),
        tools=dict(tools.most_common(SHOWN)),
        files=[name for name, _ in files.most_common(SHOWN)],
        failures=failures[-SHOWN:],
        runs=len(own),
        running_ms=sum(_lasted(tx, run) for run in own),
        began_at=first.at if first else None,
        ended_at=last.at if last else None,
        tokens=total.tokens,
        cost_micros=total.cost_micros,
        last_words=words[:LONGEST] if words else None,
    )


def _count_tools(turn: Turn, tools: Counter[str], files: Counter[str], failures: list[str]) -> None:
    if turn.role == "assistant" and turn.tool_name:
        tools[turn.tool_name] += 1
        if (name := _file_in(turn.arguments)) is not None:
            files[name] += 1
    elif turn.role == "tool" and turn.is_error:
        failures.append(f"{turn.tool_name or 'tool'}: {turn.content[:LONGEST]}")


def _file_in(arguments: Any) -> str | None:
    if not isinstance(arguments, dict):
        return None
    named = (arguments.get(name) for name in FILE_ARGUMENTS)
    return next((value[:LONGEST] for value in named if isinstance(value, str) and value), None)


def _runs_of(tx: Tx, session_id: str) -> list[Run]:
    """Oldest first, as many as a page holds."""
    return runs.list_runs(tx, session=session_id, limit=PAGE).items[::-1]


def _lasted(tx: Tx, run: Run) -> int:
    return 0 if run.started_at is None else (run.ended_at or tx.now) - run.started_at
