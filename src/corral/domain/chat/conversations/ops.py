"""Conversations: sessions that are woken by the letters in their mailboxes.

A conversation belongs to an agent, a place and a thread. It is opened when it is needed first, and
again when its session was closed.
"""

from corral.db.tx import Tx
from corral.domain.chat import sql
from corral.domain.chat.model import Conversation, ConversationKey, Place, Wiring
from corral.domain.mail import ops as mail
from corral.domain.projects import ops as projects
from corral.domain.sessions import ops as sessions
from corral.domain.sessions.model import Session, SessionState
from corral.kernel.errors import NotFound

MAX_OF_PLACE = 200
MAX_TITLE = 60
MAIL_KEY = ConversationKey("", "mail")
"""The conversation of an agent for letters that belong to no chat."""


def find_conversation(tx: Tx, session: str) -> Conversation | None:
    """Return the conversation of a session; None when letters do not wake the session."""
    return tx.first(sql.CONVERSATION, session_id=session)


def list_of_place(tx: Tx, place_id: str) -> list[Conversation]:
    """Return the conversations that agents have in a place, at most MAX_OF_PLACE."""
    return tx.all(sql.CONVERSATIONS_OF_PLACE, place_id=place_id, limit=MAX_OF_PLACE)


def has_open_session(tx: Tx, conversation: Conversation) -> bool:
    """Whether the session of a conversation is open; False when it was closed or deleted."""
    try:
        return sessions.get(tx, conversation.session_id).state is SessionState.OPEN
    except NotFound:
        return False


def open_for_wiring(tx: Tx, wiring: Wiring, place: Place, thread: str | None) -> Conversation:
    """Return the conversation in which a wiring's agent gets messages of a place.

    Opens a session when there is none, or when the last one was closed.
    """
    key = wiring.build_conversation_key(place.id, thread)
    return open_for_place(tx, wiring.agent_id, place, key, project=_find_project(tx, wiring))


def open_for_place(
    tx: Tx, agent_id: str, place: Place, key: ConversationKey, *, project: str | None
) -> Conversation:
    """Return an agent's conversation by its key; open one that answers in `place` if needed."""
    current, closed = _get_open_or_retire(tx, agent_id, key)
    if current is not None:
        return current
    session = sessions.open_session(
        tx,
        agent_id,
        project=project,
        title=place.display_name[:MAX_TITLE],
        reply_to=place.mailbox,
    )
    return _create_successor(tx, closed, session, key)


def open_for_mail(tx: Tx, agent_id: str) -> Conversation:
    """Return the conversation in which an agent is woken for letters that belong to no chat."""
    current, closed = _get_open_or_retire(tx, agent_id, MAIL_KEY)
    if current is not None:
        return current
    session = sessions.open_session(tx, agent_id, title="Letters of other agents")
    return _create_successor(tx, closed, session, MAIL_KEY)


def create_conversation(tx: Tx, session: Session, key: ConversationKey) -> Conversation:
    """Let a session be woken by its letters from now on."""
    return tx.one(
        sql.ADD_CONVERSATION,
        session_id=session.id,
        agent_id=session.agent_id,
        place_id=key.place_id,
        thread=key.thread,
        now=tx.now,
    )


def _get_open_or_retire(
    tx: Tx, agent_id: str, key: ConversationKey
) -> tuple[Conversation | None, Conversation | None]:
    """Return the open conversation, and the one that this call deleted: its session is closed.

    At most one of them is set. The waiting letters of a deleted conversation are refused.
    Serialized, so that no other transaction creates the same one.
    """
    tx.serialize(f"conversation:{agent_id}:{key.place_id}:{key.thread}")
    conversation = tx.first(
        sql.CONVERSATION_BY_KEY, agent_id=agent_id, place_id=key.place_id, thread=key.thread
    )
    if conversation is None or conversation.run_id or has_open_session(tx, conversation):
        return conversation, None
    tx.run(sql.DELETE_IDLE_CONVERSATION, session_id=conversation.session_id)
    # No loop claims the letters of a session without a conversation.
    mail.refuse_waiting(tx, conversation.mailbox, reason="its session was closed")
    return None, conversation


def _create_successor(
    tx: Tx, closed: Conversation | None, session: Session, key: ConversationKey
) -> Conversation:
    """Create a conversation; later letters for the closed session are redirected to it."""
    if closed is not None:
        sessions.set_successor(tx, closed.session_id, session.id)
    return create_conversation(tx, session, key)


def _find_project(tx: Tx, wiring: Wiring) -> str | None:
    """Return the wiring's project; None when it has none or the project was deleted."""
    try:
        return projects.get(tx, wiring.project_id).id if wiring.project_id else None
    except NotFound:
        return None


def advance_ingested(tx: Tx, session: str, run_id: str, number: int) -> Conversation | None:
    """Record that a message of a sandboxed agent is ingested, by its number.

    None when it was ingested before, or when the run's chat turn is over.
    """
    return tx.first(sql.ADVANCE_INGESTED, session_id=session, run_id=run_id, seq=number)
