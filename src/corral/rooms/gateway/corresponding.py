"""Letters between agents: what they belong to, where they are answered, and how far it may go.

How many letters led to one is not told by its writer: it is one more than the longest way to any
letter that the writing run was given, or that it answers. So two agents that answer one another for
ever come to an end, whatever they say.
"""

from contextlib import suppress
from typing import Any

from corral.db.tx import Tx
from corral.kernel.errors import CorralError, Invalid, Refused
from corral.kernel.ids import number_of
from corral.kernel.text import MAX_NAME, clean_text
from corral.rooms.agents import ops as agents
from corral.rooms.agents.model import Agent, AgentState
from corral.rooms.gateway import exchanges_sql, talking
from corral.rooms.gateway.model import Talk
from corral.rooms.mail import ops as mail
from corral.rooms.mail.model import Exchange, Letter, check_mailbox
from corral.rooms.runs import ops as runs
from corral.rooms.sessions import ops as sessions
from corral.rooms.settings import ops as settings

KEPT = exchanges_sql.EXCHANGES_KEPT
MOST_RUNS = 50
"""How many of an agent's newest runs are checked when the sending run is unknown."""
MOST_PARENTS = 50
"""How many parents of a run are checked."""
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
    mailbox = answered.reply_to if answered else _mailbox(tx, to, wake)
    given = _given(tx, run, whose)
    hops = 1 + max((each.hops for each in (answered, given) if each is not None), default=0)
    before = answered or given
    correlation = before.correlation_id if before else tx.new_id("cor")
    most = int(settings.value(tx, "mail.max_hops", agent=whose.name))
    if hops > most:
        return _cut_off(tx, f"agent:{whose.name}", mailbox, correlation, most)
    letter = mail.put(
        tx,
        mailbox,
        body,
        # Whatever an agent calls it, it cannot take the place of another's letter.
        key=f"{whose.id}:{key}" if key else None,
        sender=f"agent:{whose.name}",
        priority=priority,
        project=project,
    )
    tx.one(
        exchanges_sql.ADD_EXCHANGE,
        letter_id=letter.id,
        correlation_id=correlation,
        hops=hops,
        answers=answered.letter_id if answered else None,
        agent_id=whose.id,
        reply_to=_own_address(tx, whose, session),
        now=tx.now,
    )
    return letter


def put(tx: Tx, mailbox: str, body: Any, *, run: str | None, **options: Any) -> Letter | str:
    """Put a letter from inside a run, or for an agent, as one hop after the letters that the run
    was given. Returns the letter, or the reason why the hop limit rejected it.

    The options are those of `mail.put`. No answer is sent automatically: only `write` asks for one.
    """
    by = _agent_of(tx, run)
    if run is None and by is None:
        return mail.put(tx, mailbox, body, **options)
    given = _given(tx, run, by)
    hops = 1 + (given.hops if given else 0)
    correlation = given.correlation_id if given else tx.new_id("cor")
    most = int(settings.value(tx, "mail.max_hops", agent=by.name if by else None))
    if hops > most:
        return _cut_off(tx, f"agent:{by.name}" if by else str(run), mailbox, correlation, most)
    letter = mail.put(tx, mailbox, body, **options)
    tx.one(
        exchanges_sql.ADD_EXCHANGE,
        letter_id=letter.id,
        correlation_id=correlation,
        hops=hops,
        answers=None,
        agent_id=by.id if by else "",
        reply_to="",
        now=tx.now,
    )
    return letter


def _agent_of(tx: Tx, run: str | None) -> Agent | None:
    """Return the acting agent: that of the run, else the actor of the transaction."""
    kind, _, name = tx.actor.partition(":")
    with suppress(CorralError):
        if run is not None and (id := runs.get(tx, run).agent_id) is not None:
            return agents.get(tx, id)
        return agents.get(tx, name) if kind == "agent" else None
    return None


def _given(tx: Tx, run: str | None, whose: Agent | None) -> Exchange | None:
    """Return the letter with the most hops among those given to the sender's run or its parents. If
    the run is unknown, all live runs of the agent count."""
    found: list[Exchange] = []
    senders = [run] if run is not None else []
    if run is None and whose is not None:
        newest = runs.list_runs(tx, agent=whose.id, limit=MOST_RUNS).items
        senders = [each.id for each in newest if each.is_live]
    for each in senders:
        parent: str | None = each
        for _ in range(MOST_PARENTS):
            if parent is None:
                break
            read = tx.one(exchanges_sql.READ_EXCHANGES, run_id=parent)
            found += [read] if read is not None else []
            parent = _parent_of(tx, parent)
    return max(found, key=lambda each: each.hops, default=None)


def _parent_of(tx: Tx, run: str) -> str | None:
    try:
        return runs.get(tx, run).parent_id
    except CorralError:
        return None


def _answered(tx: Tx, whose: Agent, letter: str) -> Exchange:
    """What an answer belongs to; Refused unless the letter was written to this agent."""
    found = mail.get(tx, letter)
    kind, _, name = found.mailbox.partition(":")
    own = found.mailbox == f"agent:{whose.name}" or (
        kind == "session" and sessions.get(tx, name).agent_id == whose.id
    )
    exchange = tx.one(exchanges_sql.EXCHANGE, letter_id=found.id) if own else None
    if exchange is None or not exchange.reply_to:
        raise Refused(f"{found.id} is no letter of an agent to {whose.name}.", letter=found.id)
    return exchange


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
        return check_mailbox(f"{kind}:{name}")
    found = agents.get(tx, name)
    return talking.for_letters(tx, found.id).mailbox if wake else f"agent:{found.name}"


def _own_address(tx: Tx, whose: Agent, session: str | None) -> str:
    """Where an answer goes: into the conversation in which it was asked, where that is woken."""
    talk = talking.talk_of(tx, session) if session else None
    own = talk is not None and talk.agent_id == whose.id
    return f"session:{session}" if own else f"agent:{whose.name}"


def _cut_off(tx: Tx, sender: str, mailbox: str, correlation: str, most: int) -> str:
    """Notify both sides that an exchange exceeded the hop limit; the notice wakes no agent."""
    why = f"{most} letters between agents led to this one, and more are not delivered"
    reason = f"{sender} wanted to write once more: {why}; ask a person how to go on"
    body = {"kind": "notice", "undelivered": correlation, "reason": reason}
    mail.put(tx, mailbox, body, key=f"cut_off:{correlation}")
    tx.note("agent", "cut_off", sender, data={"to": mailbox, "correlation": correlation})
    return f"{why[0].upper()}{why[1:]}: stop here, and tell a person what you need."


def answer(tx: Tx, talk: Talk, run_id: str, text: str) -> None:
    """What a turn ended with goes to whoever wrote the letter that began it. An answer is not
    answered by itself: else two agents would never stop thanking each other."""
    for fenced in talk.letters:
        found = tx.one(exchanges_sql.EXCHANGE, letter_id=fenced.id)
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
    found = (tx.one(exchanges_sql.READ_EXCHANGE, letter_id=each, run_id=run) for each in ids)
    return [each for each in found if each is not None]
