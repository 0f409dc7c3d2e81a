"""Tools: whoami, team, history."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from corral.kernel.errors import Invalid
from corral.mcp.call import ToolArguments, ToolCall, ToolResult

MAX_LISTED = 20
MAX_TEXT = 4_000


class WhoamiArguments(ToolArguments):
    pass


class ProjectInfo(msgspec.Struct):
    id: str
    name: str
    dir: str


class WhoamiResult(ToolResult, kw_only=True):
    agent: str
    role: str | None
    project: ProjectInfo | None
    run: str | None
    session: str | None
    tasks: list[str]
    """Keys of the tasks that the agent is running."""
    locks: list[str]
    letters: int


def identify_caller(call: ToolCall, arguments: WhoamiArguments) -> WhoamiResult:
    """Return your identity, your project, the tasks and locks you hold, and the number of unread
    messages. Call this first, and again whenever you lose track."""
    caller, store = call.caller, call.store
    tasks = store.tasks.list(agent=caller.name, state="running", limit=MAX_LISTED).items
    locks = store.locks.list(agent=caller.mailbox, limit=MAX_LISTED).items
    letters = sum(
        len(store.mail.list(mailbox=mailbox, limit=MAX_LISTED).items)
        for mailbox in caller.mailboxes
    )
    project = caller.works_in
    return WhoamiResult(
        next_step=_first_step([task.key for task in tasks], letters, project is not None),
        agent=caller.name,
        role=caller.agent.role,
        project=ProjectInfo(project.id, project.name, project.dir) if project else None,
        run=caller.run,
        session=caller.session,
        tasks=[task.key for task in tasks],
        locks=[f"{lock.id} {lock.path} ({lock.state})" for lock in locks],
        letters=letters,
    )


def _first_step(tasks: list[str], letters: int, has_project: bool) -> str:
    if letters:
        return "You have messages: call inbox, handle each one, then ack it."
    if tasks:
        return f"Continue with {', '.join(tasks)}. Call task_submit with evidence when done."
    if has_project:
        return "Claim a task with task_claim, or list tasks and agents with task_list and team."
    return "Your directory is not a known project. Ask the person you work for which one to use."


class TeamArguments(ToolArguments, kw_only=True):
    after: Annotated[
        str | None, Meta(description="Next page: the `more` of the previous result.")
    ] = None


class TeamMate(msgspec.Struct):
    name: str
    role: str | None
    busy_with: list[str]
    """Keys of the tasks that it is running."""
    doing: str | None
    """Its latest progress report."""


class TeamResult(ToolResult, kw_only=True):
    agents: list[TeamMate]
    more: str | None


def list_team(call: ToolCall, arguments: TeamArguments) -> TeamResult:
    """List the agents of the team with their roles and current work. You can message them (send)
    and delegate work to them (delegate)."""
    store = call.store
    page = store.agents.list(after=arguments.after, limit=MAX_LISTED)
    return TeamResult(
        next_step="Message an agent with send, or hand over work with delegate.",
        agents=[_teammate(store, agent) for agent in page.items],
        more=page.next,
    )


def _teammate(store: Any, agent: Any) -> TeamMate:
    tasks = store.tasks.list(agent=agent.name, state="running", limit=5).items
    reports = store.progress.list(agent=agent.name, limit=5).items
    latest = max(reports, key=lambda report: report.updated_at, default=None)
    return TeamMate(agent.name, agent.role, [task.key for task in tasks], latest and latest.summary)


class HistoryArguments(ToolArguments, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=100, description="Maximum number of turns.")] = 20
    before: Annotated[
        str | None, Meta(description="Earlier turns: the `more` of the previous result.")
    ] = None


class HistoryTurn(msgspec.Struct):
    number: int
    role: str
    content: str
    at: int


class HistoryResult(ToolResult, kw_only=True):
    turns: list[HistoryTurn]
    more: str | None


def list_history(call: ToolCall, arguments: HistoryArguments) -> HistoryResult:
    """Read earlier turns of your conversation, including those of interrupted runs, in
    chronological order. Times are milliseconds since 1970."""
    session = call.caller.session
    if session is None:
        raise Invalid("You have no session in Corral, so there is no history to read.")
    page = call.store.sessions.turns(
        session, after=arguments.before, limit=arguments.limit, newest=True
    )
    return HistoryResult(
        next_step="Pass `more` as `before` to read earlier turns."
        if page.next
        else "There are no earlier turns.",
        turns=[
            HistoryTurn(turn.number, turn.role, turn.content[:MAX_TEXT], turn.at)
            for turn in reversed(page.items)
        ],
        more=page.next,
    )
