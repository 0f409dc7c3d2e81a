"""Runs: the list and the page of one run."""

from contextlib import suppress
from itertools import pairwise

from starlette.responses import Response

from corral.domain.runs.model import ResourceSample, Run, RunState
from corral.kernel.errors import NotFound
from corral.web.plots import Plot, PlotSeries
from corral.web.render import clock_time
from corral.web.request import PageRequest
from corral.web.sessions import TurnView, pair_tool_results

LIVE = "live"
# What a new run may do without approval, as values of `--yes`.
APPROVALS = {
    "edit": "Edit files",
    "edit,run": "Edit files and run commands",
    "all": "Everything",
    "": "Nothing",
}
MAX_LOG_LINES = 200
MAX_EVENTS = 100
MAX_CHARGES = 20
MAX_PROJECTS = 100
MAX_AGENTS = 200
MAX_TURNS = 6


def show_all(request: PageRequest) -> Response:
    state, project = request.query("state"), request.query("project")
    page = request.store.runs.list(
        project=project,
        state=None if state == LIVE else state,
        live=state == LIVE,
        after=request.query("after"),
    )
    return request.render(
        "runs.html",
        page=page,
        states=[LIVE, *RunState],
        state=state,
        project=project,
        projects=request.store.projects.list(limit=MAX_PROJECTS).items,
        agents=request.store.agents.list(limit=MAX_AGENTS).items if request.can_write else [],
        approvals=APPROVALS,
        names=request.names(
            (run.project_id for run in page.items), (run.agent_id for run in page.items)
        ),
    )


def show_one(request: PageRequest) -> Response:
    store = request.store
    stored = store.runs.get(request.path_param("id"))
    run = store.try_write_before_read(stored.id, lambda: store.runs.refresh(stored)) or stored
    output = None
    with suppress(NotFound):
        output = store.outputs.get(run.id)
    samples = store.runs.samples(run.id)
    return request.render(
        "run.html",
        run=run,
        launch=store.runs.get_launch(run.id),
        output=output,
        total=store.charges.total(f"run:{run.id}"),
        charges=store.charges.list(run=run.id, limit=MAX_CHARGES),
        timeline=store.events.newest(subject=run.id, limit=MAX_EVENTS).items[::-1],
        log=store.outputs.log_lines(run.id, limit=MAX_LOG_LINES),
        samples=samples,
        plots=_plots(samples),
        times=[clock_time(sample.at) for sample in samples],
        turns=_last_turns(request, run),
        names=request.names([run.project_id, run.agent_id, run.session_id, run.parent_id]),
        has_failed=run.state in _FAILED,
    )


_FAILED = (RunState.FAILED, RunState.CRASHED, RunState.TIMED_OUT, RunState.INTERRUPTED)


def _last_turns(request: PageRequest, run: Run) -> list[TurnView]:
    """Return the end of the run's conversation; empty if it was deleted."""
    if run.session_id is not None:
        with suppress(NotFound):
            return pair_tool_results(request.store.sessions.last(run.session_id, MAX_TURNS).items)
    return []


def _plots(samples: list[ResourceSample]) -> list[Plot]:
    """Plot CPU and memory of the whole process tree."""
    if len(samples) < 2:
        return []
    x = [sample.at / 1_000 for sample in samples]
    busy: list[float | None] = [None]
    for before, after in pairwise(samples):
        elapsed = max(after.at - before.at, 1)
        busy.append(round(100 * max(after.cpu_ms - before.cpu_ms, 0) / elapsed, 1))
    memory: list[float | None] = [round(s.memory_bytes / 1024**2, 1) for s in samples]
    return [
        Plot("CPU", "%", "line", x, [PlotSeries("one core", busy)]),
        Plot("Memory", "MiB", "line", x, [PlotSeries("memory", memory)]),
    ]
