"""Conversations and their chat turns.

A conversation is a session that is woken by the letters in its mailbox. A chat turn is one run that
works on a batch of these letters. It is not a turn of a session, which is one message of it:
a chat turn appends several.

`next_batch` selects the letters and `claim_letters` claims them. `begin_chat_turn` assigns them to
the run; `end_chat_turn` detaches the run. `ack_letters`, `refuse_letters` or `fail_letters` record
the outcome of the letters.
"""

from collections.abc import Sequence

from corral.db.tx import Tx
from corral.domain.alerts import ops as alerts
from corral.domain.chat import sql
from corral.domain.chat.model import (
    ClaimedLetter,
    Conversation,
    Message,
    Place,
    Route,
    Sender,
    UnmatchedPolicy,
    Wiring,
)
from corral.domain.chat.outbound import queue, targets
from corral.domain.chat.outbound.targets import ReplyAddress
from corral.domain.chat.payloads import (
    is_notice,
    parse_chat,
    parse_request,
)
from corral.domain.mail import chains, queries
from corral.domain.mail import ops as mail
from corral.domain.mail.model import Letter, LetterDraft, LetterState
from corral.domain.mail.payloads import ChatPayload
from corral.domain.projects import ops as projects
from corral.domain.schedules import occurrences
from corral.domain.sessions import ops as sessions
from corral.domain.sessions.model import Session, SessionState
from corral.kernel.clock import DAY
from corral.kernel.errors import NotFound
from corral.kernel.ids import parse_number
from corral.kernel.pagination import MAX_LIMIT
from corral.kernel.text import encode_json

MAX_LETTERS = 10
"""The maximum of letters in one chat turn, not counting notices."""
MAX_CLAIMED = 50
"""The maximum of letters and notices in one chat turn.

This many notices start a chat turn by themselves: otherwise the letters behind them would wait
for ever."""
MAX_OF_PLACE = 200
MAX_SENT = 100
MAX_TITLE = 60
MAIL_THREAD = "mail"
"""The thread of an agent's session for mail."""


# -- conversations --------------------------------------------------------------------------------


def find_conversation(tx: Tx, session: str) -> Conversation | None:
    """Return the conversation of a session; None when letters do not wake the session."""
    return tx.first(sql.CONVERSATION, session_id=session)


def list_of_place(tx: Tx, place_id: str) -> list[Conversation]:
    """Return the conversations that agents have in a place."""
    return tx.all(sql.CONVERSATIONS_OF_PLACE, place_id=place_id, limit=MAX_OF_PLACE)


def find_reply_address(tx: Tx, session: str) -> ReplyAddress | None:
    """Return where a session's answers go; None when they go to no channel."""
    conversation = find_conversation(tx, session)
    return targets.find_reply_address(tx, conversation) if conversation is not None else None


def open_for_wiring(tx: Tx, wiring: Wiring, place: Place, thread: str | None) -> Conversation:
    """Return the conversation in which a wiring's agent gets messages of a place.

    Opens a session when there is none, or when the last one was closed.
    """
    place_id, thread_key = wiring.conversation_key(place.id, thread)
    return open_for_place(
        tx, wiring.agent_id, place, place_id, thread_key, project=_find_project(tx, wiring)
    )


def open_for_place(
    tx: Tx, agent_id: str, place: Place, place_id: str, thread: str, *, project: str | None
) -> Conversation:
    """Return an agent's conversation by place and thread key; open one for `place` if needed."""
    current, closed = _find_open(tx, agent_id, place_id, thread)
    if current is not None:
        return current
    session = sessions.open_session(
        tx,
        agent_id,
        project=project,
        title=place.display_name[:MAX_TITLE],
        reply_to=place.mailbox,
    )
    return _redirect_letters(tx, closed, create_conversation(tx, session, place_id, thread))


def open_for_mail(tx: Tx, agent_id: str) -> Conversation:
    """Return the conversation in which an agent is woken for letters that belong to no chat."""
    current, closed = _find_open(tx, agent_id, "", MAIL_THREAD)
    if current is not None:
        return current
    session = sessions.open_session(tx, agent_id, title="Letters of other agents")
    return _redirect_letters(tx, closed, create_conversation(tx, session, "", MAIL_THREAD))


