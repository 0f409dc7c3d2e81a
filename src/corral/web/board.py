"""A project's tasks: as a board, as a graph, along time, by cost; and one of them."""

from datetime import UTC, datetime
from itertools import islice, pairwise
from typing import Any, NamedTuple

from starlette.responses import Response

from corral.domain.insights.model import Moment, Then
from corral.domain.projects.model import Project
from corral.domain.tasks.model import MOVES, Graph, Task, TaskState
from corral.kernel.errors import Invalid
from corral.web.graph_layout import HEIGHT, WIDTH, lay_out
from corral.web.request import Visit
from corral.web.task_lanes import in_lanes

S = TaskState
PROJECTS = 100
LOOKED_AT = 20
"""So many projects are asked for tasks when none is named."""
CARDS = 25
"""Of each state; the rest is in its list."""
DRAWN = 300
"""Tasks of a graph; those that are not over come first."""
BARS = 200
EVENTS = 50
THEN = 1_000
"""Tasks of a board of the past."""
LATELY = 8

VIEWS = {"Board": "/board", "Graph": "/board/graph", "Timeline": "/board/timeline"}
VIEWS |= {"Costs": "/board/costs"}

# What a person may do with a task; the rest is for whoever does it.
VERBS = {
    "accept": "Accept",
    "reject": "Reject",
    "resume": "Resume",
    "retry": "Try again",
    "reopen": "Reopen",
    "reassign": "Take back",
    "pause": "Pause",
    "skip": "Skip",
    "cancel": "Cancel",
}
# These want a reason, so they are asked for by a dialog.
ASKS = {"reject": "reject", "skip": "leave-out", "cancel": "leave-out"}


class Column(NamedTuple):
    name: str
    title: str
    states: tuple[TaskState, ...]


COLUMNS = (
    Column("waiting", "Waiting", (S.PENDING, S.BLOCKED, S.PAUSED)),
    Column("ready", "Ready", (S.READY,)),
    Column("running", "Running", (S.RUNNING,)),
    Column("submitted", "Submitted", (S.SUBMITTED,)),
    Column("done", "Done", (S.DONE,)),
    Column("out", "Left out", (S.FAILED, S.SKIPPED, S.CANCELLED)),
)


class Choice(NamedTuple):
    """A move that is legal, and the columns on which a card may be dropped for it."""

    verb: str
    label: str
    columns: str
    asks: str | None


def choices(state: str) -> list[Choice]:
    """What may be done with a task in a state: the table of moves says it."""
    allowed = MOVES.allowed_from(state)
    return [
        Choice(verb, label, _columns(MOVES[verb].to), ASKS.get(verb))
        for verb, label in VERBS.items()
        if verb in allowed
    ]


def _columns(to: str) -> str:
    # What goes back is pending, and ready in the same moment when all that it needs is there.
    return " ".join(
        column.name
        for column in COLUMNS
        if to in column.states or (to == S.PENDING and column.name == "ready")
    )


def show(visit: Visit) -> Response:
    """The board; or, of one state, the whole list."""
    state = visit.asked("state")
    if state is not None and state not in [*TaskState]:
        raise Invalid(f"{state!r} is no state of a task; those are {', '.join(TaskState)}.")
    projects, project = _project(visit)
    store = visit.store
    columns: list[tuple[Column, list[Task]]] = []
    counts: dict[str, int] = {}
    page = None
    if project is not None:
        counts = store.tasks.counts(project.id)
        if state is not None:
            page = store.tasks.list(project=project.id, state=state, after=visit.asked("after"))
        else:
            columns = [(column, _cards(visit, project, column, counts)) for column in COLUMNS]
    shown = [task for _, tasks in columns for task in tasks] + (page.items if page else [])
    return visit.show(
        "board.html",
        columns=columns,
        counts=counts,
        page=page,
        state=state,
        choices=choices,
        names=visit.names(_ids(shown)),
        **_head(projects, project, "Board"),
    )


def show_graph(visit: Visit) -> Response:
    projects, project = _project(visit)
    graph = visit.store.tasks.graph(project.id) if project else Graph([], [], [], {})
    # What is not over yet first, then what ended last.
    inner = sorted(graph.tasks, key=lambda task: (task.ended_at is not None, -(task.ended_at or 0)))
    tasks = {task.id: task for task in inner[:DRAWN]}
    needs: dict[str, list[str]] = {task.id: [] for task in graph.tasks if task.id in tasks}
    for task_id, need in graph.edges:
        if task_id in needs and need in needs:
            needs[task_id].append(need)
    path = graph.critical_path
    return visit.show(
        "graph.html",
        layout=lay_out(needs),
        tasks=tasks,
        critical={*path},
        steps={(task, need) for need, task in pairwise(path)},
        path=[tasks[id] for id in path if id in tasks],
        size=(WIDTH, HEIGHT),
        left_out=len(graph.tasks) - len(tasks),
        counts=graph.counts,
        names=visit.names(_ids(tasks.values())),
        **_head(projects, project, "Graph"),
    )


