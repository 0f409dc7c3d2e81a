"""Letter batches: the letters that a conversation gets in its next chat turn.

`select_batch` decides which letters share a chat turn, and `claim_batch` claims them. A batch is
always a prefix of the letters that a claim would give.
"""

from collections.abc import Iterator, Sequence

from corral.db.tx import Tx
from corral.domain.chat.conversations import ops as conversations
from corral.domain.chat.model import Conversation
from corral.domain.chat.payloads import is_notice, parse_request
from corral.domain.mail import ops as mail
from corral.domain.mail import queries
from corral.domain.mail.model import Letter
from corral.kernel.clock import DAY
from corral.kernel.ids import parse_number
from corral.kernel.pagination import MAX_LIMIT

MAX_LETTERS = 10
"""Maximum number of letters in one chat turn, not counting notices."""
MAX_CLAIMED = 50
"""Maximum number of letters and notices in one chat turn.

This many notices start a chat turn by themselves. Otherwise the letters behind them would wait
forever."""


def select_batch(tx: Tx, conversation: Conversation) -> list[Letter]:
    """Return the letters of the next chat turn; empty when nothing has to be done now.

    Letters from one place share a chat turn. A letter that failed before gets a chat turn of its
    own, so that a poison message does not make other letters fail. Notices go with the letter
    behind them and wake no agent by themselves, unless they fill a batch, or a letter of a lower
    priority waits.

    The rules only cut a prefix of what a claim gives, and an empty result means that no letter but
    notices is due. So no letter can block a session for longer than its own retries.
    """
    claimable = queries.list_claimable(
        tx, conversation.mailbox, owner=conversation.claim_owner, limit=MAX_CLAIMED
    )
    batch = _take_prefix(claimable)
    return batch if _is_worth_a_turn(tx, conversation, batch) else []


def _take_prefix(claimable: Sequence[Letter]) -> list[Letter]:
    """Return the first letters that may share a chat turn, with the notices between them."""
    batch: list[Letter] = []
    address: tuple[str, str | None] | None = None
    count = 0
    for letter in claimable:
        if is_notice(letter):
            batch.append(letter)
            continue
        origin = _find_origin(letter)
        is_elsewhere = origin is not None and address is not None and origin != address
        if count and (letter.attempts or is_elsewhere or count == MAX_LETTERS):
            break
        address = address or origin
        batch.append(letter)
        count += 1
        if letter.attempts:
            break
    return batch


def _is_worth_a_turn(tx: Tx, conversation: Conversation, batch: Sequence[Letter]) -> bool:
    """Whether a batch starts a chat turn: it has a letter, or its notices block other letters."""
    if not all(is_notice(letter) for letter in batch):
        return True
    return len(batch) == MAX_CLAIMED or (bool(batch) and _has_lower_priority_due(tx, conversation))


def _has_lower_priority_due(tx: Tx, conversation: Conversation) -> bool:
    """Whether a letter waits behind notices of a higher priority.

    A claim gives letters of one priority, so the notices need a chat turn of their own first.
    """
    waiting = queries.list_waiting(tx, mailbox=conversation.mailbox, limit=MAX_LIMIT).items
    return any(letter.due_at <= tx.now and not is_notice(letter) for letter in waiting)


def _find_origin(letter: Letter) -> tuple[str, str | None] | None:
    request = parse_request(letter)
    return (request.place, request.thread) if request is not None and request.place else None


def claim_batch(tx: Tx, conversation: Conversation) -> list[Letter]:
    """Claim the letters of the next chat turn (see `select_batch`), until that chat turn ends."""
    batch = select_batch(tx, conversation)
    if not batch:
        return []
    claimed = mail.claim_letters(
        tx, conversation.mailbox, owner=conversation.claim_owner, limit=len(batch), lease_ms=DAY
    )
    return mail.end_undeliverable(tx, claimed)


def list_due_conversations(tx: Tx) -> list[Conversation]:
    """Return the conversations with due letters and no run, in the order of arrival."""
    waiting: list[tuple[int, int, Conversation]] = []
    for conversation in _iterate_idle(tx):
        letters = select_batch(tx, conversation)
        if letters:
            first = letters[0]
            waiting.append((first.queue_at, parse_number("let", first.id), conversation))
    return [conversation for _, _, conversation in sorted(waiting, key=lambda item: item[:2])]


def find_next_due(tx: Tx) -> int | None:
    """Return when the next letter of a session without a run becomes due; None if none will."""
    times = [
        queries.next_due_after_now(tx, conversation.mailbox) for conversation in _iterate_idle(tx)
    ]
    return min((due_at for due_at in times if due_at is not None), default=None)


def _iterate_idle(tx: Tx) -> Iterator[Conversation]:
    """Yield the conversations that have letters and no run."""
    for mailbox in queries.list_mailboxes(tx, "session"):
        conversation = conversations.find_conversation(tx, mailbox.removeprefix("session:"))
        if conversation is not None and conversation.run_id is None:
            yield conversation
