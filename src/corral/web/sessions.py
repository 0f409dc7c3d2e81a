"""Sessions: the conversation, turn by turn, with what tools did folded away."""

from typing import NamedTuple

from starlette.responses import Response

from corral.domain.sessions.model import Role, Turn
from corral.web.request import Visit

TURNS = 100


class Said(NamedTuple):
    """A turn; a tool's call has its answer with it."""

    turn: Turn
    answer: Turn | None


def show_all(visit: Visit) -> Response:
    project, agent = visit.asked("project"), visit.asked("agent")
    every = visit.asked("all") is not None
    page = visit.store.sessions.list(
        project=project, agent=agent, all=every, after=visit.asked("after")
    )
    return visit.show(
        "sessions.html",
        page=page,
        every=every,
        project=project,
        agent=agent,
        names=visit.names(
            (session.project_id for session in page.items),
            (session.agent_id for session in page.items),
            [project, agent],
        ),
    )


def show_one(visit: Visit) -> Response:
    """The latest turns; `before` a number leads further back."""
    store = visit.store
    session = store.sessions.get(visit.path("id"))
    page = store.sessions.turns(session, newest=True, after=visit.asked("before"), limit=TURNS)
    turns = page.items[::-1]
    runs = store.runs.list(session=session.id, limit=10).items
    handoffs = store.sessions.handoffs(session, limit=20).items
    return visit.show(
        "session.html",
        session=session,
        said=in_pairs(turns),
        earlier=turns[0].number if turns and turns[0].number > 1 else None,
        back=visit.asked("before") is not None,
        runs=runs,
        live=next((run for run in runs if run.is_live), None),
        handoffs=handoffs,
        state=store.sessions.state(session),
        total=store.charges.total(f"session:{session.id}"),
        names=visit.names(
            [session.project_id, session.agent_id, session.parent_id],
            (turn.agent_id for turn in turns),
            (handoff.to_agent_id for handoff in handoffs),
        ),
    )


def in_pairs(turns: list[Turn]) -> list[Said]:
    """Turns in order; what a tool answered stands with its call, where both are here."""
    calls = {turn.tool_call_id for turn in turns if turn.role is Role.ASSISTANT}
    answers = {
        turn.tool_call_id: turn
        for turn in turns
        if turn.role is Role.TOOL and turn.tool_call_id in calls - {None}
    }
    return [
        Said(turn, answers.get(turn.tool_call_id) if turn.role is Role.ASSISTANT else None)
        for turn in turns
        if not (turn.role is Role.TOOL and turn.tool_call_id in answers)
    ]
