"""Chat turns: runs that work on a batch of letters of a conversation.

A chat turn is not a turn of a session, which is one message of it: a chat turn appends several.

`begin_chat_turn` assigns claimed letters to a run, `continue_chat_turn` gives the run further ones,
and `end_chat_turn` detaches the run. `ack_letters`, `refuse_letters` or `fail_letters` record the
outcome of the letters.
"""

from collections.abc import Sequence

from corral.db.tx import Tx
from corral.domain.alerts import ops as alerts
from corral.domain.chat import sql
from corral.domain.chat.model import ClaimedLetter, Conversation
from corral.domain.chat.payloads import is_notice, parse_chat
from corral.domain.mail import chains
from corral.domain.mail import ops as mail
from corral.domain.mail.model import Letter, LetterState
from corral.domain.schedules import occurrences
from corral.kernel.ids import parse_number
from corral.kernel.validation import encode_json


def list_busy(tx: Tx, *, after: str = "", limit: int = 200) -> list[Conversation]:
    """Return the conversations with a run, by run id."""
    return tx.all(sql.BUSY_CONVERSATIONS, after=after, limit=limit)


def count_busy(tx: Tx) -> int:
    """Count the conversations with a run."""
    return int(tx.value(sql.COUNT_BUSY_CONVERSATIONS))


def begin_chat_turn(
    tx: Tx, conversation: Conversation, run_id: str, letters: Sequence[Letter]
) -> Conversation | None:
    """Assign claimed letters to a run; None when another run has the session."""
    _record_given(tx, letters, run_id)
    return tx.first(
        sql.BEGIN_CHAT_TURN,
        session_id=conversation.session_id,
        run_id=run_id,
        claimed_letters=_encode_claims(letters, late=False),
        seen_seq=_find_last_message(letters),
    )


def continue_chat_turn(
    tx: Tx, conversation: Conversation, run_id: str, letters: Sequence[Letter]
) -> None:
    """Replace the letters of a chat turn by those that its run claimed after its start."""
    _record_given(tx, letters, run_id)
    tx.first(
        sql.CONTINUE_CHAT_TURN,
        session_id=conversation.session_id,
        run_id=run_id,
        claimed_letters=_encode_claims(letters, late=True),
        seen_seq=_find_last_message(letters),
    )


def _encode_claims(letters: Sequence[Letter], *, late: bool) -> str:
    claims = [ClaimedLetter(letter.id, letter.fence, late=late) for letter in letters]
    return encode_json(claims, "The letters")


def _record_given(tx: Tx, letters: Sequence[Letter], run_id: str) -> None:
    """Record the run that was given letters, for schedule occurrences and hop counting."""
    for letter in letters:
        occurrences.link_run(tx, letter, run_id)
        if parse_chat(letter) is None:
            chains.mark_read(tx, letter.id, run_id)


def _find_last_message(letters: Sequence[Letter]) -> int:
    """Return the number of the newest chat message in letters, or 0."""
    chats = [parse_chat(letter) for letter in letters]
    return max((parse_number("msg", chat.message) for chat in chats if chat is not None), default=0)


def end_chat_turn(tx: Tx, conversation: Conversation) -> Conversation | None:
    """Detach the run from its session; None when another process did so already."""
    return tx.first(
        sql.END_CHAT_TURN, session_id=conversation.session_id, run_id=conversation.run_id
    )


def ack_letters(tx: Tx, conversation: Conversation) -> None:
    """Acknowledge the letters of a chat turn that succeeded."""
    for letter in _list_still_claimed(tx, conversation.claimed_letters):
        mail.ack(tx, letter)


def refuse_letters(tx: Tx, conversation: Conversation, reason: str) -> None:
    """Refuse the letters of a chat turn that a person stopped; their senders are notified."""
    for letter in _list_still_claimed(tx, conversation.claimed_letters):
        mail.refuse(tx, letter, reason)


def fail_letters(tx: Tx, letters: Sequence[Letter | ClaimedLetter], reason: str) -> None:
    """Retry the letters of a failed chat turn after a back-off.

    At the limit of attempts they become dead letters; their senders and the operator are notified.
    A notice becomes dead one attempt earlier than the letters that it goes with, so that a notice
    which makes every chat turn fail leaves them an attempt without it.
    """
    for letter in _list_still_claimed(tx, letters):
        if is_notice(letter) and letter.attempts >= mail.get_max_attempts(tx, letter) - 1:
            failed = mail.mark_dead(tx, letter, reason)
        else:
            failed = mail.fail(tx, letter, reason)
        if failed.state is LetterState.DEAD:
            alerts.raise_alert(
                tx,
                "undelivered",
                failed.id,
                edge=failed.fence,
                data={"mailbox": failed.mailbox, "reason": tx.shorten_for_storage(reason, 200)},
            )


def _list_still_claimed(tx: Tx, letters: Sequence[Letter | ClaimedLetter]) -> list[Letter]:
    """Return the letters that the chat turn still holds.

    A letter that was dropped, has expired or was claimed by another owner has its outcome already.
    It must not block the end of the chat turn.
    """
    held = (mail.find_for_update(tx, parse_number("let", letter.id)) for letter in letters)
    return [
        letter
        for letter, claimed in zip(held, letters, strict=True)
        if letter is not None and letter.ended_at is None and letter.fence == claimed.fence
    ]
