"""Tasks of a project: board, graph, timeline, costs, and the page of one task."""

from datetime import UTC, datetime
from itertools import islice, pairwise
from typing import Any, NamedTuple

from starlette.responses import Response

from corral.domain.insights.model import PastBoard, PastTask
from corral.domain.projects.model import Project
from corral.domain.tasks.model import TRANSITIONS, Task, TaskGraph, TaskState
from corral.kernel.errors import Invalid
from corral.web.graph_layout import NODE_HEIGHT, NODE_WIDTH, layout_graph
from corral.web.request import PageRequest
from corral.web.task_timeline import build_timeline

MAX_PROJECTS = 100
MAX_PROJECTS_SEARCHED = 20
"""How many projects are searched for tasks when none is named."""
MAX_CARDS = 25
"""Per state; the rest is on the page of the state."""
MAX_GRAPH_TASKS = 300
MAX_TIMELINE_BARS = 200
MAX_EVENTS = 50
MAX_REPLAY_TASKS = 1_000
MAX_RECENT_CHANGES = 8

VIEWS = {"Board": "/board", "Graph": "/board/graph", "Timeline": "/board/timeline"}
VIEWS |= {"Costs": "/board/costs"}

# The verbs for people; the others belong to the agent that does the task.
TASK_VERBS = {
    "accept": "Accept",
    "reject": "Reject",
    "resume": "Resume",
    "retry": "Retry",
    "reopen": "Reopen",
    "reassign": "Unassign",
    "pause": "Pause",
    "skip": "Skip",
    "cancel": "Cancel",
}
# Verbs that need a reason open a dialog.
DIALOGS = {"reject": "reject", "skip": "skip-or-cancel", "cancel": "skip-or-cancel"}


class BoardColumn(NamedTuple):
    name: str
    title: str
    states: tuple[TaskState, ...]


BOARD_COLUMNS = (
    BoardColumn("waiting", "Waiting", (TaskState.PENDING, TaskState.BLOCKED, TaskState.PAUSED)),
    BoardColumn("ready", "Ready", (TaskState.READY,)),
    BoardColumn("running", "Running", (TaskState.RUNNING,)),
    BoardColumn("submitted", "Submitted", (TaskState.SUBMITTED,)),
    BoardColumn("done", "Done", (TaskState.DONE,)),
    BoardColumn("out", "Closed", (TaskState.FAILED, TaskState.SKIPPED, TaskState.CANCELLED)),
)


class TaskAction(NamedTuple):
    """A legal verb, and the columns onto which a card can be dropped for it."""

    verb: str
    label: str
    columns: str
    dialog: str | None


def list_task_actions(state: str) -> list[TaskAction]:
    """Return the actions on a task in a state, from the transition table."""
    allowed = TRANSITIONS.allowed_from(state)
    return [
        TaskAction(verb, label, _columns(TRANSITIONS[verb].to), DIALOGS.get(verb))
        for verb, label in TASK_VERBS.items()
        if verb in allowed
    ]


def _columns(to: str) -> str:
    # A pending task becomes ready in the same transaction when its dependencies are done.
    return " ".join(
        column.name
        for column in BOARD_COLUMNS
        if to in column.states or (to == TaskState.PENDING and column.name == "ready")
    )


def show(request: PageRequest) -> Response:
    """Show the board; with `state`, the list of all tasks in that state."""
    state = request.query("state")
    if state is not None and state not in [*TaskState]:
        raise Invalid(f"Invalid task state {state!r}: expected one of {', '.join(TaskState)}.")
    projects, project = _select_project(request)
    store = request.store
    columns: list[tuple[BoardColumn, list[Task]]] = []
    counts: dict[str, int] = {}
    page = None
    if project is not None:
        counts = store.tasks.counts(project.id)
        if state is not None:
            page = store.tasks.list(project=project.id, state=state, after=request.query("after"))
        else:
            columns = [
                (column, _cards(request, project, column, counts)) for column in BOARD_COLUMNS
            ]
    shown = [task for _, tasks in columns for task in tasks] + (page.items if page else [])
    return request.render(
        "task_board.html",
        columns=columns,
        counts=counts,
        page=page,
        state=state,
        list_actions=list_task_actions,
        names=request.names(_ids(shown)),
        **_head(projects, project, "Board"),
    )


def show_graph(request: PageRequest) -> Response:
    projects, project = _select_project(request)
    graph = request.store.tasks.graph(project.id) if project else TaskGraph([], [], [], {})
    # Open tasks first, then the latest closed ones.
    by_relevance = sorted(
        graph.tasks, key=lambda task: (task.ended_at is not None, -(task.ended_at or 0))
    )
    tasks = {task.id: task for task in by_relevance[:MAX_GRAPH_TASKS]}
    needs: dict[str, list[str]] = {task.id: [] for task in graph.tasks if task.id in tasks}
    for task_id, need in graph.edges:
        if task_id in needs and need in needs:
            needs[task_id].append(need)
    path = graph.critical_path
    return request.render(
        "task_graph.html",
        layout=layout_graph(needs),
        tasks=tasks,
        critical={*path},
        steps={(task, need) for need, task in pairwise(path)},
        path=[tasks[id] for id in path if id in tasks],
        size=(NODE_WIDTH, NODE_HEIGHT),
        omitted=len(graph.tasks) - len(tasks),
        counts=graph.counts,
        names=request.names(_ids(tasks.values())),
        **_head(projects, project, "Graph"),
    )


