"""Ingest the messages that a sandboxed agent wrote to its file, without trusting them.

Messages are ingested by number. One transaction carries out a message and records its number, so
each takes effect at most once, however often the file is read. The agent's identity, destinations,
grants and letters come from the store, never from the file.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from corral.adapters.channels.contract import StoredFile
from corral.adapters.sandbox_bridge.rows import OutboundRow
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.alerts import ops as alerts
from corral.domain.chat.channels import ops as channels
from corral.domain.chat.channels import places
from corral.domain.chat.conversations import agent_mail
from corral.domain.chat.conversations import ops as conversations
from corral.domain.chat.model import Conversation
from corral.domain.chat.outbound import attachments, queue, targets
from corral.domain.chat.payloads import parse_chat
from corral.domain.host_requests import ops as requests
from corral.domain.host_requests.actions import ACTIONS
from corral.domain.mail import chains
from corral.domain.mail import ops as mail
from corral.domain.mail.model import Letter
from corral.domain.mail.payloads import UndeliveredNotice
from corral.domain.questions import ops as questions
from corral.domain.questions.model import Question
from corral.domain.runs.model import Run
from corral.domain.sandbox_bridge import sql
from corral.domain.schedules import ops as schedules
from corral.domain.sessions import ops as sessions
from corral.kernel.clock import SECOND
from corral.kernel.display_text import shorten
from corral.kernel.errors import CorralError, Invalid, Refused
from corral.kernel.ids import parse_number
from corral.kernel.validation import MAX_NAME


class OutboundContent(msgspec.Struct):
    """The content of a message from the sandbox; unknown fields are ignored."""

    text: str | None = None
    final: bool = False
    operation: str | None = None
    message: str | None = None
    type: str | None = None
    question: str | None = None
    options: list[str] = []
    action: str | None = None
    in_seconds: int | None = None
    arguments: dict[str, Any] = {}
    files: list[str] = []


class SandboxMessage(NamedTuple):
    """A message from a sandbox, with the conversation and the run that it belongs to."""

    conversation: Conversation
    run: Run
    row: OutboundRow
    content: OutboundContent

    @property
    def key(self) -> str:
        """Its idempotency key."""
        return f"{self.conversation.session_id}:{self.row.id}"


def list_files(row: OutboundRow) -> list[str]:
    """Return the names of a message's files; raises Invalid for too many or unsafe names."""
    names = _decode_content(row).files
    if len(names) > attachments.MAX_FILES:
        raise Invalid(f"it has more than {attachments.MAX_FILES} files")
    if any(not name or "/" in name or name in (".", "..") for name in names):
        raise Invalid("it names a file that is not in the directory of its message")
    return names


def ingest_message(
    tx: Tx, session: str, run: Run, row: OutboundRow, files: Sequence[StoredFile] = ()
) -> bool:
    """Carry out one message from the sandbox, as the agent's own tools would.

    `files` are private copies of the message's files. Returns False when the message was ingested
    before. Raises CorralError when it is rejected; the caller rolls back and records that.
    """
    conversation = conversations.advance_ingested(tx, session, run.id, row.seq)
    if conversation is None:
        return False
    content = _decode_content(row)
    if row.later:
        raise Refused("delayed and repeated messages are not supported; set a timer")
    message = SandboxMessage(conversation, run, row, content)
    outcome: dict[str, Any] = {}
    if row.kind == "system":
        _run_action(tx, message)
    elif row.kind not in ("chat", "chat-sdk"):
        raise Invalid(f"unknown kind of message {row.kind!r}")
    elif content.type == "ask_question":
        outcome["question_id"] = _ask_question(tx, message).id
    elif row.channel_type == "agent":
        _write_letter(tx, message)
    elif files:
        outcome["message_id"] = _send_files(tx, message, files)
    else:
        outcome["message_id"] = _send_text(tx, message)
    _add_outcome(tx, session, row.id, **outcome)
    return True


def _decode_content(row: OutboundRow) -> OutboundContent:
    try:
        content = msgspec.json.decode(row.content, type=OutboundContent)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError):
        raise Invalid("its content is not valid") from None
    named = content.message or ""
    if not (named.isascii() and named.isprintable() and len(named) <= MAX_NAME):
        raise Invalid("it names an invalid message")
    return content


