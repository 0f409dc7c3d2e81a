"""The turns that a session records for a prompt, and the turns that a prompt repeats."""

from collections.abc import Collection, Sequence

import msgspec

from corral.adapters.providers.provider import RESUME_PROMPT
from corral.db.tx import Tx
from corral.domain.chat.conversations.prompts import RecordedTurn
from corral.domain.runs.model import Run
from corral.domain.sessions import context as contexts
from corral.domain.sessions import ops as sessions
from corral.domain.sessions.model import Context, NewTurn, Session, Turn
from corral.kernel.display_text import quote_inline
from corral.kernel.prompt import OwnText, Quote, render, transcribe

MAX_TURNS = 200
MAX_CONTEXT = 200_000  # characters


def record_prompt(
    tx: Tx, session: Session, run: Run, prompt: str, recorded_turns: Sequence[RecordedTurn] | None
) -> None:
    """Append the prompt to the session. Idempotent by key: a retried turn is recorded once."""
    turns = recorded_turns if recorded_turns is not None else [(f"{run.id}:prompt", prompt)]
    if turns:
        new = [NewTurn("user", text, key, run=run.id) for key, text in turns]
        sessions.append_many(tx, session, new)


def quote_caller(tx: Tx, prompt: str) -> tuple[str, str]:
    """Quote the prompt of a process inside a run, with its agent and run as the source.

    Returns the quoted prompt, and the turn that the session records.
    """
    place = f" in {tx.run_id}" if tx.run_id is not None else ""
    quote = Quote(f"prompt from {quote_inline(tx.actor)}{place}", prompt)
    return render([quote]), transcribe([quote])


def add_context(
    tx: Tx, session: Session, prompt: str | None, recorded_turns: Sequence[RecordedTurn] | None
) -> str | None:
    """Return a prompt for a provider that does not know the conversation.

    It starts with the hand-off note and the turns that the context policy selects.
    """
    context = contexts.get_context(tx, session, limit=MAX_TURNS)
    return prepend_context(context, prompt, without={turn.key for turn in recorded_turns or ()})


def prepend_context(
    context: Context, prompt: str | None, *, without: Collection[str] = frozenset()
) -> str | None:
    """Return a prompt that starts with the earlier conversation.

    Turns whose key is in `without` are omitted, because the prompt contains them.
    """
    quotes = [
        Quote(f"{kind} by the agent that had this conversation before", text)
        for kind, text in (("summary", context.summary), ("note", context.note))
        if text
    ]
    quotes += [
        Quote(_describe_source(turn), turn.content)
        for turn in context.turns
        if turn.content and turn.key not in without
    ]
    if not quotes:
        return prompt
    head = OwnText("This conversation started earlier. So far:")
    return render([head, *_fit_newest(quotes), OwnText(f"Now: {prompt or RESUME_PROMPT}")])


def _describe_source(turn: Turn) -> str:
    tool = f" (tool {quote_inline(turn.tool_name)})" if turn.tool_name else ""
    return f"earlier turn {turn.number}, role {turn.role}{tool}"


def _fit_newest(quotes: Sequence[Quote]) -> list[Quote]:
    """Return the newest quotes that fit into MAX_CONTEXT characters.

    The oldest of them is truncated at its beginning and marked as truncated.
    """
    kept: list[Quote] = []
    left = MAX_CONTEXT
    for quote in reversed(quotes):
        if len(quote.text) > left:
            if left > 0:
                cut = f"{quote.source} (only its end)"
                kept.append(msgspec.structs.replace(quote, source=cut, text=quote.text[-left:]))
            break
        kept.append(quote)
        left -= len(quote.text)
    return kept[::-1]
