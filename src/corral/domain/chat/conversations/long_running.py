"""Runs that stay: they are done with what they were told, and get what comes next, without being
started anew."""

from contextlib import suppress

import msgspec

from corral.db.tx import Tx
from corral.domain.chat import sql
from corral.domain.chat.conversations import agent_mail, prompts
from corral.domain.chat.conversations import turns as conversations_turns
from corral.domain.chat.model import Fenced, Next, Talk
from corral.domain.mail import ops as mail
from corral.domain.runs import ops as runs
from corral.domain.sessions import ops as sessions
from corral.domain.sessions.model import NewTurn
from corral.kernel.errors import CorralError, Refused
from corral.kernel.text import MAX_BODY, MAX_NAME, clean_text, encode_json


def next_letters(
    tx: Tx, run: str, *, after: str | None = None, answer: str | None = None
) -> Next | None:
    """A run that goes on is done with what it was told, and is told what came next; None: nothing.

    `after` is the last letter that it was given here, None: it knows only what it began with. All
    up to that one are acknowledged, and `answer` is said where they came from. What it was given
    behind that, and never got, it is given again. A crash repeats what is not acknowledged.
    """
    talk = tx.one(sql.TALK_OF_RUN, run_id=clean_text(run, "The run", most=MAX_NAME))
    if talk is None:
        raise Refused(
            f"{run} works on no messages of a place; only the run of a session may ask.",
            reason="no_session",
        )
    done, left = _dealt_with(talk, after)
    if done and answer:
        said = clean_text(answer, "The answer", most=MAX_BODY)
        answered = msgspec.structs.replace(talk, letters=done)
        conversations_turns.say(tx, answered, run, said)
        agent_mail.answer(tx, answered, run, said)
    for fenced in done:
        mail.ack(tx, fenced.id, fence=fenced.fence)
    letters = (
        [mail.get(tx, fenced.id) for fenced in left] if left else conversations_turns.take(tx, talk)
    )
    if not done and not letters:
        return None
    conversations_turns.note_given(tx, letters, run)
    told = prompts.build(tx, talk, letters)
    fresh = [Fenced(letter.id, letter.fence, late=True) for letter in letters]
    tx.one(
        sql.SET_LETTERS,
        session_id=talk.session_id,
        run_id=run,
        letters=encode_json(fresh, "The letters"),
        seen=conversations_turns.last_told(letters),
    )
    if runs.get(tx, run).provider == "plain":
        # It says nothing of itself, and whoever goes on with the conversation is to know of it.
        turns = [NewTurn("assistant", answer, run=run)] if done and answer else []
        turns += [NewTurn("user", turn.text, turn.key, run=run) for turn in told.turns if letters]
        if turns:
            with suppress(CorralError):
                sessions.append_many(tx, talk.session_id, turns)
    return Next(told.text, [letter.id for letter in letters]) if letters else None


def has_next(tx: Tx, run: str) -> bool:
    """Whether a run that asks for what came next would get it."""
    talk = tx.one(sql.TALK_OF_RUN, run_id=run)
    return talk is None or bool(talk.letters) or bool(conversations_turns.batch(tx, talk))


def _dealt_with(talk: Talk, after: str | None) -> tuple[list[Fenced], list[Fenced]]:
    """Which of a run's letters it has dealt with, and which it was never given."""
    ids = [fenced.id for fenced in talk.letters]
    if after is None:
        count = sum(not fenced.late for fenced in talk.letters)
    else:
        count = ids.index(after) + 1 if after in ids else 0
    return talk.letters[:count], talk.letters[count:]