def _require_text(content: OutboundContent) -> str:
    if not content.text:
        raise Invalid("its text is missing")
    return content.text


def _send_text(tx: Tx, message: SandboxMessage) -> int | None:
    """Send a text, an edit or a reaction; return the number of the queued message, if any."""
    conversation, run, row, content = message
    text = _require_text(content)
    session = conversation.session_id
    address = _resolve_address(tx, conversation, row)
    target = _find_target(tx, conversation, content, address.place) if content.operation else None
    if content.final and run.provider == "plain":
        sessions.append(tx, session, "assistant", text, key=message.key, run=run.id)
    if content.final:
        agent_mail.answer_senders(tx, conversation, run.id, text)
        if address.place is None and _find_reply_place(tx, conversation) is None:
            return None  # a letter of another agent, which has got its answer
    sent = queue.send(
        tx,
        text,
        agent=conversation.agent_id,
        to=address.place,
        thread=address.thread,
        session=session,
        run=run.id,
        edit=target if content.operation == "edit" else None,
        react=target if content.operation == "react" else None,
        reply_to=address.message if target is None and not content.final else None,
        key=message.key,
    )
    return parse_number("msg", sent[-1].id) if sent else None


def _send_files(tx: Tx, message: SandboxMessage, files: Sequence[StoredFile]) -> int:
    """Send files after a text; return the number of the last queued message."""
    conversation, run, row, content = message
    address = _resolve_address(tx, conversation, row)
    sent = attachments.send(
        tx,
        list(files),
        agent=conversation.agent_id,
        text=content.text or "",
        to=address.place,
        thread=address.thread,
        session=conversation.session_id,
        run=run.id,
        key=message.key,
    )
    return parse_number("msg", sent[-1].id)


class SandboxTarget(NamedTuple):
    """The target of a message from the sandbox."""

    place: str | None
    """None: the session's reply address."""
    thread: str | None
    message: str | None
    """The message in that place that it answers, if any."""


def _resolve_address(tx: Tx, conversation: Conversation, row: OutboundRow) -> SandboxTarget:
    """Return the chat and thread that a message names, else those of the message that it answers.

    Raises Refused when the agent was not given the message of `in_reply_to`.
    """
    place = _find_place(tx, row)
    letter = _find_letter(tx, conversation, row.in_reply_to) if row.in_reply_to else None
    chat = parse_chat(letter) if letter is not None else None
    if chat is None or place not in (None, chat.place):
        return SandboxTarget(place, row.thread_id, None)
    return SandboxTarget(chat.place, row.thread_id or chat.thread, chat.message)


def _find_letter(tx: Tx, conversation: Conversation, named: str) -> Letter:
    """Return a letter of this session by its name in the file."""
    id = named.partition(".")[0]
    letter = mail.find_by_number(tx, parse_number("let", id)) if id.startswith("let_") else None
    if letter is None or letter.mailbox != conversation.mailbox:
        raise Refused("it answers a message that the agent was not given")
    return letter


def _find_place(tx: Tx, row: OutboundRow) -> str | None:
    """Return the place that a message names, or None."""
    if row.platform_id is None:
        return None
    try:
        channel = channels.get_channel(tx, row.channel_type or "")
    except CorralError:
        raise Refused(f"unknown channel {row.channel_type!r}") from None
    match = places.find_by_platform_id(tx, channel, row.platform_id)
    if match is None:
        raise Refused(f"unknown chat on {channel.name}")
    return str(match.id)


def _find_target(
    tx: Tx, conversation: Conversation, content: OutboundContent, to: str | None
) -> str:
    """Return the message to edit or react to: one that the agent sent or was given."""
    if content.operation not in ("edit", "react"):
        raise Invalid(f"unknown operation {content.operation!r}")
    named = content.message or ""
    if named.startswith("let_"):
        letter = mail.find_by_number(tx, parse_number("let", named.partition(".")[0]))
        chat = parse_chat(letter) if letter is not None else None
        if chat is not None and letter is not None and letter.mailbox == conversation.mailbox:
            return chat.message
    place = to or _find_reply_place(tx, conversation)
    if place is not None:
        key = f"{conversation.session_id}:{named}"
        match = queue.find_sent(tx, places.load_place(tx, place), conversation.agent_id, key)
        if match is not None:
            return match.id
    raise Refused("it refers to a message that the agent neither sent nor was given")


