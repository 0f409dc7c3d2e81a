"""What boxed agents say in their file is taken over, and nothing of it believed.

In the order of its numbers, each message in a transaction with the number up to which that was
done; so it may be looked at as often as one likes. Who the agent is, where it may send to, what it
may ask for and which letters it has are asked of the store.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from corral.adapters.channels.contract import File
from corral.adapters.sandbox_bridge.rows import Out
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.alerts import ops as alerts
from corral.domain.chat.channels import ops as gateway
from corral.domain.chat.conversations import agent_mail, turns
from corral.domain.chat.conversations.payloads import chat_of
from corral.domain.chat.model import Talk
from corral.domain.chat.outbound import attachments, queue
from corral.domain.host_requests import ops as requests
from corral.domain.host_requests.actions import ACTIONS
from corral.domain.mail import chains
from corral.domain.mail import ops as mail
from corral.domain.mail.model import Letter
from corral.domain.questions import ops as questions
from corral.domain.questions.model import Question
from corral.domain.runs.model import Run
from corral.domain.sandbox_bridge import sql
from corral.domain.schedules import ops as schedules
from corral.domain.sessions import ops as sessions
from corral.kernel.clock import SECOND
from corral.kernel.errors import CorralError, Invalid, Refused
from corral.kernel.ids import number_of
from corral.kernel.text import MAX_NAME, abridged


class Content(msgspec.Struct):
    """What a message of the inside may say; whatever else is in it is not looked at."""

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


def files_of(row: Out) -> list[str]:
    """The names of the files that a message brings; Invalid when they are none."""
    names = _content(row).files
    if len(names) > attachments.MOST_FILES:
        raise Invalid(f"it has more than {attachments.MOST_FILES} files")
    if any(not name or "/" in name or name in (".", "..") for name in names):
        raise Invalid("it names a file that is not in the folder of its message")
    return names


def take(tx: Tx, session: str, run: Run, row: Out, files: Sequence[File] = ()) -> bool:
    """Take over one message of the inside, once: do what it says, as the agent's own tools would.
    `files` are the private copies of those that it brings. False when that was done before.
    CorralError says why it is refused; nothing was done then."""
    talk = turns.take_over(tx, session, run.id, row.seq)
    if talk is None:
        return False
    said = _content(row)
    if row.later:
        raise Refused("a message cannot be sent later, or again and again; set a timer")
    made: dict[str, Any] = {}
    if row.kind == "system":
        _act(tx, talk, run, row, said)
    elif row.kind not in ("chat", "chat-sdk"):
        raise Invalid(f"there is no kind {row.kind!r} of messages")
    elif said.type == "ask_question":
        made["question_id"] = _ask(tx, talk, run, row, said).id
    elif row.channel_type == "agent":
        _write(tx, talk, run, row, said)
    elif files:
        made["message"] = _send_files(tx, talk, run, row, said, files)
    else:
        made["message"] = _say(tx, talk, run, row, said)
    _remember(tx, session, row.id, **made)
    return True


def _content(row: Out) -> Content:
    try:
        said = msgspec.json.decode(row.content, type=Content)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError):
        raise Invalid("its content is not what a message has") from None
    named = said.message or ""
    if not (named.isascii() and named.isprintable() and len(named) <= MAX_NAME):
        raise Invalid("it names no message")
    return said


def _words(said: Content) -> str:
    if not said.text:
        raise Invalid("it says nothing")
    return said.text


def _say(tx: Tx, talk: Talk, run: Run, row: Out, said: Content) -> int | None:
    text = _words(said)
    session = talk.session_id
    where = _address(tx, talk, row)
    target = _target(tx, talk, row, said, where.place) if said.operation else None
    if said.final and run.provider == "plain":
        sessions.append(tx, session, "assistant", text, key=f"{session}:{row.id}", run=run.id)
    if said.final:
        agent_mail.answer(tx, talk, run.id, text)
        if where.place is None and _answered(tx, talk) is None:
            return None  # another agent wrote to this session, and has its answer
    sent = queue.send_in_thread(
        tx,
        text,
        agent=talk.agent_id,
        to=where.place,
        thread=where.thread,
        session=session,
        run=run.id,
        edit=target if said.operation == "edit" else None,
        react=target if said.operation == "react" else None,
        reply_to=where.message if target is None and not said.final else None,
        key=f"{session}:{row.id}",
    )
    return number_of("msg", sent[-1].id) if sent else None


def _send_files(
    tx: Tx, talk: Talk, run: Run, row: Out, said: Content, files: Sequence[File]
) -> int:
    where = _address(tx, talk, row)
    sent = attachments.send_in_thread(
        tx,
        list(files),
        agent=talk.agent_id,
        text=said.text or "",
        to=where.place,
        thread=where.thread,
        session=talk.session_id,
        run=run.id,
        key=f"{talk.session_id}:{row.id}",
    )
    return number_of("msg", sent[-1].id)


class BoxAddress(NamedTuple):
    """The target of a message from a boxed agent."""

    place: str | None
    """None: the place where the session is answered."""
    thread: str | None
    message: str | None
    """The message in that place that it answers, if any."""


def _address(tx: Tx, talk: Talk, row: Out) -> BoxAddress:
    """Return the target of a message: the chat and thread that it names, else those of the message
    that it answers (`in_reply_to`). Raises Refused when the agent was not given that message."""
    place = _place(tx, row)
    told = _told_letter(tx, talk, row.in_reply_to) if row.in_reply_to else None
    chat = chat_of(told) if told is not None else None
    if chat is None or place not in (None, chat.place):
        return BoxAddress(place, row.thread_id, None)
    return BoxAddress(chat.place, row.thread_id or chat.thread, chat.message)


def _told_letter(tx: Tx, talk: Talk, named: str) -> Letter:
    """Return a letter of this session by its name in the file."""
    id = named.partition(".")[0]
    letter = mail.find(tx, number_of("let", id)) if id.startswith("let_") else None
    if letter is None or letter.mailbox != talk.mailbox:
        raise Refused("it answers a message that the agent was not given")
    return letter


def _place(tx: Tx, row: Out) -> str | None:
    """The place that a message is addressed to; None: none is named."""
    if row.platform_id is None:
        return None
    try:
        channel = gateway.get_channel(tx, row.channel_type or "")
    except CorralError:
        raise Refused(f"there is no channel {row.channel_type!r}") from None
    found = gateway.place_on(tx, channel, row.platform_id)
    if found is None:
        raise Refused(f"there is no such chat on {channel.name}")
    return str(found.id)


def _target(tx: Tx, talk: Talk, row: Out, said: Content, to: str | None) -> str:
    """The message that an edit or a sign is about: one of the agent's own, or one it was told."""
    if said.operation not in ("edit", "react"):
        raise Invalid(f"there is no operation {said.operation!r}")
    named = said.message or ""
    if named.startswith("let_"):
        letter = mail.find(tx, number_of("let", named.partition(".")[0]))
        chat = chat_of(letter) if letter is not None else None
        if chat is not None and letter is not None and letter.mailbox == talk.mailbox:
            return chat.message
    place = to or _answered(tx, talk)
    if place is not None:
        key = f"{talk.session_id}:{named}"
        found = queue.sent_under(tx, gateway.place_of(tx, place), talk.agent_id, key)
        if found is not None:
            return found.id
    raise Refused("it is about a message that the agent neither said nor was told")


