"""The bodies of letters that give a session work: a chat message, or a scheduled task.

Any process of the user can write to a session's mailbox. So a body is trusted only when the letter
has the sender and the key that chat would have given it.
"""

from typing import Any, TypeVar

import msgspec

from corral.domain.mail.model import Letter
from corral.kernel.text import convert

T = TypeVar("T")


class ChatPayload(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="chat"
):
    """A message of a place, as the body of a letter to a session."""

    message: str
    place: str
    place_name: str
    direct: bool
    thread: str | None = None
    sender: str
    text: str
    files: list[dict[str, Any]] = []
    keeps: bool = False
    """Whether the agent also gets the earlier messages that did not wake it."""


def parse_chat(letter: Letter) -> ChatPayload | None:
    """Return the chat message of a letter; None for any other letter.

    Agents can write any body to each other's sessions. Only chat itself can sign as a place.
    """
    body = letter.body
    if not isinstance(body, dict) or body.get("kind") != "chat":
        return None
    if letter.sender != f"place:{body.get('place')}" or letter.key != body.get("message"):
        return None
    return _convert(body, ChatPayload)


class TaskPayload(msgspec.Struct, frozen=True):
    """A scheduled task, as the body of a letter to a session."""

    text: str
    place: str | None = None
    thread: str | None = None
    found: str | None = None
    """The output of the task's script."""


def parse_task(letter: Letter) -> TaskPayload | None:
    """Return the scheduled task of a letter; None for any other letter.

    A schedule's letter has the schedule's key, and a place or nothing as its sender. Letters of
    agents have the agent's own mailbox as their sender.
    """
    body = letter.body
    if not isinstance(body, dict) or not isinstance(body.get("text"), str):
        return None
    if not (letter.key or "").startswith("sch_"):
        return None
    place = body.get("place")
    if letter.sender != (f"place:{place}" if place else None):
        return None
    return _convert(body, TaskPayload)


def _convert(body: Any, kind: type[T]) -> T | None:
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


def parse_request(letter: Letter) -> ChatPayload | TaskPayload | None:
    """Return what a letter asks a session to answer: a chat message or a task, or None."""
    return parse_chat(letter) or parse_task(letter)