def _find_reply_place(tx: Tx, conversation: Conversation) -> str | None:
    address = targets.find_reply_address(tx, conversation)
    return address.place.id if address is not None else None


def _write_letter(tx: Tx, message: SandboxMessage) -> None:
    """Write to another agent, as the tool `send` does, or answer its letter.

    Beyond the hop limit the letter is dropped and both agents are notified.
    """
    conversation, run, row, content = message
    if row.thread_id:
        raise Refused("a letter to an agent has no thread; omit thread_id")
    name = agents.get(tx, row.platform_id or "").name
    letter = _find_letter(tx, conversation, row.in_reply_to) if row.in_reply_to else None
    answered = letter.id if letter is not None and letter.sender == f"agent:{name}" else None
    agent_mail.send(
        tx,
        conversation.agent_id,
        _require_text(content),
        to=None if answered else f"agent:{name}",
        reply_to=answered,
        run=run.id,
        session=conversation.session_id,
        key=message.key,
    )


def _ask_question(tx: Tx, message: SandboxMessage) -> Question:
    conversation, run, _, content = message
    name = agents.get(tx, conversation.agent_id).name
    return questions.ask(
        tx,
        content.question or "",
        options=content.options,
        asker=f"agent:{name}",
        project=run.project_id,
        run=run.id,
        key=message.key,
    )


def _run_action(tx: Tx, message: SandboxMessage) -> None:
    """Carry out an action of the host. The agent has the same rights as by its tools."""
    conversation, run, _, content = message
    if content.action in ACTIONS:
        request = requests.ask(
            tx,
            conversation.agent_id,
            content.action,
            content.arguments,
            run=run.id,
            session=conversation.session_id,
            key=message.key,
        )
        if request.ended_at is not None:  # decided at once; the agent gets the result as a letter
            requests.notify_agent(tx, request)
        return
    if content.action != "timer_set":
        raise Refused(f"unknown action {shorten(content.action or '', 60)!r}")
    delay_ms = (content.in_seconds or 0) * SECOND
    cause = chains.get_for_run(tx, run.id)
    chains.check_hop_limit(tx, cause)
    timer = schedules.set_timer(
        tx, conversation.mailbox, {"timer": _require_text(content)}, delay_ms=delay_ms
    )
    chains.save(tx, "schedules", timer.id, cause)


def reject_message(
    tx: Tx, session: str, run_id: str, row: OutboundRow | str, reason: str, *, notify: bool
) -> bool:
    """Record that a message from the sandbox is rejected. The sandbox's file shows it as failed.

    With `notify` the agent also gets a letter with the reason. Returns False when the message was
    ingested or rejected before.
    """
    id = row if isinstance(row, str) else row.id
    if (
        not isinstance(row, str)
        and conversations.advance_ingested(tx, session, run_id, row.seq) is None
    ):
        return False
    if not _add_outcome(tx, session, id, reason=reason):
        return False
    tx.emit(
        "session",
        "refuse",
        session,
        data={"message": id, "reason": tx.shorten_for_storage(reason, 500)},
    )
    if notify:
        body = UndeliveredNotice(undelivered=id, reason=reason)
        mail.put_caused_by(tx, None, f"session:{session}", body, key=f"refused:{id}")
    return True


def _add_outcome(
    tx: Tx,
    session: str,
    out_id: str,
    *,
    message_id: int | None = None,
    question_id: str | None = None,
    reason: str | None = None,
) -> bool:
    rows = tx.run(
        sql.ADD_OUTCOME,
        id=tx.new_id("out"),
        session_id=session,
        out_id=out_id,
        message_id=message_id,
        question_id=question_id,
        reason=reason,
        now=tx.now,
    )
    return bool(rows)


def reject_file(tx: Tx, session: str, reason: str) -> None:
    """Record that the whole file is invalid, and alert the operator."""
    tx.emit("session", "refuse", session, data={"file": "outbound.db", "reason": reason})
    data = {"reason": tx.shorten_for_storage(f"outbound.db: {reason}", MAX_NAME)}
    alerts.raise_alert(tx, "undelivered", session, edge=f"file:{tx.now}", data=data)
