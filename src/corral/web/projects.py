"""Projects: where agents work, how it went there, and what it cost."""

from starlette.responses import Response

from corral.web.request import Visit


def show_all(visit: Visit) -> Response:
    archived = visit.asked("archived") is not None
    page = visit.store.projects.list(archived=archived, after=visit.asked("after"))
    totals = {
        project.id: visit.store.charges.total(f"project:{project.id}") for project in page.items
    }
    return visit.show("projects.html", page=page, totals=totals, archived=archived)


def show_one(visit: Visit) -> Response:
    store = visit.store
    project = store.projects.get(visit.path("id"))
    runs = store.runs.list(project=project.id, limit=20)
    return visit.show(
        "project.html",
        view=store.insights.project(project.dir),
        runs=runs,
        sessions=store.sessions.list(project=project.id, all=True, limit=10).items,
        budgets=[
            budget
            for budget in store.budgets.list(limit=200).items
            if budget.scope == f"project:{project.id}"
        ],
        names=visit.names((run.agent_id for run in runs.items), [project.id]),
    )