def show_timeline(visit: Visit) -> Response:
    """Who did what along time; and the board as it was at any moment of it."""
    projects, project = _project(visit)
    now = visit.store.now()
    at = _moment(visit, now)
    tasks = visit.store.tasks.graph(project.id).tasks if project else []
    begun = [task for task in tasks if task.started_at is not None]
    begun.sort(key=lambda task: -(task.started_at or 0))
    start = min((task.created_at for task in tasks), default=now)
    then = None
    if project is not None and at is not None and visit.part != "live":
        then = visit.store.insights.moment(project.id, at, limit=THEN)
    return visit.show(
        "timeline.html",
        found=in_lanes(begun[:BARS], now),
        left_out=max(len(begun) - BARS, 0),
        names=visit.names(_ids(begun[:BARS])),
        span=(min(start, at or now), now),
        then=then,
        columns=_columns_then(then) if then else [],
        lately=_lately(then) if then else [],
        **_head(projects, project, "Timeline"),
    )


def _moment(visit: Visit, now: int) -> int | None:
    """The moment that was asked for: as a time in UTC, or by the slider in milliseconds."""
    if time := visit.asked("time"):
        try:
            asked = datetime.fromisoformat(time)
            return round(asked.replace(tzinfo=asked.tzinfo or UTC).timestamp() * 1_000)
        except (ValueError, OverflowError, OSError):
            raise Invalid(f"{time[:50]!r} is no moment; write one like 2027-01-15T09:00.") from None
    if (at := visit.asked("at")) is None:
        return None
    if not (at.isascii() and at.isdigit()) or len(at) > 15:
        raise Invalid(f"{at[:50]!r} is no moment in milliseconds.", at=at[:50])
    # The slider ends where the browser's page began, which may be a moment ahead of the store.
    return min(int(at), now)


def _columns_then(then: Moment) -> list[tuple[Column, list[Then]]]:
    unknown = Column("unknown", "Not known", ())
    found = [
        (column, [task for task in then.tasks if task.state in column.states]) for column in COLUMNS
    ]
    lost = [task for task in then.tasks if task.state is None]
    return [*found, (unknown, lost)] if lost else found


def _lately(then: Moment) -> list[Then]:
    """What had happened last."""
    moved = [task for task in then.tasks if task.since is not None]
    return sorted(moved, key=lambda task: -(task.since or 0))[:LATELY]


def show_costs(visit: Visit) -> Response:
    projects, project = _project(visit)
    store = visit.store
    page = store.insights.task_costs(project.id, after=visit.asked("after")) if project else None
    rows = page.items if page else []
    return visit.show(
        "task_costs.html",
        page=page,
        names=visit.names((row.agent_id for row in rows), (row.run_id for row in rows)),
        **_head(projects, project, "Costs"),
    )


def show_one(visit: Visit) -> Response:
    store = visit.store
    task = store.tasks.get(visit.path("id"))
    return visit.show(
        "task.html",
        task=task,
        choices=choices(task.state),
        progress=store.progress.list(task_id=task.id, limit=10).items,
        history=store.events.newest(subject=task.id, limit=EVENTS).items[::-1],
        cost=store.insights.task_cost(task.id),
        names=visit.names([task.project_id, task.run_id], _ids([task])),
    )


def _project(visit: Visit) -> tuple[list[Project], Project | None]:
    """The projects to choose from, and the one that was chosen: else the one that was used last
    and has tasks."""
    store = visit.store
    known = store.projects.list(limit=PROJECTS).items
    if named := visit.asked("project"):
        return known, store.projects.get(named)
    with_tasks = (each for each in islice(known, LOOKED_AT) if store.tasks.counts(each.id))
    return known, next(with_tasks, known[0] if known else None)


def _cards(visit: Visit, project: Project, column: Column, counts: dict[str, int]) -> list[Task]:
    return [
        task
        for state in column.states
        if counts.get(state)
        for task in visit.store.tasks.list(project=project.id, state=state, limit=CARDS).items
    ]


def _head(projects: list[Project], project: Project | None, view: str) -> dict[str, Any]:
    return {"projects": projects, "project": project, "views": VIEWS, "view": view}


def _ids(tasks: Any) -> list[str | None]:
    return [id for task in tasks for id in (task.agent_id, task.assignee_id)]
