"""Tasks along time: who did what from when to when, one lane for each agent."""

from collections.abc import Iterable
from typing import NamedTuple

from corral.domain.tasks.model import Task, TaskState
from corral.kernel.clock import DAY, HOUR, MINUTE

STEPS = (MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 7 * DAY)
MOST_TICKS = 8
SHORTEST = 0.4
"""A bar is never thinner than this, in percent of the whole."""


class Bar(NamedTuple):
    task: Task
    start: int
    end: int
    x: float
    """Where it begins, and how long it is, in percent of the whole."""
    width: float
    review: float
    """How much of it, at its end, was waiting to be accepted, in percent of the whole."""


class Lane(NamedTuple):
    agent_id: str | None
    bars: list[Bar]


class Lanes(NamedTuple):
    start: int
    end: int
    lanes: list[Lane]
    ticks: list[tuple[float, int]]
    """Where in percent of the whole, and the moment."""


def in_lanes(tasks: Iterable[Task], now: int) -> Lanes:
    """What was begun and what is under way, by agent; each with its last attempt."""
    spans = [(task, *span) for task in tasks if (span := _span(task, now)) is not None]
    if not spans:
        return Lanes(now, now, [], [])
    start = min(began for _, began, _, _ in spans)
    end = max(max(ended for _, _, ended, _ in spans), start + 1)
    whole = (end - start) / 100
    by_agent: dict[str | None, list[Bar]] = {}
    for task, began, ended, review in sorted(spans, key=lambda span: span[1]):
        width = max((ended - began) / whole, SHORTEST)
        x = min((began - start) / whole, 100 - width)
        bar = Bar(task, began, ended, x, width, min(review / whole, width))
        by_agent.setdefault(task.agent_id, []).append(bar)
    lanes = [Lane(agent, bars) for agent, bars in by_agent.items()]
    return Lanes(start, end, lanes, _ticks(start, end))


def _span(task: Task, now: int) -> tuple[int, int, int] | None:
    """When it began and ended, and for how long it waited to be accepted."""
    under_way = task.state in (TaskState.RUNNING, TaskState.SUBMITTED)
    if task.started_at is None or not (under_way or task.ended_at):
        return None  # it was given back, and waits again
    end = max(task.ended_at or now, task.started_at)
    submitted = task.submitted_at
    if submitted is None or submitted < task.started_at:
        return task.started_at, end, 0
    return task.started_at, end, max(end - submitted, 0)


def _ticks(start: int, end: int) -> list[tuple[float, int]]:
    span = end - start
    step = next((step for step in STEPS if span / step <= MOST_TICKS), span // MOST_TICKS + 1)
    first = -(-start // step) * step
    return [(100 * (at - start) / span, at) for at in range(first, end + 1, step)]
