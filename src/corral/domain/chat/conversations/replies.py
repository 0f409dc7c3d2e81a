"""Replies: messages about a chat turn, sent to the reply address of its session."""

from corral.db.tx import Tx
from corral.domain.chat import sql
from corral.domain.chat.conversations import ops as conversations
from corral.domain.chat.model import Conversation, Message
from corral.domain.chat.outbound import queue, targets
from corral.domain.chat.outbound.queue import MessageDraft
from corral.domain.chat.outbound.targets import ReplyAddress

MAX_SENT = 100


def find_reply_address(tx: Tx, session: str) -> ReplyAddress | None:
    """Return where a session's answers go; None when they go to no channel."""
    conversation = conversations.find_conversation(tx, session)
    return targets.find_reply_address(tx, conversation) if conversation is not None else None


def send_answer_unless_sent(
    tx: Tx, conversation: Conversation, run_id: str, text: str
) -> list[Message]:
    """Send a run's answer as `send_answer` does, unless the agent sent the same text there."""
    address = targets.find_reply_address(tx, conversation)
    if address is None:
        return []
    if any(
        message.place_id == address.place.id and message.text.strip() == text.strip()
        for message in _list_sent(tx, conversation, run_id)
    ):
        return []
    return _send_to_address(tx, address, conversation, run_id, text)


def send_answer(tx: Tx, conversation: Conversation, run_id: str, text: str) -> list[Message]:
    """Send a run's answer to its current letters to the reply address. Idempotent.

    Returns the queued messages; an empty list when the session has no reply address.
    """
    address = targets.find_reply_address(tx, conversation)
    return _send_to_address(tx, address, conversation, run_id, text) if address is not None else []


def _send_to_address(
    tx: Tx, address: ReplyAddress, conversation: Conversation, run_id: str, text: str
) -> list[Message]:
    letters = conversation.claimed_letters
    # One answer for the letters that the run began with, and one for each `take_next`.
    batch = f":{letters[0].id}" if letters and letters[0].late else ""
    draft = MessageDraft(
        text,
        agent_id=conversation.agent_id,
        thread=address.thread,
        run_id=run_id,
        sender=conversation.mailbox,
        key=f"{run_id}:answer{batch}",
    )
    return queue.enqueue(tx, address.place, draft)


def _list_sent(tx: Tx, conversation: Conversation, run_id: str) -> list[Message]:
    """Return what the agent sent in a run since it was given its current letters."""
    messages = tx.all(
        sql.MESSAGES_OF_RUN, run_id=run_id, after=conversation.seen_seq, limit=MAX_SENT
    )
    return [message for message in messages if message.direction == "out"]


def has_sent_message(tx: Tx, conversation: Conversation, run_id: str) -> bool:
    """Whether the agent sent a chat message since it was given its current letters."""
    return bool(_list_sent(tx, conversation, run_id))


def send_notice(tx: Tx, conversation: Conversation, run_id: str, text: str) -> list[Message]:
    """Send a message about a chat turn to the reply address, in Corral's own name. Idempotent."""
    address = targets.find_reply_address(tx, conversation)
    if address is None:
        return []
    draft = MessageDraft(text, thread=address.thread, key=f"{run_id}:notice")
    return queue.enqueue(tx, address.place, draft)
