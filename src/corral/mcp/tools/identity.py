"""Tools by which an agent knows who it is, who else is there, and what was before."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from corral.kernel.errors import Invalid
from corral.mcp.call import Arguments, Call, Told

MOST_SHOWN = 20
MOST_TEXT = 4_000


class Nothing(Arguments):
    pass


class Where(msgspec.Struct):
    id: str
    name: str
    dir: str


class Me(Told, kw_only=True):
    agent: str
    role: str | None
    project: Where | None
    run: str | None
    session: str | None
    tasks: list[str]
    """Keys of the tasks that are running in its name."""
    locks: list[str]
    letters: int


def whoami(call: Call, asked: Nothing) -> Me:
    """Who you are, the project you work in, the tasks and locks you hold, and how many letters wait
    for you. Call it first, and again whenever you have lost track."""
    me, store = call.caller, call.store
    tasks = store.tasks.list(agent=me.name, state="running", limit=MOST_SHOWN).items
    locks = store.locks.list(agent=me.mailbox, limit=MOST_SHOWN).items
    letters = sum(
        len(store.mail.list(mailbox=mailbox, limit=MOST_SHOWN).items) for mailbox in me.mailboxes
    )
    project = me.works_in
    return Me(
        next_step=_first_step([task.key for task in tasks], letters, project is not None),
        agent=me.name,
        role=me.agent.role,
        project=Where(project.id, project.name, project.dir) if project else None,
        run=me.run,
        session=me.session,
        tasks=[task.key for task in tasks],
        locks=[f"{lock.id} {lock.path} ({lock.state})" for lock in locks],
        letters=letters,
    )


def _first_step(tasks: list[str], letters: int, in_project: bool) -> str:
    if letters:
        return "Letters wait for you: call inbox, deal with each, then ack it."
    if tasks:
        return f"Go on with {', '.join(tasks)}; task_submit with evidence when it is done."
    if in_project:
        return "Take work with task_claim, or look around with task_list and team."
    return "You work in no project that Corral knows; ask the person you work for which one it is."


class TeamAsked(Arguments, kw_only=True):
    after: Annotated[str | None, Meta(description="Go on where the last answer ended.")] = None


class Mate(msgspec.Struct):
    name: str
    role: str | None
    busy_with: list[str]
    """Keys of its running tasks."""
    doing: str | None
    """What it said last of how far it is."""


class Team(Told, kw_only=True):
    agents: list[Mate]
    more: str | None


def team(call: Call, asked: TeamAsked) -> Team:
    """The agents that you can write to (send), hand work to (delegate) or wait for, with their
    roles and what they are busy with."""
    store = call.store
    page = store.agents.list(after=asked.after, limit=MOST_SHOWN)
    return Team(
        next_step="Write to one with send, or hand over work with delegate.",
        agents=[_mate(store, agent) for agent in page.items],
        more=page.next,
    )


def _mate(store: Any, agent: Any) -> Mate:
    tasks = store.tasks.list(agent=agent.name, state="running", limit=5).items
    said = store.progress.list(agent=agent.name, limit=5).items
    last = max(said, key=lambda each: each.updated_at, default=None)
    return Mate(agent.name, agent.role, [task.key for task in tasks], last and last.summary)


class HistoryAsked(Arguments, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=100, description="How many turns.")] = 20
    before: Annotated[
        str | None, Meta(description="Go back further: the `more` of the last answer.")
    ] = None


class Said(msgspec.Struct):
    number: int
    role: str
    content: str
    at: int


class History(Told, kw_only=True):
    turns: list[Said]
    more: str | None


def history(call: Call, asked: HistoryAsked) -> History:
    """What was said before in your own conversation, also by earlier runs of you that were
    interrupted; oldest of these turns first. Times are milliseconds since 1970."""
    session = call.caller.session
    if session is None:
        raise Invalid("You are in no session that Corral keeps, so there is no history to read.")
    page = call.store.sessions.turns(session, after=asked.before, limit=asked.limit, newest=True)
    return History(
        next_step="Pass `more` as `before` to read what came earlier."
        if page.next
        else "That is all of it.",
        turns=[
            Said(turn.number, turn.role, turn.content[:MOST_TEXT], turn.at)
            for turn in reversed(page.items)
        ],
        more=page.next,
    )
