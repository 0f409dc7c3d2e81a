"""Letters between agents: what they belong to, where they are answered, and how far it may go.

How many letters led to one is not told by its writer: it is derived by `mail.chains`, from the
letters that the writing run was given, and from the letter that it answers. So two agents that
answer one another for ever come to an end, whatever they say.
"""

from typing import Any

from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.agents.model import Agent, AgentState
from corral.domain.chat.conversations import agent_mail_sql, turns
from corral.domain.chat.model import Talk
from corral.domain.mail import chains
from corral.domain.mail import ops as mail
from corral.domain.mail.model import Chain, Exchange, Letter, check_mailbox
from corral.domain.sessions import ops as sessions
from corral.kernel.errors import IllegalMove, Invalid, NotFound, Refused
from corral.kernel.ids import number_of
from corral.kernel.text import MAX_NAME, clean_text

KEPT = agent_mail_sql.EXCHANGES_KEPT
REACHABLE = ("agent", "session", "user", "queue")


def write(
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
) -> Letter | str:
    """An agent writes to another one, or to a person; or answers a letter (`reply_to`), which goes
    to where its writer wants answers. Gives the letter, or why it was cut off.

    With `wake` the agent is started for it, in a session that is kept for such letters. Beyond
    `mail.max_hops` nothing is delivered, and both sides are told.
    """
    whose = agents.get(tx, agent)
    if whose.state is not AgentState.ACTIVE:
        raise Refused(f"{whose.name} is retired, and writes no more.", agent_id=whose.id)
    answered = _answered(tx, whose, reply_to) if reply_to else None
    mailbox = _reply_address(tx, answered) if answered else _mailbox(tx, to, wake)
    given = chains.of_run(tx, run) if run else chains.of_agent(tx, whose.id, whose.name)
    before = Chain(answered.correlation_id, answered.hops) if answered else given
    cause = Chain(before.correlation_id, max(before.hops, given.hops), whose.id, whose.name)
    if (most := chains.limit_of(tx, cause)) is not None:
        mail.cut_off(tx, cause, mailbox, f"agent:{whose.name}", most)
        return chains.too_long(most)
    return mail.put_in_chain(
        tx,
        cause,
        mailbox,
        body,
        answers=answered.letter_id if answered else None,
        reply_to=_own_address(tx, whose, session),
        # Whatever an agent calls it, it cannot take the place of another's letter.
        key=f"{whose.id}:{key}" if key else None,
        sender=f"agent:{whose.name}",
        priority=priority,
        project=project,
    )


def put(tx: Tx, mailbox: str, body: Any, *, run: str | None, **options: Any) -> Letter | str:
    """Put a letter from inside a run, or for an agent, as one hop after the letters that the run
    was given. Returns the letter, or the reason why the hop limit rejected it.

    The options are those of `mail.put`. No answer is sent automatically: only `write` asks for one.
    """
    cause = chains.of_run(tx, run) if run is not None else chains.of_caller(tx)
    if cause is not None and (most := chains.limit_of(tx, cause)) is not None:
        sender = f"agent:{cause.agent}" if cause.agent else tx.actor
        mail.cut_off(tx, cause, mailbox, sender, most)
        return chains.too_long(most)
    return mail.put(tx, mailbox, body, **options)


def _answered(tx: Tx, whose: Agent, letter: str) -> Exchange:
    """What an answer belongs to; Refused unless the letter was written to this agent."""
    found = mail.get(tx, letter)
    kind, _, name = found.mailbox.partition(":")
    own = found.mailbox == f"agent:{whose.name}" or (
        kind == "session" and sessions.get(tx, name).agent_id == whose.id
    )
    exchange = tx.one(agent_mail_sql.EXCHANGE, letter_id=found.id) if own else None
    if exchange is None or not exchange.reply_to:
        raise Refused(
            f"{found.id} is no letter of an agent to {whose.name}.",
            letter=found.id,
            reason="unknown_letter",
        )
    return exchange


def _reply_address(tx: Tx, answered: Exchange) -> str:
    """Return where an answer goes: to the writer's own mailbox when its session is closed."""
    try:
        return mail.open_mailbox(tx, answered.reply_to)
    except (NotFound, IllegalMove):
        return f"agent:{agents.get(tx, answered.agent_id).name}"


def _mailbox(tx: Tx, to: str | None, wake: bool) -> str:
    if not to:
        raise Invalid(
            "Say to whom: agent:NAME, session:ID or user:NAME; or which letter it answers."
        )
    kind, colon, name = to.partition(":")
    if not colon:
        kind, name = "agent", to
    if kind not in REACHABLE:
        raise Refused(f"An agent may not write to {to}; write to agent:NAME or user:NAME.", to=to)
    if kind != "agent":
        return mail.open_mailbox(tx, check_mailbox(f"{kind}:{name}"))
    found = agents.get(tx, name)
    return turns.for_letters(tx, found.id).mailbox if wake else f"agent:{found.name}"


def _own_address(tx: Tx, whose: Agent, session: str | None) -> str:
    """Where an answer goes: into the conversation in which it was asked, where that is woken."""
    talk = turns.talk_of(tx, session) if session else None
    own = talk is not None and talk.agent_id == whose.id
    return f"session:{session}" if own else f"agent:{whose.name}"


def answer(tx: Tx, talk: Talk, run_id: str, text: str) -> None:
    """What a turn ended with goes to whoever wrote the letter that began it. An answer is not
    answered by itself: else two agents would never stop thanking each other."""
    for fenced in talk.letters:
        found = tx.one(agent_mail_sql.EXCHANGE, letter_id=fenced.id)
        if found is not None and found.answers is None and found.reply_to:
            write(
                tx,
                talk.agent_id,
                text,
                reply_to=found.letter_id,
                run=run_id,
                session=talk.session_id,
                key=f"{run_id}:{found.letter_id}",
            )


def read(tx: Tx, letters: list[str], run: str) -> list[Exchange]:
    """A run is given letters; what those of agents belong to."""
    clean_text(run, "The run", most=MAX_NAME)
    ids = [f"let_{number_of('let', each)}" for each in letters]
    found = (chains.read(tx, each, run) for each in ids)
    return [each for each in found if each is not None]