def create_conversation(tx: Tx, session: Session, place_id: str, thread: str) -> Conversation:
    """Let a session be woken by its letters from now on."""
    return tx.one(
        sql.ADD_CONVERSATION,
        session_id=session.id,
        agent_id=session.agent_id,
        place_id=place_id,
        thread=thread,
        now=tx.now,
    )


def _find_open(
    tx: Tx, agent_id: str, place_id: str, thread: str
) -> tuple[Conversation | None, Conversation | None]:
    """Return the open conversation, and the one that was deleted because its session is closed.

    At most one of them is set. Serialized, so that no other transaction creates the same one.
    """
    tx.serialize(f"conversation:{agent_id}:{place_id}:{thread}")
    conversation = tx.first(
        sql.CONVERSATION_BY_ADDRESS, agent_id=agent_id, place_id=place_id, thread=thread
    )
    if conversation is None or conversation.run_id or _is_session_open(tx, conversation.session_id):
        return conversation, None
    tx.run(sql.DELETE_IDLE_CONVERSATION, session_id=conversation.session_id)
    # No loop claims the letters of a session without a conversation.
    mail.refuse_waiting(tx, conversation.mailbox, reason="its session was closed")
    return None, conversation


def _redirect_letters(
    tx: Tx, closed: Conversation | None, conversation: Conversation
) -> Conversation:
    """Redirect later letters for a closed session to the new conversation."""
    if closed is not None:
        sessions.set_successor(tx, closed.session_id, conversation.session_id)
    return conversation


def _find_project(tx: Tx, wiring: Wiring) -> str | None:
    """Return the wiring's project; None when it has none or the project was deleted."""
    try:
        return projects.get(tx, wiring.project_id).id if wiring.project_id else None
    except NotFound:
        return None


def _is_session_open(tx: Tx, session_id: str) -> bool:
    return sessions.get(tx, session_id).state is SessionState.OPEN


def advance_ingested(tx: Tx, session: str, run_id: str, number: int) -> Conversation | None:
    """Record that a message of a sandboxed agent is ingested, by its number.

    None when it was ingested before, or when the run's chat turn is over.
    """
    return tx.first(sql.ADVANCE_INGESTED, session_id=session, run_id=run_id, seq=number)


def is_used(tx: Tx) -> bool:
    """Whether chat has work: a channel exists, or letters wake a session."""
    return bool(tx.value(sql.IS_USED))


# -- selecting letters ----------------------------------------------------------------------------


def draft_letter(
    route: Route, wiring: Wiring, message: Message, place: Place, sender: Sender
) -> LetterDraft:
    """Draft the letter that brings a chat message to the session of its route."""
    return LetterDraft(
        f"session:{route.session_id}",
        ChatPayload(
            message=message.id,
            place=place.id,
            place_name=place.display_name,
            direct=place.direct,
            thread=message.thread,
            sender=sender.display_name,
            text=message.text,
            files=(message.data or {}).get("files", []),
            has_context=wiring.unmatched is UnmatchedPolicy.KEEP,
        ),
        key=message.id,
        sender=place.mailbox,  # the place is notified when the letter is never answered
    )


def list_waiting(tx: Tx) -> list[Conversation]:
    """Return the conversations with due letters and no run, in the order of arrival."""
    waiting: list[tuple[int, int, Conversation]] = []
    for mailbox in queries.list_mailboxes(tx, "session"):
        conversation = find_conversation(tx, mailbox.removeprefix("session:"))
        if conversation is None or conversation.run_id is not None:
            continue
        letters = next_batch(tx, conversation)
        if letters:
            first = letters[0]
            waiting.append((first.queue_at, parse_number("let", first.id), conversation))
    return [conversation for _, _, conversation in sorted(waiting, key=lambda item: item[:2])]


def next_due(tx: Tx) -> int | None:
    """Return when the next letter of a session without a run becomes due; None if none will."""
    times = [
        letter.due_at
        for mailbox in queries.list_mailboxes(tx, "session")
        if (conversation := find_conversation(tx, mailbox.removeprefix("session:"))) is not None
        and conversation.run_id is None
        for letter in queries.list_waiting(tx, mailbox=mailbox, limit=MAX_LETTERS).items
        if letter.due_at > tx.now
    ]
    return min(times, default=None)


