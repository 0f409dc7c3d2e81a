"""Agents: who they are, what they were told over time, and what they may."""

from itertools import pairwise

from starlette.responses import Response

from corral.domain.agents.model import AgentVersion
from corral.web.request import Visit

FIELDS = ("role", "provider", "model", "command", "instructions", "workspace", "limits")


def show_all(visit: Visit) -> Response:
    retired = visit.asked("retired") is not None
    page = visit.store.agents.list(retired=retired, after=visit.asked("after"))
    totals = {agent.id: visit.store.charges.total(f"agent:{agent.id}") for agent in page.items}
    return visit.show("agents.html", page=page, totals=totals, retired=retired)


def show_one(visit: Visit) -> Response:
    store = visit.store
    agent = store.agents.get(visit.path("id"))
    versions = store.agents.versions(agent.id, after=visit.asked("after"))
    runs = store.runs.list(agent=agent.id, limit=20)
    return visit.show(
        "agent.html",
        agent=agent,
        versions=versions,
        changes=_changes(versions.items),
        grants=store.agents.grants(agent.id).items,
        runs=runs,
        total=store.charges.total(f"agent:{agent.id}"),
        names=visit.names((run.project_id for run in runs.items), [agent.id]),
    )


def _changes(versions: list[AgentVersion]) -> dict[int, list[str]]:
    """What each version changed of the one before it, as far as both are on the page."""
    return {
        newer.number: [name for name in FIELDS if getattr(newer, name) != getattr(older, name)]
        for newer, older in pairwise(versions)
    }
