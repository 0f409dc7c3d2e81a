"""Layout of tasks along time, with one lane per agent (a Gantt chart)."""

from collections.abc import Iterable
from typing import NamedTuple

from corral.domain.tasks.model import Task, TaskState
from corral.kernel.clock import DAY, HOUR, MINUTE

STEPS = (MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 7 * DAY)
MAX_TICKS = 8
MIN_BAR_WIDTH = 0.4
"""In percent of the chart."""


class TimelineBar(NamedTuple):
    """The latest attempt at a task. Positions are in percent of the chart."""

    task: Task
    start: int
    end: int
    x: float
    width: float
    review: float
    """The part at its end during which the task waited for review."""


class TimelineLane(NamedTuple):
    agent_id: str | None
    bars: list[TimelineBar]


class TaskTimeline(NamedTuple):
    start: int
    end: int
    lanes: list[TimelineLane]
    ticks: list[tuple[float, int]]
    """Position in percent, and time."""


def build_timeline(tasks: Iterable[Task], now: int) -> TaskTimeline:
    """Lay out the tasks that are running or have ended, by agent."""
    spans = [(task, *span) for task in tasks if (span := _task_span(task, now)) is not None]
    if not spans:
        return TaskTimeline(now, now, [], [])
    start = min(began for _, began, _, _ in spans)
    end = max(max(ended for _, _, ended, _ in spans), start + 1)
    percent = (end - start) / 100
    by_agent: dict[str | None, list[TimelineBar]] = {}
    for task, began, ended, review in sorted(spans, key=lambda span: span[1]):
        width = max((ended - began) / percent, MIN_BAR_WIDTH)
        x = min((began - start) / percent, 100 - width)
        bar = TimelineBar(task, began, ended, x, width, min(review / percent, width))
        by_agent.setdefault(task.agent_id, []).append(bar)
    lanes = [TimelineLane(agent, bars) for agent, bars in by_agent.items()]
    return TaskTimeline(start, end, lanes, _ticks(start, end))


def _task_span(task: Task, now: int) -> tuple[int, int, int] | None:
    """Return start, end and review time of a task; None for one that was released again."""
    is_active = task.state in (TaskState.RUNNING, TaskState.SUBMITTED)
    if task.started_at is None or not (is_active or task.ended_at):
        return None
    end = max(task.ended_at or now, task.started_at)
    submitted = task.submitted_at
    if submitted is None or submitted < task.started_at:
        return task.started_at, end, 0
    return task.started_at, end, max(end - submitted, 0)


def _ticks(start: int, end: int) -> list[tuple[float, int]]:
    """Return up to MAX_TICKS ticks at round times."""
    span = end - start
    step = next((step for step in STEPS if span / step <= MAX_TICKS), span // MAX_TICKS + 1)
    first = -(-start // step) * step
    return [(100 * (at - start) / span, at) for at in range(first, end + 1, step)]
