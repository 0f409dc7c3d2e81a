"""Runs that outlive a chat turn: they acknowledge their letters and take the next ones."""

from contextlib import suppress

import msgspec

from corral.db.tx import Tx
from corral.domain.chat import sql
from corral.domain.chat.conversations import agent_mail, chat_turns, letter_batch, prompts, replies
from corral.domain.chat.model import ClaimedLetter, Conversation, NextLetters
from corral.domain.mail import ops as mail
from corral.domain.runs import ops as runs
from corral.domain.sessions import ops as sessions
from corral.domain.sessions.model import NewTurn
from corral.kernel.errors import CorralError, Refused
from corral.kernel.validation import MAX_BODY, MAX_NAME, check_text


def take_next(
    tx: Tx, run: str, *, after: str | None = None, answer: str | None = None
) -> NextLetters | None:
    """Acknowledge the letters that a run has processed, and give it the next ones; None if none.

    `after` is the last letter that the run received by this call; None when it only has the letters
    that it was started with. All letters up to `after` are acknowledged, and `answer` is sent to
    where they came from. Letters that were given after it, and never arrived, are given again. So a
    crash repeats only what was not acknowledged.
    """
    conversation = tx.first(
        sql.CONVERSATION_OF_RUN, run_id=check_text(run, "The run", max_bytes=MAX_NAME)
    )
    if conversation is None:
        raise Refused(
            f"{run} has no conversation. Only the run of a woken session has messages.",
            reason="no_session",
        )
    processed, left = _split_processed(conversation, after)
    if processed and answer:
        text = check_text(answer, "The answer", max_bytes=MAX_BODY)
        answered = msgspec.structs.replace(conversation, claimed_letters=processed)
        replies.send_answer(tx, answered, run, text)
        agent_mail.answer_senders(tx, answered, run, text)
    for claimed in processed:
        mail.ack(tx, claimed.id, fence=claimed.fence)
    letters = (
        [mail.get(tx, claimed.id) for claimed in left]
        if left
        else letter_batch.claim_batch(tx, conversation)
    )
    if not processed and not letters:
        return None
    prompt = prompts.build_prompt(tx, conversation, letters)
    chat_turns.continue_chat_turn(tx, conversation, run, letters)
    if runs.get(tx, run).provider == "plain":
        # A plain command has no transcript, so its turns are recorded here for later runs.
        new = [NewTurn("assistant", answer, run=run)] if processed and answer else []
        new += [NewTurn("user", turn.text, turn.key, run=run) for turn in prompt.turns if letters]
        if new:
            with suppress(CorralError):
                sessions.append_many(tx, conversation.session_id, new)
    return NextLetters(prompt.text, [letter.id for letter in letters]) if letters else None


def has_next(tx: Tx, run: str) -> bool:
    """Whether `take_next` would return letters, or raise an error."""
    conversation = tx.first(sql.CONVERSATION_OF_RUN, run_id=run)
    return (
        conversation is None
        or bool(conversation.claimed_letters)
        or bool(letter_batch.select_batch(tx, conversation))
    )


def _split_processed(
    conversation: Conversation, after: str | None
) -> tuple[list[ClaimedLetter], list[ClaimedLetter]]:
    """Split a run's letters into those it has processed and those that never reached it."""
    ids = [claimed.id for claimed in conversation.claimed_letters]
    if after is None:
        count = sum(not claimed.late for claimed in conversation.claimed_letters)
    else:
        count = ids.index(after) + 1 if after in ids else 0
    return conversation.claimed_letters[:count], conversation.claimed_letters[count:]
