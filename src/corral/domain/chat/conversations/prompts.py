"""The prompt of a turn: the letters of a session, and the chat messages in between.

All of it comes from other sources, so all of it is quoted (`kernel/prompt.py`). A letter can claim
to be a chat message, an answer or a task, and any process of the user can put one. So the claim is
compared with the store; a letter that the store does not confirm is shown as unsigned.
"""

from collections.abc import Sequence
from typing import NamedTuple

from corral.db.tx import Tx
from corral.domain.chat import sql
from corral.domain.chat.conversations.payloads import Chat, chat_of, errand_of, is_notice
from corral.domain.chat.model import Message, Talk
from corral.domain.mail import ops as mail
from corral.domain.mail.model import Letter
from corral.domain.questions import ops as questions
from corral.domain.schedules import ops as schedules
from corral.domain.schedules.model import Schedule
from corral.kernel.errors import CorralError
from corral.kernel.ids import number_of
from corral.kernel.prompt import Own, PromptPart, Quote, looks_fenced, render, transcribe
from corral.kernel.text import encode_json, quoted

MOST_CONTEXT = 20
"""Maximum chat messages that are included with the letters."""


class ToldTurn(NamedTuple):
    """A turn that a session records for a part of a prompt; recorded once by its key, also when the
    turn is retried."""

    key: str
    text: str


class TurnPrompt(NamedTuple):
    """The prompt of one turn, and the turns that its session records."""

    text: str
    turns: list[ToldTurn]
    title: str
    """The text of the first letter, without the line that names its source."""


def build(tx: Tx, talk: Talk, letters: Sequence[Letter]) -> TurnPrompt:
    """Build the prompt of a turn with these letters."""
    told: list[tuple[str, list[PromptPart]]]
    told = [(f"{message.id}:told", [quote]) for message, quote in _context(tx, talk, letters)]
    told += [(f"{letter.id}:told", parts_of(tx, talk, letter)) for letter in letters]
    if len(told) == 1 and len(letters) == 1 and (own := _own_words(tx, talk, letters[0])):
        told = [(told[0][0], [Own(own)])]
    text = render([part for _, parts in told for part in parts])
    turns = [ToldTurn(key, transcribe(parts)) for key, parts in told]
    return TurnPrompt(text, turns, _title(letters, told[len(told) - len(letters) :]))


def _title(letters: Sequence[Letter], told: Sequence[tuple[str, list[PromptPart]]]) -> str:
    """Return the text of the first letter that is not a notice, else of the first one."""
    if not letters:
        return ""
    texts = [parts[0].text for _, parts in told]
    notices = [is_notice(letter) for letter in letters]
    return texts[notices.index(False) if False in notices else 0]


def _own_words(tx: Tx, talk: Talk, letter: Letter) -> str | None:
    """Return the text of a message that is the prompt itself; None: it must be quoted.

    In a session of one direct chat, the agent works for the person there: a single message of
    theirs is the prompt, as with `corral run`. Everything else in such a session is quoted, also a
    message that contains a fence line or has files.
    """
    chat = chat_of(letter)
    if chat is None or not chat.direct or chat.files or talk.place_id != chat.place:
        return None
    if looks_fenced(chat.text) or _message_of(tx, talk, chat) is None:
        return None
    return chat.text


def parts_of(tx: Tx, talk: Talk, letter: Letter) -> list[PromptPart]:
    """Return the parts for a letter; mostly one quote."""
    chat = chat_of(letter)
    message = _message_of(tx, talk, chat) if chat is not None else None
    if chat is not None and message is not None:
        files = tuple(str(file.get("path") or file.get("reason")) for file in chat.files)
        return [Quote(_source(tx, message, chat.place_name), chat.text, files)]
    errand = errand_of(letter)
    schedule = _schedule_of(tx, talk, letter)
    if errand is not None and schedule is not None:
        source = f"scheduled task {schedule.id}"
        found = [Quote(f"output of the script of {source}", errand.found)] if errand.found else []
        return [Quote(source, errand.text), *found]
    if schedule is not None:
        return [_letter_of(letter, f"of the schedule {schedule.id}, ")]
    return [_answer_of(tx, letter) or _notice_of(letter) or _letter_of(letter)]


