"""The rules for tokens of agents: one function for each way in which an agent may be restricted.

An operation that an agent's token may call names its rule in its declaration (`agent=…`). A rule
named `only_…` raises Refused for other objects than the named ones. A rule named `as_…` replaces
arguments, and may refuse too: an agent may be hostile, or controlled by text it read (prompt
injection), so no argument is trusted to say who the caller is. Mailboxes, sessions and runs are
looked up, and authors and senders are overwritten with the agent's own name.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from corral.kernel.errors import Refused

if TYPE_CHECKING:
    from corral.api import Corral
    from corral.services.tokens import TokenIdentity

CallArguments = dict[str, Any]
AgentRule = Callable[["Corral", "TokenIdentity", CallArguments], object]


# -- ownership ---------------------------------------------------------------------------------


def check_project(who: "TokenIdentity", project: str | None) -> None:
    """Raise Refused for an object of another project than the token's."""
    if who.project_id is not None and project not in (None, who.project_id):
        raise Refused(
            f"Token {who.name} is limited to another project.",
            project=project,
            reason="other_project",
        )


def _agent_id(who: "TokenIdentity") -> str:
    return who.scope.removeprefix("agent:")


def check_own_run(store: "Corral", who: "TokenIdentity", run: str) -> None:
    """Raise Refused unless the run belongs to the agent.

    Locks and tasks that name a run are released when that run ends.
    """
    if store.runs.get(run).agent_id != _agent_id(who):
        raise Refused(f"{run} is not a run of {who.agent}.", run=run)


def _check_mailbox(store: "Corral", who: "TokenIdentity", mailbox: str) -> None:
    kind, _, name = mailbox.partition(":")
    if mailbox == f"agent:{who.agent}":
        return
    if kind == "session" and _owns_session(store, who, name):
        return
    raise Refused(f"{mailbox} is not a mailbox of {who.agent}.", mailbox=mailbox)


def _owns_session(store: "Corral", who: "TokenIdentity", session: str) -> bool:
    """Whether a session is the agent's; raises Refused for another project than the token's."""
    record = store.sessions.get(session)
    check_project(who, record.project_id)
    return record.agent_id == _agent_id(who)


# -- rules -------------------------------------------------------------------------------------


def allow(store: "Corral", who: "TokenIdentity", arguments: CallArguments) -> None:
    """Allow every agent; no argument is checked or replaced."""


def only_self(store: "Corral", who: "TokenIdentity", arguments: CallArguments) -> None:
    """Allow questions about the agent itself."""
    if store.agents.get(arguments["agent"]).id != _agent_id(who):
        raise Refused(f"{who.agent} may only query its own permissions. Omit the agent.")


def as_agent(store: "Corral", who: "TokenIdentity", arguments: CallArguments) -> None:
    """Make the agent the actor, or the agent whose entries are listed."""
    arguments["agent"] = who.agent


def as_member(store: "Corral", who: "TokenIdentity", arguments: CallArguments) -> None:
    """Make the agent the member of the group."""
    arguments["member"] = who.actor


def as_author(store: "Corral", who: "TokenIdentity", arguments: CallArguments) -> None:
    """Make the agent the author."""
    arguments["author"] = who.actor


def as_source(store: "Corral", who: "TokenIdentity", arguments: CallArguments) -> None:
    """Make the agent the source of the note."""
    arguments["source"] = who.actor


def as_asker(store: "Corral", who: "TokenIdentity", arguments: CallArguments) -> None:
    """Make the agent the asker."""
    arguments["asker"] = who.actor


def as_answerer(store: "Corral", who: "TokenIdentity", arguments: CallArguments) -> None:
    """Make the agent the author of the answer."""
    arguments["by"] = who.actor


def as_delegator(store: "Corral", who: "TokenIdentity", arguments: CallArguments) -> None:
    """Make the agent the delegating agent, and its mailbox the sender."""
    arguments["agent"], arguments["sender"] = who.agent, who.actor


def as_lead(store: "Corral", who: "TokenIdentity", arguments: CallArguments) -> None:
    """Make the agent the lead of the tasks it declares: notifications go to its own mailbox."""
    arguments["agent"], arguments["lead"] = who.agent, who.actor


def as_owner(store: "Corral", who: "TokenIdentity", arguments: CallArguments) -> None:
    """Make the agent the owner of the lock."""
    arguments["agent"] = who.agent
    arguments.pop("run", None)  # another agent's run would renew or release the lock


def only_own_lock(store: "Corral", who: "TokenIdentity", arguments: CallArguments) -> None:
    """Allow locks that the agent or one of its sessions or runs holds or waits for."""
    lock = store.locks.get(arguments["lock"])
    kind, _, name = lock.owner.partition(":")
    if lock.owner == f"agent:{who.agent}":
        return
    if kind == "session" and _owns_session(store, who, name):
        return
    if kind == "run" and store.runs.get(name).agent_id == _agent_id(who):
        return
    raise Refused(f"{lock.id} is not a lock of {who.agent}.", id=lock.id)


def only_own_mailbox(store: "Corral", who: "TokenIdentity", arguments: CallArguments) -> None:
    """Allow the mailboxes of the agent and of its sessions."""
    _check_mailbox(store, who, str(arguments["mailbox"]))


