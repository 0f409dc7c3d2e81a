"""Agents: their versions, tool grants, runs and costs."""

from itertools import pairwise

from starlette.responses import Response

from corral.domain.agents.model import AgentVersion
from corral.web.request import PageRequest

FIELDS = ("role", "provider", "model", "command", "instructions", "workspace", "limits")


def show_all(request: PageRequest) -> Response:
    retired = request.query("retired") is not None
    page = request.store.agents.list(retired=retired, after=request.query("after"))
    totals = {agent.id: request.store.charges.total(f"agent:{agent.id}") for agent in page.items}
    return request.render("agents.html", page=page, totals=totals, retired=retired)


def show_one(request: PageRequest) -> Response:
    store = request.store
    agent = store.agents.get(request.path_param("id"))
    versions = store.agents.versions(agent.id, after=request.query("after"))
    runs = store.runs.list(agent=agent.id, limit=20)
    return request.render(
        "agent.html",
        agent=agent,
        versions=versions,
        changes=_changes(versions.items),
        grants=store.agents.grants(agent.id).items,
        runs=runs,
        total=store.charges.total(f"agent:{agent.id}"),
        names=request.names((run.project_id for run in runs.items), [agent.id]),
    )


def _changes(versions: list[AgentVersion]) -> dict[int, list[str]]:
    """Return the fields that each version changed, as far as its predecessor is on the page."""
    return {
        newer.number: [name for name in FIELDS if getattr(newer, name) != getattr(older, name)]
        for newer, older in pairwise(versions)
    }