def _answered(tx: Tx, talk: Talk) -> str | None:
    found = queue.address_of(tx, talk)
    return found[0].id if found is not None else None


def _write(tx: Tx, talk: Talk, run: Run, row: Out, said: Content) -> None:
    """Write to another agent, as the tool `send` does, or answer its letter. Beyond the hop limit
    the letter is dropped and both agents are notified."""
    if row.thread_id:
        raise Refused("a letter to an agent has no thread; omit thread_id")
    name = agents.get(tx, row.platform_id or "").name
    told = _told_letter(tx, talk, row.in_reply_to) if row.in_reply_to else None
    answered = told.id if told is not None and told.sender == f"agent:{name}" else None
    agent_mail.write(
        tx,
        talk.agent_id,
        _words(said),
        to=None if answered else f"agent:{name}",
        reply_to=answered,
        run=run.id,
        session=talk.session_id,
        key=f"{talk.session_id}:{row.id}",
    )


def _ask(tx: Tx, talk: Talk, run: Run, row: Out, said: Content) -> Question:
    me = agents.get(tx, talk.agent_id).name
    return questions.ask(
        tx,
        said.question or "",
        options=said.options,
        asker=f"agent:{me}",
        project=run.project_id,
        run=run.id,
        key=f"{talk.session_id}:{row.id}",
    )


def _act(tx: Tx, talk: Talk, run: Run, row: Out, said: Content) -> None:
    """What an agent wants of the host itself; it has no other rights than its tools give it."""
    if said.action in ACTIONS:
        asked = requests.ask(
            tx,
            talk.agent_id,
            said.action,
            said.arguments,
            run=run.id,
            session=talk.session_id,
            key=f"{talk.session_id}:{row.id}",
        )
        if asked.ended_at is not None:  # at once: it learns by letter what others are told
            requests.tell(tx, asked)
        return
    if said.action != "timer_set":
        raise Refused(f"the host does nothing called {abridged(said.action or '', 60)!r} for it")
    delay_ms = (said.in_seconds or 0) * SECOND
    cause = chains.of_run(tx, run.id)
    chains.check(tx, cause)
    made = schedules.set_timer(tx, talk.mailbox, {"timer": _words(said)}, delay_ms=delay_ms)
    chains.save(tx, "schedules", made.id, cause)


def refuse(tx: Tx, session: str, run_id: str, row: Out | str, reason: str, *, tell: bool) -> bool:
    """Put on record that a message of the inside is refused; its agent is told by its file, and
    with `tell` also in words. False when it was dealt with before."""
    id = row if isinstance(row, str) else row.id
    if not isinstance(row, str) and turns.take_over(tx, session, run_id, row.seq) is None:
        return False
    if not _remember(tx, session, id, reason=reason):
        return False
    tx.note("session", "refuse", session, data={"message": id, "reason": abridged(reason, 500)})
    if tell:
        body = {"undelivered": id, "reason": reason}
        mail.put_after(tx, None, f"session:{session}", body, key=f"refused:{id}")
    return True


def _remember(
    tx: Tx,
    session: str,
    out_id: str,
    *,
    message: int | None = None,
    question_id: str | None = None,
    reason: str | None = None,
) -> bool:
    made = tx.run(
        sql.ADD,
        id=tx.new_id("out"),
        session_id=session,
        out_id=out_id,
        message=message,
        question_id=question_id,
        reason=reason,
        now=tx.now,
    )
    return bool(made)


def condemn(tx: Tx, session: str, reason: str) -> None:
    """Put on record that the whole file of the inside is not believed, and tell the operator."""
    tx.note("session", "refuse", session, data={"file": "outbound.db", "reason": reason})
    data = {"reason": abridged(f"outbound.db: {reason}", MAX_NAME)}
    alerts.raise_alert(tx, "undelivered", session, edge=f"file:{tx.now}", data=data)
