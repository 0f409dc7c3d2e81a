"""Commands that people send to Corral itself in a place: /help, /status, /cost, /clear, /stop."""

from collections.abc import Callable
from typing import NamedTuple

from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.charges import ops as charges
from corral.domain.chat.conversations.ops import has_open_session, list_of_place
from corral.domain.chat.model import Conversation, Person, PersonRole, Place
from corral.domain.runs import ops as runs
from corral.domain.runs.model import Run
from corral.domain.sessions import context as sessions
from corral.kernel.errors import NotFound
from corral.kernel.money import format_usd

# The role that a command needs, and its help. None: everyone whose messages are admitted. In a
# direct chat every known person may use all commands, because the conversation is their own.
COMMANDS: dict[str, tuple[PersonRole | None, str]] = {
    "help": (None, "list the commands"),
    "status": (PersonRole.MEMBER, "show the agents of this chat and what they are doing"),
    "cost": (PersonRole.MEMBER, "show what this conversation has cost"),
    "clear": (PersonRole.ADMIN, "clear the agents' context"),
    "stop": (PersonRole.ADMIN, "stop the runs of the agents"),
}
_RANK = {PersonRole.MEMBER: 1, PersonRole.ADMIN: 2, PersonRole.OWNER: 3}


class CommandResult(NamedTuple):
    """Whether a command was allowed, and the reply to it."""

    is_allowed: bool
    reply: str


def run_command(
    tx: Tx, name: str, place: Place, thread: str | None, person: Person | None
) -> CommandResult:
    """Run a command if the person may.

    In a thread, the command applies to the sessions of that thread and of the whole chat.
    """
    needed, _ = COMMANDS[name]
    if not _is_allowed(needed, place, person):
        return CommandResult(False, f"/{name} needs at least the role {needed}.")
    conversations = [
        conversation
        for conversation in list_of_place(tx, place.id)
        if not thread or conversation.thread in ("", thread)
    ]
    return CommandResult(True, _HANDLERS[name](tx, conversations, person))


def _is_allowed(needed: PersonRole | None, place: Place, person: Person | None) -> bool:
    if needed is None:
        return True
    return person is not None and (place.direct or _RANK[person.role] >= _RANK[needed])


def _render_help(tx: Tx, conversations: list[Conversation], person: Person | None) -> str:
    return "\n".join(f"/{name}: {text}" for name, (_, text) in COMMANDS.items())


def _render_status(tx: Tx, conversations: list[Conversation], person: Person | None) -> str:
    if not conversations:
        return "No agent has been addressed here yet."
    return "\n".join(_format_status(tx, conversation) for conversation in conversations)


def _format_status(tx: Tx, conversation: Conversation) -> str:
    name = agents.get(tx, conversation.agent_id).name
    run = _find_live_run(tx, conversation)
    activity = f"{run.state} ({run.id})" if run is not None else "idle"
    return f"{name}: {activity}, {conversation.session_id}"


def _render_cost(tx: Tx, conversations: list[Conversation], person: Person | None) -> str:
    totals = [
        charges.get_total(tx, f"session:{conversation.session_id}")
        for conversation in conversations
    ]
    costs = [total.cost_micros for total in totals if total.cost_micros is not None]
    tokens = sum(total.tokens for total in totals)
    money = format_usd(sum(costs)) if costs else "an unknown amount"
    return f"{tokens:,} tokens, {money}." if tokens or costs else "Nothing was used yet."


def _clear_context(tx: Tx, conversations: list[Conversation], person: Person | None) -> str:
    # A conversation keeps its closed session until the next message; that one cannot be cleared.
    open_conversations = [
        conversation for conversation in conversations if has_open_session(tx, conversation)
    ]
    for conversation in open_conversations:
        sessions.clear(tx, conversation.session_id)
    return "The context was cleared." if open_conversations else "No context to clear."


def _stop_runs(tx: Tx, conversations: list[Conversation], person: Person | None) -> str:
    assert person is not None, "the command needs a role"
    stopped = []
    for conversation in conversations:
        run = _find_live_run(tx, conversation)
        if run is not None:
            runs.request_stop(tx, run.id, reason=f"/stop by {person.mailbox}")
            stopped.append(agents.get(tx, conversation.agent_id).name)
    return f"Stopping {', '.join(stopped)}." if stopped else "No agent is running here."


def _find_live_run(tx: Tx, conversation: Conversation) -> Run | None:
    if conversation.run_id is None:
        return None
    try:
        run = runs.get(tx, conversation.run_id)
    except NotFound:
        return None
    return run if run.is_live else None


_HANDLERS: dict[str, Callable[[Tx, list[Conversation], Person | None], str]] = {
    "help": _render_help,
    "status": _render_status,
    "cost": _render_cost,
    "clear": _clear_context,
    "stop": _stop_runs,
}
