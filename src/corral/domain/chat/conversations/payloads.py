"""What a letter gives a session to do: a message of a place, or a task.

Anybody may write to a session's mailbox: what a letter says of itself is believed only when it is
signed by somebody who may say so.
"""

from typing import Any, TypeVar

import msgspec

from corral.domain.mail.model import Letter
from corral.kernel.text import convert

T = TypeVar("T")


class Chat(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="chat"
):
    """What a message of a place is in the letter that tells it to a session."""

    message: str
    place: str
    place_name: str
    direct: bool
    thread: str | None = None
    sender: str
    text: str
    files: list[dict[str, Any]] = []
    keeps: bool = False
    """Whether the agent is also told what was said before and did not wake it."""


def chat_of(letter: Letter) -> Chat | None:
    """The message of a place that a letter tells; None of any other letter.

    Agents may write to one another's sessions, and write what they like: a letter is believed when
    it is signed by the place, which no agent can do.
    """
    body = letter.body
    if not isinstance(body, dict) or body.get("kind") != "chat":
        return None
    if letter.sender != f"place:{body.get('place')}" or letter.key != body.get("message"):
        return None
    return _converted(body, Chat)


class Errand(msgspec.Struct, frozen=True):
    """What a task gives a session to do, in the letter that tells it."""

    text: str
    place: str | None = None
    thread: str | None = None
    found: str | None = None
    """What its script printed."""


def errand_of(letter: Letter) -> Errand | None:
    """What a schedule gives to do; None of any other letter.

    The letters of agents are signed with their own mailbox; a schedule's are signed by a place, or
    by nobody, and their key is the schedule's.
    """
    body = letter.body
    if not isinstance(body, dict) or not isinstance(body.get("text"), str):
        return None
    if not (letter.key or "").startswith("sch_"):
        return None
    place = body.get("place")
    if letter.sender != (f"place:{place}" if place else None):
        return None
    return _converted(body, Errand)


def _converted(body: Any, kind: type[T]) -> T | None:
    """Decode a body; None when it is malformed. Any user can sign a letter as a place, and a letter
    that cannot be decoded must not block a session."""
    try:
        return convert(body, kind)
    except msgspec.ValidationError:
        return None


def is_notice(letter: Letter) -> bool:
    """Whether a letter only reports that an earlier one was not delivered. A notice wakes no agent:
    it is delivered together with the next letter."""
    return isinstance(letter.body, dict) and "undelivered" in letter.body


def asked_in(letter: Letter) -> Chat | Errand | None:
    """What a letter gives a session to answer somewhere: a message, or a task."""
    return chat_of(letter) or errand_of(letter)
