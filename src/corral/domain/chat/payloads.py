"""The bodies of letters that give a session work: a chat message, or a scheduled prompt.

Any process of the user can write to a session's mailbox. So a body is trusted only when the letter
has the sender and the key that Corral would have given it.
"""

import msgspec

from corral.domain.chat.model import Message, Place, Route, Sender, UnmatchedPolicy, Wiring
from corral.domain.mail.model import Letter, LetterDraft
from corral.domain.mail.payloads import ChatPayload, UndeliveredNotice, parse_payload
from corral.kernel.validation import convert


def parse_chat(letter: Letter) -> ChatPayload | None:
    """Return the chat message of a letter; None for any other letter.

    Agents can write any body to each other's sessions. Only chat itself can sign as a place.
    """
    chat = parse_payload(letter)
    if not isinstance(chat, ChatPayload):
        return None
    is_signed = letter.sender == f"place:{chat.place}" and letter.key == chat.message
    return chat if is_signed else None


def draft_chat_letter(
    route: Route, wiring: Wiring, message: Message, place: Place, sender: Sender
) -> LetterDraft:
    """Draft the letter that brings a chat message to the session of its route.

    `parse_chat` trusts its sender and its key.
    """
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


class ScheduledPromptPayload(msgspec.Struct, frozen=True):
    """A scheduled prompt, as the body of a letter to a session."""

    text: str
    place: str | None = None
    thread: str | None = None
    script_output: str | None = None
    """The output of the script of its schedule."""


def parse_scheduled_prompt(letter: Letter) -> ScheduledPromptPayload | None:
    """Return the scheduled prompt of a letter; None for any other letter.

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
    try:
        return convert(body, ScheduledPromptPayload)
    except msgspec.ValidationError:
        # Any user can sign a letter as a place. A malformed one must not block the session.
        return None


def is_notice(letter: Letter) -> bool:
    """Whether a letter only reports that an earlier one was not delivered.

    A notice wakes no agent: it is delivered together with the next letter.
    """
    return isinstance(parse_payload(letter), UndeliveredNotice)


def parse_request(letter: Letter) -> ChatPayload | ScheduledPromptPayload | None:
    """Return the chat message or scheduled prompt of a letter; None for any other letter."""
    return parse_chat(letter) or parse_scheduled_prompt(letter)