def show_timeline(request: PageRequest) -> Response:
    """Show the timeline, and the board as it was at a given time."""
    projects, project = _select_project(request)
    now = request.store.now()
    at = _replay_time(request, now)
    tasks = request.store.tasks.graph(project.id).tasks if project else []
    started = [task for task in tasks if task.started_at is not None]
    started.sort(key=lambda task: -(task.started_at or 0))
    start = min((task.created_at for task in tasks), default=now)
    then = None
    if project is not None and at is not None and request.fragment != "live":
        then = request.store.insights.board_at(project.id, at, limit=MAX_REPLAY_TASKS)
    return request.render(
        "task_timeline.html",
        timeline=build_timeline(started[:MAX_TIMELINE_BARS], now),
        omitted=max(len(started) - MAX_TIMELINE_BARS, 0),
        names=request.names(_ids(started[:MAX_TIMELINE_BARS])),
        span=(min(start, at or now), now),
        then=then,
        columns=_replay_columns(then) if then else [],
        recent=_recent_changes(then) if then else [],
        **_head(projects, project, "Timeline"),
    )


def _replay_time(request: PageRequest, now: int) -> int | None:
    """Return the time to replay: `time` in UTC, or `at` of the slider in milliseconds."""
    if time := request.query("time"):
        try:
            parsed = datetime.fromisoformat(time)
            return round(parsed.replace(tzinfo=parsed.tzinfo or UTC).timestamp() * 1_000)
        except (ValueError, OverflowError, OSError):
            raise Invalid(
                f"Invalid time {time[:50]!r}: expected the form 2027-01-15T09:00."
            ) from None
    if (at := request.query("at")) is None:
        return None
    if not (at.isascii() and at.isdigit()) or len(at) > 15:
        raise Invalid(f"Invalid time {at[:50]!r}: expected milliseconds.", at=at[:50])
    # The browser's clock may be ahead of the store's.
    return min(int(at), now)


def _replay_columns(then: PastBoard) -> list[tuple[BoardColumn, list[PastTask]]]:
    unknown = BoardColumn("unknown", "Unknown", ())
    columns = [
        (column, [task for task in then.tasks if task.state in column.states])
        for column in BOARD_COLUMNS
    ]
    unknown_tasks = [task for task in then.tasks if task.state is None]
    return [*columns, (unknown, unknown_tasks)] if unknown_tasks else columns


def _recent_changes(then: PastBoard) -> list[PastTask]:
    """Return the tasks that changed last before the replayed time."""
    changed = [task for task in then.tasks if task.since is not None]
    return sorted(changed, key=lambda task: -(task.since or 0))[:MAX_RECENT_CHANGES]


def show_costs(request: PageRequest) -> Response:
    projects, project = _select_project(request)
    store = request.store
    page = store.insights.task_costs(project.id, after=request.query("after")) if project else None
    rows = page.items if page else []
    return request.render(
        "task_costs.html",
        page=page,
        names=request.names((row.agent_id for row in rows), (row.run_id for row in rows)),
        **_head(projects, project, "Costs"),
    )


def show_one(request: PageRequest) -> Response:
    store = request.store
    task = store.tasks.get(request.path_param("id"))
    return request.render(
        "task.html",
        task=task,
        actions=list_task_actions(task.state),
        progress=store.progress.list(task_id=task.id, limit=10).items,
        history=store.events.newest(subject=task.id, limit=MAX_EVENTS).items[::-1],
        cost=store.insights.task_cost(task.id),
        names=request.names([task.project_id, task.run_id], _ids([task])),
    )


def _select_project(request: PageRequest) -> tuple[list[Project], Project | None]:
    """Return the projects to choose from, and the selected one.

    Without a selection this is the most recently used project that has tasks.
    """
    store = request.store
    known = store.projects.list(limit=MAX_PROJECTS).items
    if name := request.query("project"):
        return known, store.projects.get(name)
    with_tasks = (
        project
        for project in islice(known, MAX_PROJECTS_SEARCHED)
        if store.tasks.counts(project.id)
    )
    return known, next(with_tasks, known[0] if known else None)


def _cards(
    request: PageRequest, project: Project, column: BoardColumn, counts: dict[str, int]
) -> list[Task]:
    return [
        task
        for state in column.states
        if counts.get(state)
        for task in request.store.tasks.list(project=project.id, state=state, limit=MAX_CARDS).items
    ]


def _head(projects: list[Project], project: Project | None, view: str) -> dict[str, Any]:
    return {"projects": projects, "project": project, "views": VIEWS, "view": view}


def _ids(tasks: Any) -> list[str | None]:
    return [id for task in tasks for id in (task.agent_id, task.assignee_id)]
