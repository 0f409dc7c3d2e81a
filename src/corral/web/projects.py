"""Projects: the list, and runs, sessions and costs of one project."""

from starlette.responses import Response

from corral.web.request import PageRequest


def show_all(request: PageRequest) -> Response:
    archived = request.query("archived") is not None
    page = request.store.projects.list(archived=archived, after=request.query("after"))
    totals = {
        project.id: request.store.charges.total(f"project:{project.id}") for project in page.items
    }
    return request.render("projects.html", page=page, totals=totals, archived=archived)


def show_one(request: PageRequest) -> Response:
    store = request.store
    project = store.projects.get(request.path_param("id"))
    runs = store.runs.list(project=project.id, limit=20)
    return request.render(
        "project.html",
        view=store.insights.project(project.dir),
        runs=runs,
        sessions=store.sessions.list(project=project.id, all=True, limit=10).items,
        budgets=[
            budget
            for budget in store.budgets.list(limit=200).items
            if budget.scope == f"project:{project.id}"
        ],
        names=request.names((run.agent_id for run in runs.items), [project.id]),
    )
