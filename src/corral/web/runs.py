"""Runs: the list, and everything about one of them."""

from contextlib import suppress
from itertools import pairwise

from starlette.responses import Response

from corral.domain.runs.model import Run, RunState, Sample
from corral.kernel.errors import NotFound
from corral.web.plots import Line, Plot
from corral.web.render import clock_time
from corral.web.request import Visit
from corral.web.sessions import Said, in_pairs

LIVE = "live"
# What a new run may do without asking, as `--yes` takes it.
APPROVALS = {
    "edit": "Edit files",
    "edit,run": "Edit files and run commands",
    "all": "Everything",
    "": "Nothing",
}
LOG_LINES = 200
EVENTS = 100
CHARGES = 20
PROJECTS = 100
AGENTS = 200
TURNS = 6


def show_all(visit: Visit) -> Response:
    state, project = visit.asked("state"), visit.asked("project")
    page = visit.store.runs.list(
        project=project,
        state=None if state == LIVE else state,
        live=state == LIVE,
        after=visit.asked("after"),
    )
    return visit.show(
        "runs.html",
        page=page,
        states=[LIVE, *RunState],
        state=state,
        project=project,
        projects=visit.store.projects.list(limit=PROJECTS).items,
        agents=visit.store.agents.list(limit=AGENTS).items if visit.may_act else [],
        approvals=APPROVALS,
        names=visit.names(
            (run.project_id for run in page.items), (run.agent_id for run in page.items)
        ),
    )


def show_one(visit: Visit) -> Response:
    store = visit.store
    found = store.runs.get(visit.path("id"))
    run = store.try_upkeep(found.id, lambda: store.runs.refreshed(found)) or found
    output = None
    with suppress(NotFound):
        output = store.outputs.get(run.id)
    samples = store.runs.samples(run.id)
    return visit.show(
        "run.html",
        run=run,
        launch=store.runs.launch_of(run.id),
        output=output,
        total=store.charges.total(f"run:{run.id}"),
        charges=store.charges.list(run=run.id, limit=CHARGES),
        timeline=store.events.newest(subject=run.id, limit=EVENTS).items[::-1],
        log=store.outputs.log_lines(run.id, limit=LOG_LINES),
        samples=samples,
        plots=_plots(samples),
        times=[clock_time(sample.at) for sample in samples],
        said=_said(visit, run),
        names=visit.names([run.project_id, run.agent_id, run.session_id, run.parent_id]),
        ended_badly=run.state in _BAD,
    )


_BAD = (RunState.FAILED, RunState.CRASHED, RunState.TIMED_OUT, RunState.INTERRUPTED)


def _said(visit: Visit, run: Run) -> list[Said]:
    """The end of its conversation, if it has one; it may have been forgotten."""
    if run.session_id is not None:
        with suppress(NotFound):
            return in_pairs(visit.store.sessions.last(run.session_id, TURNS).items)
    return []


def _plots(samples: list[Sample]) -> list[Plot]:
    """What the whole process tree used: processor time between two looks, and memory."""
    if len(samples) < 2:
        return []
    x = [sample.at / 1_000 for sample in samples]
    busy: list[float | None] = [None]
    for before, after in pairwise(samples):
        passed = max(after.at - before.at, 1)
        busy.append(round(100 * max(after.cpu_ms - before.cpu_ms, 0) / passed, 1))
    memory: list[float | None] = [round(s.memory_bytes / 1024**2, 1) for s in samples]
    return [
        Plot("Processor", "%", "line", x, [Line("of a core", busy)]),
        Plot("Memory", "MiB", "line", x, [Line("memory", memory)]),
    ]
