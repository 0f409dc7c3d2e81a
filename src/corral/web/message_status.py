"""The delivery status of chat messages, from their own state and that of their letters."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from corral.domain.chat.model import Message, MessageState
from corral.domain.mail.model import Letter, LetterState
from corral.web.request import PageRequest

MAX_LETTERS = 1_000
PENDING_STATES = (LetterState.WAITING, LetterState.UNCONFIRMED)


class RecipientStatus(NamedTuple):
    """An agent that a message was routed to."""

    agent_id: str
    session_id: str | None
    letter: Letter | None
    """None after retention has deleted it."""
    is_working: bool
    """Whether the agent is handling the message now."""


class DeliveryStatus(NamedTuple):
    """The status of a message in one word, with its letters."""

    state: str
    letter: Letter | None
    """The letter that delivers an outbound message."""
    recipients: list[RecipientStatus]

    @property
    def is_pending(self) -> bool:
        """Whether a letter of the message is not delivered or confirmed yet."""
        letters = [self.letter, *(recipient.letter for recipient in self.recipients)]
        return any(letter is not None and letter.state in PENDING_STATES for letter in letters)


def delivery_statuses(
    request: PageRequest, messages: Sequence[Message]
) -> dict[str, DeliveryStatus]:
    """Return the status of messages by id, with one query for all letters."""
    ids = [id for message in messages for id in _letter_ids(message)][:MAX_LETTERS]
    letters = {letter.id: letter for letter in request.store.mail.get_all(ids)} if ids else {}
    now = request.store.now()
    return {message.id: _status(message, letters, now) for message in messages}


def _letter_ids(message: Message) -> Iterable[str]:
    ids = [message.letter_id, *(route.letter_id for route in message.routes)]
    return (id for id in ids if id is not None)


def _status(message: Message, letters: dict[str, Letter], now: int) -> DeliveryStatus:
    recipients = [
        RecipientStatus(
            route.agent_id,
            route.session_id,
            letter := letters.get(route.letter_id or ""),
            letter is not None and letter.is_claimed(now),
        )
        for route in message.routes
        if route.wakes
    ]
    letter = letters.get(message.letter_id or "")
    return DeliveryStatus(_state(message, letter), letter, recipients)


def _state(message: Message, letter: Letter | None) -> str:
    """Return the message's state, unless its letter is unconfirmed or being retried."""
    if letter is not None and letter.state is LetterState.UNCONFIRMED:
        return "unconfirmed"
    is_retried = letter is not None and letter.state is LetterState.WAITING
    return "queued" if is_retried and message.state is MessageState.UNDELIVERED else message.state
