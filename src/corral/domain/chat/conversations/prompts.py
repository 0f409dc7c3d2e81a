"""The prompt of a chat turn: the letters of a session, and the chat messages in between.

All of it comes from other sources, so all of it is quoted (`kernel/prompt.py`). A letter can claim
to be a chat message, an answer or a scheduled prompt, and any process of the user can put one. So
the claim is compared with the store; a letter that the store does not confirm is shown as unsigned.
"""

from collections.abc import Sequence
from typing import NamedTuple

from corral.db.tx import Tx
from corral.domain.chat import sql
from corral.domain.chat.model import Conversation, Message
from corral.domain.chat.payloads import is_notice, parse_chat, parse_scheduled_prompt
from corral.domain.mail import ops as mail
from corral.domain.mail.model import Letter
from corral.domain.mail.payloads import (
    ChatPayload,
    HostRequestOutcome,
    QuestionPayload,
    UndeliveredNotice,
    parse_payload,
)
from corral.domain.questions import ops as questions
from corral.domain.schedules import ops as schedules
from corral.domain.schedules.model import Schedule
from corral.kernel.display_text import quote_inline
from corral.kernel.errors import CorralError
from corral.kernel.ids import parse_number
from corral.kernel.prompt import (
    OwnText,
    PromptPart,
    Quote,
    contains_block_marker,
    render,
    transcribe,
)
from corral.kernel.validation import encode_json

MAX_CONTEXT_MESSAGES = 20
"""Maximum chat messages that are included with the letters."""


class RecordedTurn(NamedTuple):
    """A turn that a session records for a part of a prompt.

    The key makes it idempotent when the chat turn is retried.
    """

    key: str
    text: str


class TurnPrompt(NamedTuple):
    """The prompt of one chat turn, and the turns that its session records."""

    text: str
    turns: list[RecordedTurn]
    title: str
    """The text of the first letter, without the line that names its source."""


def build_prompt(tx: Tx, conversation: Conversation, letters: Sequence[Letter]) -> TurnPrompt:
    """Build the prompt of a chat turn with these letters."""
    sections: list[tuple[str, list[PromptPart]]]
    sections = [
        (f"{message.id}:prompt", [quote])
        for message, quote in _load_context(tx, conversation, letters)
    ]
    sections += [
        (f"{letter.id}:prompt", quote_letter(tx, conversation, letter)) for letter in letters
    ]
    if (
        len(sections) == 1
        and len(letters) == 1
        and (direct := _find_direct_prompt(tx, conversation, letters[0]))
    ):
        sections = [(sections[0][0], [OwnText(direct)])]
    text = render([part for _, parts in sections for part in parts])
    turns = [RecordedTurn(key, transcribe(parts)) for key, parts in sections]
    return TurnPrompt(text, turns, _find_title(letters, sections[len(sections) - len(letters) :]))


def _find_title(letters: Sequence[Letter], sections: Sequence[tuple[str, list[PromptPart]]]) -> str:
    """Return the text of the first letter that is not a notice, else of the first letter."""
    if not letters:
        return ""
    texts = [parts[0].text for _, parts in sections]
    notices = [is_notice(letter) for letter in letters]
    return texts[notices.index(False) if False in notices else 0]


def _find_direct_prompt(tx: Tx, conversation: Conversation, letter: Letter) -> str | None:
    """Return the text of a message that is the prompt itself; None: it must be quoted.

    In a session of one direct chat, the agent works for the person there: a single message of
    theirs is the prompt, as with `corral run`. Everything else in such a session is quoted, also a
    message that contains a block marker or has files.
    """
    chat = parse_chat(letter)
    if chat is None or not chat.direct or chat.files or conversation.place_id != chat.place:
        return None
    if contains_block_marker(chat.text) or _find_message(tx, conversation, chat) is None:
        return None
    return chat.text


def quote_letter(tx: Tx, conversation: Conversation, letter: Letter) -> list[PromptPart]:
    """Return the parts for a letter; mostly one quote."""
    chat = parse_chat(letter)
    message = _find_message(tx, conversation, chat) if chat is not None else None
    if chat is not None and message is not None:
        files = tuple(str(file.get("path") or file.get("reason")) for file in chat.files)
        return [Quote(_describe_source(tx, message, chat.place_name), chat.text, files)]
    scheduled = parse_scheduled_prompt(letter)
    schedule = _find_schedule(tx, conversation, letter)
    if scheduled is not None and schedule is not None:
        source = f"scheduled prompt {schedule.id}"
        if not scheduled.script_output:
            return [Quote(source, scheduled.text)]
        output = Quote(f"output of the script of {source}", scheduled.script_output)
        return [Quote(source, scheduled.text), output]
    if schedule is not None:
        return [_quote_other(letter, f"of the schedule {schedule.id}, ")]
    return [_quote_answer(tx, letter) or _quote_notice(letter) or _quote_other(letter)]