def _message_of(tx: Tx, talk: Talk, chat: Chat) -> Message | None:
    """Return the stored message of a letter; None unless it was routed to this session."""
    try:
        message = tx.one(sql.MESSAGES.by_key, key_=number_of("msg", chat.message))
    except CorralError:
        return None
    if message is None or message.direction != "in" or message.place_id != chat.place:
        return None
    if message.text != chat.text or message.thread != chat.thread:
        return None
    went = any(route.session_id == talk.session_id for route in message.routes)
    return message if went else None


def _source(tx: Tx, message: Message, place: str) -> str:
    sender = sql.SENDERS.get(tx, message.sender_id).called if message.sender_id else "unknown"
    return f"chat message {message.id} from {quoted(sender)} in {quoted(place)}"


def _schedule_of(tx: Tx, talk: Talk, letter: Letter) -> Schedule | None:
    """Return the schedule that put a letter; None unless mailbox, sender and body match."""
    if not (letter.key or "").startswith("sch_"):
        return None
    try:
        schedule = schedules.get(tx, str(letter.key).partition("@")[0])
    except CorralError:
        return None
    before, now = schedule.body, letter.body
    same = before == now  # except for a script's output, which the schedule does not have
    if isinstance(before, dict) and isinstance(now, dict):
        same = before == {name: value for name, value in now.items() if name != "found"}
    put_by_it = _goes_to(tx, schedule.mailbox, talk) and schedule.sender == letter.sender
    return schedule if same and put_by_it else None


def _goes_to(tx: Tx, mailbox: str, talk: Talk) -> bool:
    """Whether letters to a mailbox go to this session, also as the successor of a closed one."""
    try:
        return mail.open_mailbox(tx, mailbox) == talk.mailbox
    except CorralError:
        return False


def _answer_of(tx: Tx, letter: Letter) -> Quote | None:
    """Return the stored answer to a question; None when the letter is something else."""
    body = letter.body
    if not isinstance(body, dict) or body.get("kind") != "question":
        return None
    id = body.get("question")
    question = questions.find(tx, id) if isinstance(id, str) else None
    if question is None or question.ended_at is None or letter.key != f"{question.id}:ended":
        return None
    if question.answer is None:
        return Quote(f"your question {question.id}, which is {question.state}", question.text)
    by = quoted(question.answered_by or "unknown")
    source = f"answer of {by} to your question {question.id} ({quoted(question.text)})"
    return Quote(source, question.answer)


def _notice_of(letter: Letter) -> Quote | None:
    body = letter.body
    if not is_notice(letter) or letter.sender is not None:
        return None
    source = f"notice {letter.id}: your message did not arrive"
    reason = body.get("reason") or "its reason is not known"
    return Quote(f"{source} ({quoted(str(body['undelivered']))})", str(reason))


def _letter_of(letter: Letter, origin: str = "") -> Quote:
    body = letter.body
    signed = f"signed {quoted(letter.sender)}" if letter.sender else "unsigned"
    if isinstance(body, dict) and body.get("kind") in ("notice", "request") and not letter.sender:
        text = str(body.get("text") or body.get("reason"))
    else:
        text = body if isinstance(body, str) else encode_json(body, "The letter")
    return Quote(f"letter {letter.id}, {origin}{signed}", text)


def _context(tx: Tx, talk: Talk, letters: Sequence[Letter]) -> list[tuple[Message, Quote]]:
    """Return the chat messages since the agent's last turn that did not wake it."""
    chats = [chat for letter in letters if (chat := chat_of(letter)) is not None and chat.keeps]
    if not chats or _message_of(tx, talk, chats[0]) is None:
        return []
    first = number_of("msg", chats[0].message)
    between = tx.all(
        sql.MESSAGES_OF_PLACE, place_id=chats[0].place, before=first, limit=MOST_CONTEXT
    )
    return [
        (message, Quote(f"earlier {_source(tx, message, chats[0].place_name)}", message.text))
        for message in reversed(between)
        if number_of("msg", message.id) > talk.seen
        and message.direction == "in"
        and message.kind == "text"
        and message.state in ("heard", "unheard")
        and not any(route.heard and route.agent_id == talk.agent_id for route in message.routes)
    ]
