"""What became of messages, for the pages that show them: their own state, and their letters'."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from corral.domain.chat.model import Message, MessageState
from corral.domain.mail.model import Letter, LetterState
from corral.web.request import Visit

MOST_LETTERS = 1_000
WITHOUT_END = (LetterState.WAITING, LetterState.UNKNOWN)


class Hearer(NamedTuple):
    """An agent that a message was given to, and what became of that."""

    agent_id: str
    session_id: str | None
    letter: Letter | None
    """None: it is kept no more."""
    works: bool
    """Whether the agent is at it now."""


class Fate(NamedTuple):
    """How far a message is, in one word, and what stands behind that."""

    state: str
    letter: Letter | None
    """Of what goes out: the letter that brings it."""
    hearers: list[Hearer]

    @property
    def is_open(self) -> bool:
        """Whether somebody is still to hear it, or it is still to arrive."""
        letters = [self.letter, *(each.letter for each in self.hearers)]
        return any(each is not None and each.state in WITHOUT_END for each in letters)


def follow(visit: Visit, messages: Sequence[Message]) -> dict[str, Fate]:
    """The fates of messages, by their ids; all letters are looked up at once."""
    wanted = [id for message in messages for id in _letters_of(message)][:MOST_LETTERS]
    found = {each.id: each for each in visit.store.mail.get_all(wanted)} if wanted else {}
    now = visit.store.now()
    return {message.id: _fate(message, found, now) for message in messages}


def _letters_of(message: Message) -> Iterable[str]:
    own = [message.letter_id, *(route.letter_id for route in message.routes)]
    return (id for id in own if id is not None)


def _fate(message: Message, letters: dict[str, Letter], now: int) -> Fate:
    hearers = [
        Hearer(
            route.agent_id,
            route.session_id,
            letter := letters.get(route.letter_id or ""),
            letter is not None and letter.is_out(now),
        )
        for route in message.routes
        if route.heard
    ]
    letter = letters.get(message.letter_id or "")
    return Fate(_word(message, letter), letter, hearers)


def _word(message: Message, letter: Letter | None) -> str:
    """The message's own state, unless its letter knows better: it is in doubt, or goes again."""
    if letter is not None and letter.state is LetterState.UNKNOWN:
        return "unknown"
    goes_on = letter is not None and letter.state is LetterState.WAITING
    return "queued" if goes_on and message.state is MessageState.UNDELIVERED else message.state
