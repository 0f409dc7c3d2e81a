"""Chains: how many letters of agents led to a letter (its hops), derived in this one place.

A letter that a run puts has one hop more than the longest chain of letters that the run, or a
parent of it, was given. What puts letters later (a schedule, a question, a delegation) keeps the
chain of the run that made it. So agents that have each other woken are stopped at `mail.max_hops`,
whatever way their letters take.
"""

from collections.abc import Sequence
from typing import Literal

from corral.db.tx import Tx
from corral.domain.mail import chains_sql as sql
from corral.domain.mail.model import Chain, Exchange
from corral.domain.settings import ops as settings
from corral.kernel.errors import Refused
from corral.kernel.text import encode_json

Table = Literal["schedules", "questions", "delegations"]
"""Whose rows put letters later."""


def is_counted(mailbox: str) -> bool:
    """Whether an agent reads this mailbox."""
    return mailbox.startswith(("agent:", "session:"))


def of_run(tx: Tx, run: str) -> Chain:
    """Return the chain that led to a run, by what it and its parents were given."""
    agent = tx.run(sql.AGENT_OF_RUN, run_id=run)
    hops = tx.value(sql.HOPS_OF_RUN, run_id=run)
    found = tx.value(sql.CORRELATION_OF_RUN, run_id=run, hops=hops) if hops else None
    return _chain(tx, found, hops, *(agent[0] if agent else ()))


def of_agent(tx: Tx, agent_id: str, name: str) -> Chain:
    """Return the longest chain that led to a live run of an agent, for callers whose run is not
    known."""
    hops = tx.value(sql.HOPS_OF_AGENT, agent_id=agent_id)
    found = tx.value(sql.CORRELATION_OF_AGENT, agent_id=agent_id, hops=hops) if hops else None
    return _chain(tx, found, hops, agent_id, name)


def of_caller(tx: Tx, speaker: str | None = None) -> Chain | None:
    """Return the chain of the calling run, else of the agent that calls or that `speaker` names.
    None: a person, or Corral itself."""
    if tx.origin is not None:
        return of_run(tx, tx.origin)
    for who in (speaker or "", tx.actor):
        kind, _, name = who.partition(":")
        if kind == "agent" and (found := tx.run(sql.AGENT_BY_NAME, name=name)):
            return of_agent(tx, *found[0])
    return None


def of_letter(tx: Tx, letter: str) -> Chain | None:
    """Return the chain that a letter ends; None: it is not a letter of an agent."""
    found = tx.one(sql.EXCHANGE, letter_id=letter)
    return Chain(found.correlation_id, found.hops) if found is not None else None


def of_subject(tx: Tx, subject: str) -> Chain:
    """Return the chain that led to a run or a letter, by its id; an empty one for other things."""
    if subject.startswith("run_"):
        return of_run(tx, subject)
    return of_letter(tx, subject) or _chain(tx)


def longest(*chains: Chain | None) -> Chain | None:
    """Return the longest of several chains; None when there is none."""
    found = [each for each in chains if each is not None]
    return max(found, key=lambda each: each.hops, default=None)


def _chain(
    tx: Tx,
    correlation_id: str | None = None,
    hops: int | None = None,
    agent_id: str | None = None,
    agent: str | None = None,
) -> Chain:
    return Chain(correlation_id or tx.new_id("cor"), hops or 0, agent_id, agent)


# -- the limit ------------------------------------------------------------------------------------


def limit_of(tx: Tx, chain: Chain) -> int | None:
    """Return `mail.max_hops` when one letter more would exceed it; None: it may be put."""
    most = int(settings.value(tx, "mail.max_hops", agent=chain.agent))
    return most if chain.hops >= most else None


def too_long(most: int) -> str:
    """The reason for which a letter beyond the limit is rejected."""
    return (
        f"{most} letters between agents led to this one, and more are not delivered: stop here, "
        "and tell a person what you need."
    )


def check(tx: Tx, chain: Chain | None) -> None:
    """Raise Refused when a letter that continues this chain would exceed the limit."""
    if chain is not None and (most := limit_of(tx, chain)) is not None:
        raise Refused(too_long(most), limit=most, reason="hop_limit")


# -- what puts letters later ----------------------------------------------------------------------


def load(tx: Tx, table: Table, id: str) -> Chain | None:
    """Return the chain that a schedule, question or delegation continues; None: a person made
    it."""
    for correlation_id, hops in tx.run(sql.chain_of(table), id=id):
        return Chain(correlation_id, hops) if correlation_id is not None else None
    return None


def save(tx: Tx, table: Table, id: str, chain: Chain | None) -> None:
    """Keep the chain that a schedule, question or delegation continues. A shorter one than is kept
    changes nothing."""
    if chain is None:
        return
    before = load(tx, table, id)
    if before is None or chain.hops > before.hops:
        tx.run(sql.set_chain(table), id=id, correlation_id=chain.correlation_id, hops=chain.hops)


# -- letters --------------------------------------------------------------------------------------


def record(
    tx: Tx, letter: str, chain: Chain, *, answers: str | None = None, reply_to: str = ""
) -> None:
    """Record that a letter continues a chain."""
    tx.run(
        sql.ADD,
        letter_id=letter,
        correlation_id=chain.correlation_id,
        hops=chain.hops + 1,
        answers=answers,
        agent_id=chain.agent_id or "",
        reply_to=reply_to,
        now=tx.now,
    )


def record_all(tx: Tx, mailboxes: Sequence[str], key: str, chain: Chain) -> None:
    """Record that the letters under a key in several mailboxes continue a chain."""
    tx.run(
        sql.ADD_ALL,
        keys_=encode_json(list(mailboxes), "The mailboxes"),
        key=key,
        correlation_id=chain.correlation_id,
        hops=chain.hops + 1,
        agent_id=chain.agent_id or "",
        now=tx.now,
    )


def read(tx: Tx, letter: str, run: str) -> Exchange | None:
    """Record that a run was given a letter; returns what the letter belongs to."""
    return tx.one(sql.READ, letter_id=letter, run_id=run)


def read_all(tx: Tx, letters: Sequence[str]) -> None:
    """Record that the calling run, if any, was given these letters."""
    if tx.origin is not None and letters:
        tx.run(sql.READ_ALL, keys_=encode_json(list(letters), "The letters"), run_id=tx.origin)