def only_own_letter(store: "Corral", who: "TokenIdentity", arguments: CallArguments) -> None:
    """Allow letters in the agent's own mailboxes."""
    letter = store.mail.get(arguments["letter"] if "letter" in arguments else arguments["id"])
    _check_mailbox(store, who, letter.mailbox)


def only_own_letters(store: "Corral", who: "TokenIdentity", arguments: CallArguments) -> None:
    """Allow letters in the agent's own mailboxes, several at once."""
    for letter in arguments["letters"]:
        _check_mailbox(store, who, store.mail.get(letter).mailbox)


def as_claimant(store: "Corral", who: "TokenIdentity", arguments: CallArguments) -> None:
    """Allow claims in the agent's own mailboxes, under an owner with its name."""
    if "mailbox" in arguments:
        only_own_mailbox(store, who, arguments)
    else:
        only_own_letter(store, who, arguments)
    arguments["owner"] = f"{who.actor}:{arguments['owner']}"


def as_sender(store: "Corral", who: "TokenIdentity", arguments: CallArguments) -> None:
    """Make the agent the sender, and allow only mailboxes that agents may write to."""
    mailbox = str(arguments["mailbox"])
    kind, _, name = mailbox.partition(":")
    if kind not in ("agent", "session", "user", "queue"):
        raise Refused(f"An agent may not send to {mailbox}.", mailbox=mailbox)
    if kind == "session" and who.project_id is not None:
        check_project(who, store.sessions.get(name).project_id)
    arguments["sender"] = who.actor
    if arguments.get("key") and kind == "queue":
        # A repeated key returns the first letter, which may belong to another agent: keys of an
        # agent have a prefix. `mail.put_by_caller` does the same for all other mailboxes.
        arguments["key"] = f"{who.actor}:{arguments['key']}"


def as_timer_sender(store: "Corral", who: "TokenIdentity", arguments: CallArguments) -> None:
    """Allow timers for the agent's own mailboxes."""
    only_own_mailbox(store, who, arguments)
    arguments["sender"] = who.actor


def as_message_sender(store: "Corral", who: "TokenIdentity", arguments: CallArguments) -> None:
    """Make the agent the sender; replies go to its own session."""
    arguments["agent"] = who.agent
    if arguments.get("session"):
        only_own_session(store, who, arguments)
    arguments.pop("run", None)  # another agent's run would count the message as its own reply


def as_requester(store: "Corral", who: "TokenIdentity", arguments: CallArguments) -> None:
    """Make the agent the requester, from its own session."""
    arguments["agent"] = who.agent
    if arguments.get("session"):
        only_own_session(store, who, arguments)


def only_own_request(store: "Corral", who: "TokenIdentity", arguments: CallArguments) -> None:
    """Allow the agent's own requests to the host."""
    if store.host_requests.get(arguments["request"]).agent_id != _agent_id(who):
        raise Refused(f"{arguments['request']} is not a request of {who.agent}.")


def only_own_question(store: "Corral", who: "TokenIdentity", arguments: CallArguments) -> None:
    """Allow questions that the agent asked or may answer."""
    question = store.questions.get(arguments["question"])
    if who.actor not in (question.asker, *question.answerers):
        raise Refused(f"{question.id} is not a question of {who.agent}.", id=question.id)


def only_asked_question(store: "Corral", who: "TokenIdentity", arguments: CallArguments) -> None:
    """Allow questions that the agent asked."""
    if store.questions.get(arguments["question"]).asker != who.actor:
        raise Refused(f"{arguments['question']} was not asked by {who.agent}.")


def only_own_decision(store: "Corral", who: "TokenIdentity", arguments: CallArguments) -> None:
    """Allow decisions that the agent recorded or may confirm."""
    decision = store.decisions.get(arguments["decision"])
    if who.actor not in (decision.author, *decision.answerers):
        raise Refused(f"{decision.id} is not a decision of {who.agent}.", id=decision.id)


def only_authored_decision(store: "Corral", who: "TokenIdentity", arguments: CallArguments) -> None:
    """Allow decisions that the agent recorded."""
    if store.decisions.get(arguments["decision"]).author != who.actor:
        raise Refused(f"{arguments['decision']} was not recorded by {who.agent}.")


def only_group_member(store: "Corral", who: "TokenIdentity", arguments: CallArguments) -> None:
    """Allow groups that the agent is a member of."""
    group = store.groups.get(arguments["group"], project=arguments.get("project"))
    store.groups.read(group.id, member=who.actor, limit=1)  # raises Refused for non-members


def only_own_session(store: "Corral", who: "TokenIdentity", arguments: CallArguments) -> None:
    """Allow the agent's own sessions."""
    if not _owns_session(store, who, arguments["session"]):
        raise Refused(f"{arguments['session']} is not a session of {who.agent}.")


def as_turn_author(store: "Corral", who: "TokenIdentity", arguments: CallArguments) -> None:
    """Allow turns of the agent in its own sessions."""
    only_own_session(store, who, arguments)
    arguments["agent"] = who.agent


def as_recipient(store: "Corral", who: "TokenIdentity", arguments: CallArguments) -> None:
    """Show only the agent's delegations to a token of one project: the list spans projects."""
    if who.project_id is not None:
        arguments["to"] = who.agent


def as_reporter(store: "Corral", who: "TokenIdentity", arguments: CallArguments) -> None:
    """Show only the agent's progress to a token of one project: the list spans projects."""
    if who.project_id is not None:
        arguments["agent"] = who.agent
