"""Letters between agents: correlation, reply addresses and the hop limit.

The number of hops is not taken from the writer. `mail.chains` derives it from the letters that the
writing run was given and from the letter that it answers. So two agents that keep answering each
other reach the limit, whatever they write.
"""

from typing import Any

from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.agents.model import Agent, AgentState
from corral.domain.chat.conversations import ops as conversations
from corral.domain.chat.model import Conversation
from corral.domain.mail import chains
from corral.domain.mail import ops as mail
from corral.domain.mail.model import Chain, HopLimitReached, Letter, LetterChain, check_mailbox
from corral.domain.sessions import ops as sessions
from corral.kernel.errors import IllegalMove, Invalid, NotFound, Refused
from corral.kernel.ids import parse_number
from corral.kernel.validation import MAX_NAME, check_text

ALLOWED_MAILBOX_KINDS = ("agent", "session", "user", "queue")


def send(
    tx: Tx,
    agent: str,
    body: Any,
    *,
    to: str | None = None,
    reply_to: str | None = None,
    wake: bool = False,
    run: str | None = None,
    session: str | None = None,
    priority: int = 0,
    key: str | None = None,
    project: str | None = None,
) -> Letter | HopLimitReached:
    """Send a letter of an agent to another agent or a person, or answer a letter (`reply_to`).

    An answer goes to the reply address of the letter that it answers. With `wake` the recipient is
    started for the letter, in a session that it has for mail. Beyond `mail.max_hops` the letter is
    dropped and both sides are notified.
    """
    sender = agents.get(tx, agent)
    if sender.state is not AgentState.ACTIVE:
        raise Refused(f"{sender.name} is retired and cannot send letters.", agent_id=sender.id)
    answered = _find_answered(tx, sender, reply_to) if reply_to else None
    mailbox = _find_reply_mailbox(tx, answered) if answered else _resolve_mailbox(tx, to, wake)
    run_chain = (
        chains.get_for_run(tx, run) if run else chains.get_for_agent(tx, sender.id, sender.name)
    )
    before = Chain(answered.correlation_id, answered.hops) if answered else run_chain
    cause = Chain(before.correlation_id, max(before.hops, run_chain.hops), sender.id, sender.name)
    if (exceeded := chains.find_exceeded_limit(tx, cause)) is not None:
        mail.notify_hop_limit(tx, cause, mailbox, f"agent:{sender.name}", exceeded)
        return exceeded
    return mail.put_in_chain(
        tx,
        cause,
        mailbox,
        body,
        in_reply_to=answered.letter_id if answered else None,
        reply_to=_find_own_mailbox(tx, sender, session),
        # Prefixed, so that no agent can use the key of another agent's letter.
        key=f"{sender.id}:{key}" if key else None,
        sender=f"agent:{sender.name}",
        priority=priority,
        project=project,
    )


def answer_senders(tx: Tx, conversation: Conversation, run_id: str, text: str) -> None:
    """Send the result of a chat turn to the agents whose letters began it. Idempotent for a run.

    A letter that is itself an answer gets no automatic answer; else two agents would answer each
    other until the hop limit.
    """
    for claimed in conversation.claimed_letters:
        link = chains.find(tx, claimed.id)
        if link is not None and link.in_reply_to is None and link.reply_to:
            send(
                tx,
                conversation.agent_id,
                text,
                reply_to=link.letter_id,
                run=run_id,
                session=conversation.session_id,
                key=f"{run_id}:{link.letter_id}",
            )


def mark_read(tx: Tx, letters: list[str], run: str) -> list[LetterChain]:
    """Record that a run was given letters; return the chains of those between agents."""
    check_text(run, "The run", max_bytes=MAX_NAME)
    ids = [f"let_{parse_number('let', letter)}" for letter in letters]
    links = (chains.mark_read(tx, id, run) for id in ids)
    return [link for link in links if link is not None]


def _find_answered(tx: Tx, agent: Agent, letter: str) -> LetterChain:
    """Return the chain of a letter; raises Refused unless it was written to this agent."""
    received = mail.get(tx, letter)
    kind, _, name = received.mailbox.partition(":")
    is_own = received.mailbox == f"agent:{agent.name}" or (
        kind == "session" and sessions.get(tx, name).agent_id == agent.id
    )
    link = chains.find(tx, received.id) if is_own else None
    if link is None or not link.reply_to:
        raise Refused(
            f"{received.id} is not a letter from an agent to {agent.name}.",
            letter=received.id,
            reason="unknown_letter",
        )
    return link


def _find_reply_mailbox(tx: Tx, answered: LetterChain) -> str:
    """Return where an answer goes: to the writer's own mailbox when its session is closed."""
    try:
        return mail.resolve_mailbox(tx, answered.reply_to)
    except (NotFound, IllegalMove):
        return f"agent:{agents.get(tx, answered.agent_id).name}"


def _resolve_mailbox(tx: Tx, to: str | None, wake: bool) -> str:
    if not to:
        raise Invalid(
            "Name the recipient (agent:NAME, session:ID or user:NAME) or the letter to answer."
        )
    kind, colon, name = to.partition(":")
    if not colon:
        kind, name = "agent", to
    if kind not in ALLOWED_MAILBOX_KINDS:
        raise Refused(f"An agent may not write to {to}. Write to agent:NAME or user:NAME.", to=to)
    if kind != "agent":
        return mail.resolve_mailbox(tx, check_mailbox(f"{kind}:{name}"))
    agent = agents.get(tx, name)
    return conversations.open_for_mail(tx, agent.id).mailbox if wake else f"agent:{agent.name}"


def _find_own_mailbox(tx: Tx, agent: Agent, session: str | None) -> str:
    """Return the reply address of a letter.

    This is the writing session if letters wake it, else the agent's mailbox.
    """
    conversation = conversations.find_conversation(tx, session) if session else None
    is_own = conversation is not None and conversation.agent_id == agent.id
    return f"session:{session}" if is_own else f"agent:{agent.name}"
