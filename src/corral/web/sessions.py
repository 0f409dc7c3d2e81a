"""Sessions: the conversation turn by turn, with tool calls collapsed."""

from typing import NamedTuple

from starlette.responses import Response

from corral.domain.sessions.model import Turn, TurnRole
from corral.web.request import PageRequest

MAX_TURNS = 100


class TurnView(NamedTuple):
    """A turn; a tool call includes its result."""

    turn: Turn
    result: Turn | None


def show_all(request: PageRequest) -> Response:
    project, agent = request.query("project"), request.query("agent")
    every = request.query("all") is not None
    page = request.store.sessions.list(
        project=project, agent=agent, all=every, after=request.query("after")
    )
    return request.render(
        "sessions.html",
        page=page,
        every=every,
        project=project,
        agent=agent,
        names=request.names(
            (session.project_id for session in page.items),
            (session.agent_id for session in page.items),
            [project, agent],
        ),
    )


def show_one(request: PageRequest) -> Response:
    """Show the latest turns, or those before the number `before`."""
    store = request.store
    session = store.sessions.get(request.path_param("id"))
    page = store.sessions.turns(
        session, newest=True, after=request.query("before"), limit=MAX_TURNS
    )
    turns = page.items[::-1]
    runs = store.runs.list(session=session.id, limit=10).items
    handoffs = store.sessions.handoffs(session, limit=20).items
    return request.render(
        "session.html",
        session=session,
        turns=pair_tool_results(turns),
        earlier=turns[0].number if turns and turns[0].number > 1 else None,
        back=request.query("before") is not None,
        runs=runs,
        live=next((run for run in runs if run.is_live), None),
        handoffs=handoffs,
        state=store.sessions.state(session),
        total=store.charges.total(f"session:{session.id}"),
        names=request.names(
            [session.project_id, session.agent_id, session.parent_id],
            (turn.agent_id for turn in turns),
            (handoff.to_agent_id for handoff in handoffs),
        ),
    )


def pair_tool_results(turns: list[Turn]) -> list[TurnView]:
    """Combine tool calls with their results, where both are on the page."""
    calls = {turn.tool_call_id for turn in turns if turn.role is TurnRole.ASSISTANT}
    results = {
        turn.tool_call_id: turn
        for turn in turns
        if turn.role is TurnRole.TOOL and turn.tool_call_id in calls - {None}
    }
    return [
        TurnView(turn, results.get(turn.tool_call_id) if turn.role is TurnRole.ASSISTANT else None)
        for turn in turns
        if not (turn.role is TurnRole.TOOL and turn.tool_call_id in results)
    ]