def _find_message(tx: Tx, conversation: Conversation, chat: ChatPayload) -> Message | None:
    """Return the stored message of a letter; None unless it was routed to this session."""
    try:
        message = tx.first(sql.MESSAGES.by_key, key_=parse_number("msg", chat.message))
    except CorralError:
        return None
    if message is None or message.direction != "in" or message.place_id != chat.place:
        return None
    if message.text != chat.text or message.thread != chat.thread:
        return None
    was_routed = any(route.session_id == conversation.session_id for route in message.routes)
    return message if was_routed else None


def _describe_source(tx: Tx, message: Message, place: str) -> str:
    sender = sql.SENDERS.get(tx, message.sender_id).display_name if message.sender_id else "unknown"
    return f"chat message {message.id} from {quote_inline(sender)} in {quote_inline(place)}"


def _find_schedule(tx: Tx, conversation: Conversation, letter: Letter) -> Schedule | None:
    """Return the schedule that put a letter; None unless mailbox, sender and body match."""
    if not (letter.key or "").startswith("sch_"):
        return None
    try:
        schedule = schedules.get(tx, str(letter.key).partition("@")[0])
    except CorralError:
        return None
    before, now = schedule.body, letter.body
    is_unchanged = before == now  # except for a script's output, which the schedule does not have
    if isinstance(before, dict) and isinstance(now, dict):
        is_unchanged = before == {
            name: value for name, value in now.items() if name != "script_output"
        }
    was_put = _goes_to(tx, schedule.mailbox, conversation) and schedule.sender == letter.sender
    return schedule if is_unchanged and was_put else None


def _goes_to(tx: Tx, mailbox: str, conversation: Conversation) -> bool:
    """Whether letters to a mailbox go to this session, also as the successor of a closed one."""
    try:
        return mail.resolve_mailbox(tx, mailbox) == conversation.mailbox
    except CorralError:
        return False


def _quote_answer(tx: Tx, letter: Letter) -> Quote | None:
    """Return the stored answer to a question; None when the letter is something else."""
    payload = parse_payload(letter)
    if not isinstance(payload, QuestionPayload):
        return None
    question = questions.find(tx, payload.question)
    if question is None or question.ended_at is None or letter.key != f"{question.id}:ended":
        return None
    if question.answer is None:
        return Quote(f"your question {question.id}, which is {question.state}", question.text)
    by = quote_inline(question.answered_by or "unknown")
    source = f"answer of {by} to your question {question.id} ({quote_inline(question.text)})"
    return Quote(source, question.answer)


def _quote_notice(letter: Letter) -> Quote | None:
    notice = parse_payload(letter)
    if not isinstance(notice, UndeliveredNotice) or letter.sender is not None:
        return None
    source = f"notice {letter.id}: your message did not arrive"
    reason = notice.reason or "its reason is not known"
    return Quote(f"{source} ({quote_inline(notice.undelivered)})", reason)


def _quote_other(letter: Letter, origin: str = "") -> Quote:
    body, payload = letter.body, parse_payload(letter)
    signed = f"signed {quote_inline(letter.sender)}" if letter.sender else "unsigned"
    if isinstance(payload, HostRequestOutcome) and not letter.sender:
        text = payload.text
    else:
        text = body if isinstance(body, str) else encode_json(body, "The letter")
    return Quote(f"letter {letter.id}, {origin}{signed}", text)


def _load_context(
    tx: Tx, conversation: Conversation, letters: Sequence[Letter]
) -> list[tuple[Message, Quote]]:
    """Return the chat messages since the agent's last chat turn that did not wake it."""
    chats = [
        chat for letter in letters if (chat := parse_chat(letter)) is not None and chat.has_context
    ]
    if not chats or _find_message(tx, conversation, chats[0]) is None:
        return []
    first = parse_number("msg", chats[0].message)
    between = tx.all(
        sql.MESSAGES_OF_PLACE.query,
        place_id=chats[0].place,
        before=first,
        limit=MAX_CONTEXT_MESSAGES,
    )
    return [
        (
            message,
            Quote(f"earlier {_describe_source(tx, message, chats[0].place_name)}", message.text),
        )
        for message in reversed(between)
        if parse_number("msg", message.id) > conversation.seen_seq
        and message.direction == "in"
        and message.kind == "text"
        and message.state in ("routed", "ignored")
        and not any(
            route.wakes and route.agent_id == conversation.agent_id for route in message.routes
        )
    ]