def claim_letters(tx: Tx, conversation: Conversation) -> list[Letter]:
    """Claim the letters of the next chat turn (see `next_batch`), until that turn ends."""
    batch = next_batch(tx, conversation)
    if not batch:
        return []
    claimed = mail.claim(
        tx, conversation.mailbox, owner=_owner(conversation), limit=len(batch), lease_ms=DAY
    )
    return mail.end_undeliverable(tx, claimed)


def _owner(conversation: Conversation) -> str:
    return f"conversation:{conversation.session_id}"


def next_batch(tx: Tx, conversation: Conversation) -> list[Letter]:
    """Return the letters of the next chat turn; empty when nothing has to be done now.

    Letters from one place share a chat turn. A letter that failed before gets a chat turn of its
    own, so that a poison message does not make other letters fail. Notices go with the letter
    behind them and wake no agent by themselves, unless they fill a batch, or a letter of a lower
    priority waits.

    The rules only cut a prefix of what a claim gives, and an empty result means that no letter but
    notices is due. So no letter can block a session for longer than its own retries.
    """
    claimable = queries.list_claimable(
        tx, conversation.mailbox, owner=_owner(conversation), limit=MAX_CLAIMED
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
        origin = _origin(letter)
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
    return len(batch) == MAX_CLAIMED or (bool(batch) and _has_other_due(tx, conversation))


def _has_other_due(tx: Tx, conversation: Conversation) -> bool:
    """Whether a letter of a lower priority waits behind notices: one claim holds one priority, so
    the notices need a chat turn of their own first."""
    waiting = queries.list_waiting(tx, mailbox=conversation.mailbox, limit=MAX_LIMIT).items
    return any(letter.due_at <= tx.now and not is_notice(letter) for letter in waiting)


def _origin(letter: Letter) -> tuple[str, str | None] | None:
    request = parse_request(letter)
    return (request.place, request.thread) if request is not None and request.place else None


# -- chat turns ------------------------------------------------------------------------------------


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
    record_given(tx, letters, run_id)
    claimed = [ClaimedLetter(letter.id, letter.fence) for letter in letters]
    return tx.first(
        sql.BEGIN_CHAT_TURN,
        session_id=conversation.session_id,
        run_id=run_id,
        claimed_letters=encode_json(claimed, "The letters"),
        seen_seq=last_message_number(letters),
    )


def record_given(tx: Tx, letters: Sequence[Letter], run_id: str) -> None:
    """Record the run that was given letters, for schedule occurrences and hop counting."""
    for letter in letters:
        occurrences.link_run(tx, letter, run_id)
        if parse_chat(letter) is None:
            chains.mark_read(tx, letter.id, run_id)


def last_message_number(letters: Sequence[Letter]) -> int:
    """Return the highest number of the chat messages in letters, or 0."""
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
                data={"mailbox": failed.mailbox, "reason": reason[:200]},
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


# -- replies --------------------------------------------------------------------------------------


def send_answer(tx: Tx, conversation: Conversation, run_id: str, text: str) -> list[Message]:
    """Send the result of a chat turn to the session's reply address.

    Skipped when the agent sent the same text there during that time.
    """
    address = targets.find_reply_address(tx, conversation)
    if address is None:
        return []
    if any(
        message.place_id == address.place.id and message.text.strip() == text.strip()
        for message in _list_sent(tx, conversation, run_id)
    ):
        return []
    return _send_to(tx, address, conversation, run_id, text)


def send_reply(tx: Tx, conversation: Conversation, run_id: str, text: str) -> list[Message]:
    """Send a run's answer to its current letters. Idempotent."""
    address = targets.find_reply_address(tx, conversation)
    return _send_to(tx, address, conversation, run_id, text) if address is not None else []


def _send_to(
    tx: Tx, address: ReplyAddress, conversation: Conversation, run_id: str, text: str
) -> list[Message]:
    letters = conversation.claimed_letters
    # One answer for the letters that the run began with, and one for each `take_next`.
    batch = f":{letters[0].id}" if letters and letters[0].late else ""
    return queue.enqueue(
        tx,
        address.place,
        text,
        agent_id=conversation.agent_id,
        thread=address.thread,
        run_id=run_id,
        sender=conversation.mailbox,
        key=f"{run_id}:answer{batch}",
    )


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
    key = f"{run_id}:notice"
    return queue.enqueue(tx, address.place, text, thread=address.thread, key=key)
