"""Chains: loop protection for letters between agents, by counting hops.

A letter that a run puts has one hop more than the longest chain of letters that the run or one of
its parents read. Rows that put letters later (schedules, questions, delegations) store the chain of
the run that created them. Agents that wake each other are therefore stopped at `mail.max_hops`,
whichever path their letters take.
"""

from collections.abc import Sequence
from typing import Literal

from corral.db.tx import Tx
from corral.domain.mail import chains_sql
from corral.domain.mail.model import (
    Chain,
    HopLimitReached,
    LetterChain,
    agent_name_of,
    mailbox_kind,
)
from corral.domain.settings import ops as settings
from corral.kernel.errors import Refused
from corral.kernel.validation import encode_json

RETENTION = chains_sql.LETTER_CHAINS_RETENTION
ChainTable = Literal["schedules", "questions", "delegations"]
"""The tables whose rows put letters later."""


def is_read_by_agent(mailbox: str) -> bool:
    """Whether an agent reads this mailbox."""
    return mailbox_kind(mailbox) in ("agent", "session")


def get_for_run(tx: Tx, run: str) -> Chain:
    """Return the chain that led to a run, by the letters that it and its parents read."""
    agent = tx.run(chains_sql.AGENT_OF_RUN, run_id=run)
    hops = tx.value(chains_sql.HOPS_OF_RUN, run_id=run)
    correlation = tx.value(chains_sql.CORRELATION_OF_RUN, run_id=run, hops=hops) if hops else None
    return _build_chain(tx, correlation, hops, *(agent[0] if agent else ()))


def get_for_agent(tx: Tx, agent_id: str, name: str) -> Chain:
    """Return the longest chain of an agent's live runs, for callers whose run is unknown."""
    hops = tx.value(chains_sql.HOPS_OF_AGENT, agent_id=agent_id)
    correlation = (
        tx.value(chains_sql.CORRELATION_OF_AGENT, agent_id=agent_id, hops=hops) if hops else None
    )
    return _build_chain(tx, correlation, hops, agent_id, name)


def get_for_caller(tx: Tx, speaker: str | None = None) -> Chain | None:
    """Return the chain of the calling run, else of the agent named by `speaker` or the actor.

    None: the caller is a person or Corral itself.
    """
    if tx.run_id is not None:
        return get_for_run(tx, tx.run_id)
    for actor in (speaker or "", tx.actor):
        name = agent_name_of(actor)
        if name is not None and (rows := tx.run(chains_sql.AGENT_BY_NAME, name=name)):
            return get_for_agent(tx, *rows[0])
    return None


def get_for_letter(tx: Tx, letter: str) -> Chain | None:
    """Return the chain up to and including a letter; None: the letter is not from an agent."""
    link = find(tx, letter)
    return Chain(link.correlation_id, link.hops) if link is not None else None


def find(tx: Tx, letter: str) -> LetterChain | None:
    """Return the chain and reply address of a letter; None: the letter is not from an agent."""
    return tx.first(chains_sql.LETTER_CHAIN, letter_id=letter)


def get_for_subject(tx: Tx, subject: str) -> Chain:
    """Return the chain of a run or a letter, by its id; for other ids, a new chain of 0 hops."""
    if subject.startswith("run_"):
        return get_for_run(tx, subject)
    return get_for_letter(tx, subject) or _build_chain(tx)


def choose_longest(*chains: Chain | None) -> Chain | None:
    """Return the longest of several chains; None when all are None."""
    present = [chain for chain in chains if chain is not None]
    return max(present, key=lambda chain: chain.hops, default=None)


def _build_chain(
    tx: Tx,
    correlation_id: str | None = None,
    hops: int | None = None,
    agent_id: str | None = None,
    agent: str | None = None,
) -> Chain:
    return Chain(correlation_id or tx.new_id("cor"), hops or 0, agent_id, agent)


# -- the limit ------------------------------------------------------------------------------------


def find_exceeded_limit(tx: Tx, chain: Chain) -> HopLimitReached | None:
    """Return the limit when one more letter would exceed it; None: the letter is allowed."""
    limit = int(settings.get_value(tx, "mail.max_hops", agent=chain.agent))
    return HopLimitReached(limit) if chain.hops >= limit else None


def check_hop_limit(tx: Tx, chain: Chain | None) -> None:
    """Raise Refused when a letter that continues this chain would exceed the limit."""
    if chain is not None and (exceeded := find_exceeded_limit(tx, chain)) is not None:
        raise Refused(exceeded.message, limit=exceeded.limit, reason="hop_limit")


# -- rows that put letters later ------------------------------------------------------------------


def load(tx: Tx, table: ChainTable, id: str) -> Chain | None:
    """Return the chain of a schedule, question or delegation; None: a person created it."""
    for correlation_id, hops in tx.run(chains_sql.build_select_chain(table), id=id):
        return Chain(correlation_id, hops) if correlation_id is not None else None
    return None


def save(tx: Tx, table: ChainTable, id: str, chain: Chain | None) -> None:
    """Store the chain of a schedule, question or delegation, unless a longer one is stored."""
    if chain is None:
        return
    stored = load(tx, table, id)
    if stored is None or chain.hops > stored.hops:
        tx.run(
            chains_sql.build_update_chain(table),
            id=id,
            correlation_id=chain.correlation_id,
            hops=chain.hops,
        )


# -- letters --------------------------------------------------------------------------------------


def record(
    tx: Tx, letter: str, chain: Chain, *, in_reply_to: str | None = None, reply_to: str = ""
) -> None:
    """Record that a letter continues a chain."""
    tx.run(
        chains_sql.ADD_LETTER_CHAIN,
        letter_id=letter,
        correlation_id=chain.correlation_id,
        hops=chain.hops + 1,
        in_reply_to=in_reply_to,
        agent_id=chain.agent_id or "",
        reply_to=reply_to,
        now=tx.now,
    )


def record_all(tx: Tx, mailboxes: Sequence[str], key: str, chain: Chain) -> None:
    """Record that the letters with this key in several mailboxes continue a chain."""
    tx.run(
        chains_sql.ADD_LETTER_CHAINS,
        keys_=encode_json(list(mailboxes), "The mailboxes"),
        key=key,
        correlation_id=chain.correlation_id,
        hops=chain.hops + 1,
        agent_id=chain.agent_id or "",
        now=tx.now,
    )


def mark_read(tx: Tx, letter: str, run: str) -> LetterChain | None:
    """Record that a run read a letter; returns its chain, None: not from an agent."""
    return tx.first(chains_sql.SET_READ_BY, letter_id=letter, run_id=run)


def mark_read_by_caller(tx: Tx, letters: Sequence[str]) -> None:
    """Record that the calling run, if any, read these letters."""
    if tx.run_id is not None and letters:
        tx.run(
            chains_sql.SET_ALL_READ_BY,
            keys_=encode_json(list(letters), "The letters"),
            run_id=tx.run_id,
        )
