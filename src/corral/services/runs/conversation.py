"""The turns that a session records for a prompt, and the turns that a prompt repeats."""

from collections.abc import Collection, Sequence

import msgspec

from corral.adapters.providers.provider import GO_ON
from corral.db.tx import Tx
from corral.domain.chat.conversations.prompts import ToldTurn
from corral.domain.runs.model import Run
from corral.domain.sessions import context as contexts
from corral.domain.sessions import ops as sessions
from corral.domain.sessions.model import Context, NewTurn, Session, Turn
from corral.kernel.prompt import Own, Quote, render, transcribe
from corral.kernel.text import quoted

MOST_TURNS = 200
MOST_CONTEXT = 200_000  # characters


def keep_turns(
    tx: Tx, session: Session, run: Run, prompt: str, told: Sequence[ToldTurn] | None
) -> None:
    """Append the prompt to the session. Idempotent by key: a turn that is retried is recorded
    once."""
    turns = told if told is not None else [(f"{run.id}:prompt", prompt)]
    if turns:
        new = [NewTurn("user", text, key, run=run.id) for key, text in turns]
        sessions.append_many(tx, session, new)


def quote_caller(tx: Tx, prompt: str) -> tuple[str, str]:
    """Return the prompt that a process inside a run gives to a session that exists: quoted, with
    the agent and the run as its source. Second: the turn that the session records."""
    quote = Quote(f"prompt from {quoted(tx.actor)} in {tx.origin}", prompt)
    return render([quote]), transcribe([quote])


def with_context(
    tx: Tx, session: Session, prompt: str | None, told: Sequence[ToldTurn] | None
) -> str | None:
    """Return a prompt for a provider that does not know the conversation: the hand-off note and the
    turns that the context policy selects, then the prompt."""
    given = contexts.context(tx, session, limit=MOST_TURNS)
    return retold(given, prompt, without={turn.key for turn in told or ()})


def retold(
    given: Context, prompt: str | None, *, without: Collection[str] = frozenset()
) -> str | None:
    """Return a prompt that starts with the earlier conversation. Turns whose key is in `without`
    are omitted, because the prompt contains them."""
    quotes = [
        Quote(f"{what} of the agent that had this conversation before", text)
        for what, text in (("summary", given.summary), ("note", given.note))
        if text
    ]
    quotes += [
        Quote(_source_of(turn), turn.content)
        for turn in given.turns
        if turn.content and turn.key not in without
    ]
    if not quotes:
        return prompt
    head = Own("This conversation was begun before. So far:")
    return render([head, *_newest(quotes), Own(f"Now: {prompt or GO_ON}")])


def _source_of(turn: Turn) -> str:
    tool = f" (tool {quoted(turn.tool_name)})" if turn.tool_name else ""
    return f"earlier turn {turn.number}, role {turn.role}{tool}"


def _newest(quotes: Sequence[Quote]) -> list[Quote]:
    """Return the newest quotes that fit into MOST_CONTEXT characters. The oldest of them is cut at
    its beginning and marked as cut."""
    kept: list[Quote] = []
    room = MOST_CONTEXT
    for quote in reversed(quotes):
        if len(quote.text) > room:
            if room > 0:
                cut = f"{quote.source} (only its end)"
                kept.append(msgspec.structs.replace(quote, source=cut, text=quote.text[-room:]))
            break
        kept.append(quote)
        room -= len(quote.text)
    return kept[::-1]
