"""Agents that are boxed: a sandbox without network, spoken to by the two files of their session.

The letters are the same as for anybody. What the host's file shows is made from the store, and what
the agent's file says is taken over by `unboxing`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from corral.adapters.sandbox_bridge.rows import Outcome, Picture, Row, Target
from corral.adapters.sandbox_bridge.schema import Folder
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.chat.channels import ops as gateway
from corral.domain.chat.channels import wirings
from corral.domain.chat.conversations import prompts, turns
from corral.domain.chat.conversations.payloads import chat_of
from corral.domain.chat.model import MessageState, Talk
from corral.domain.chat.outbound import queue
from corral.domain.mail import ops as mail
from corral.domain.mail.model import Letter
from corral.domain.questions import ops as questions
from corral.domain.runs import ops as runs
from corral.domain.runs.model import Run
from corral.domain.runs.spec import BOXED
from corral.domain.sandbox_bridge import sql
from corral.domain.sandbox_bridge.letters import as_seen, row_id
from corral.domain.sandbox_bridge.model import BoxedOutcome
from corral.domain.sessions import ops as sessions
from corral.domain.settings import ops as settings
from corral.kernel.errors import CorralError, NotFound
from corral.kernel.ids import number_of
from corral.kernel.prompt import transcribe
from corral.kernel.text import abridged, encode_json

KEPT = sql.KEPT
MOST_OUTCOMES = 500
MOST_STATE = 50
MOST_STATE_VALUE = 4_000


def wanted(tx: Tx, talk: Talk) -> str:
    """The sandbox for a session's run: `boxed:` and by what, or none."""
    session = sessions.get(tx, talk.session_id)
    name = agents.get(tx, talk.agent_id).name
    by = settings.value(tx, "gateway.sandbox", agent=name, project=session.project_id)
    return "none" if by == "off" else f"{BOXED}{by}"


# -- what the agent is shown ----------------------------------------------------------------------


def letters_of(tx: Tx, session: str) -> list[Letter]:
    """The letters that a session's run has now."""
    talk = turns.talk_of(tx, session)
    found = [mail.find(tx, number_of("let", each.id)) for each in talk.letters] if talk else []
    return [letter for letter in found if letter is not None and letter.ended_at is None]


def picture(tx: Tx, session: str, folder: Folder) -> Picture:
    """What the file is to show at the beginning of a run: its letters, where the agent may send to
    and is answered."""
    talk = turns.talk_of(tx, session)
    if talk is None or talk.run_id is None:
        return Picture(only=True)
    letters = as_seen(letters_of(tx, session), folder)
    prompt = runs.launch_of(tx, talk.run_id).prompt or ""
    # The whole prompt is with the first letter: its blocks belong together.
    rows = [_row(tx, talk, each, "" if number else prompt) for number, each in enumerate(letters)]
    cleared = sessions.get(tx, session).cleared_turn
    if cleared:
        clear = encode_json({"action": "clear"}, "The order")
        rows.insert(0, Row(f"clear-{cleared}", "system", tx.now, clear))
    return msgspec.structs.replace(addresses(tx, talk), rows=rows, only=True)


def _row(tx: Tx, talk: Talk, letter: Letter, text: str) -> Row:
    chat = chat_of(letter)
    content: dict[str, Any] = {"text": text}
    place = gateway.place_of(tx, chat.place) if chat is not None else None
    if chat is not None:
        content |= {"sender": chat.sender, "said": chat.text, "place": chat.place_name}
    else:
        content["said"] = transcribe(prompts.parts_of(tx, talk, letter))
    return Row(
        id=row_id(letter),
        kind="chat" if chat is not None else "system",
        timestamp=letter.created_at,
        content=encode_json(content, "The letter", most=1 << 27),
        tries=letter.attempts,
        platform_id=place.platform_id if place is not None else None,
        channel_type=gateway.channel_of(tx, place).name if place is not None else None,
        thread_id=chat.thread if chat is not None else None,
    )


def addresses(tx: Tx, talk: Talk) -> Picture:
    """Where an agent may send to, and where its session is answered, now."""
    known = wirings.list_destinations(tx, agent=talk.agent_id, limit=1_000).items
    targets = []
    for each in known:
        place = gateway.place_of(tx, each.place_id)
        channel = gateway.channel_of(tx, place).name
        targets.append(Target(each.name, place.called, "channel", channel, place.platform_id))
    answered = queue.address_of(tx, talk)
    routing: tuple[str | None, str | None, str | None] = (None, None, None)
    if answered is not None:
        place, thread = answered
        routing = (gateway.channel_of(tx, place).name, place.platform_id, thread)
    return Picture(destinations=targets, routing=routing)


# -- what became of it ----------------------------------------------------------------------------


class Told(msgspec.Struct, frozen=True):
    """What the file can be told now."""

    outcomes: list[Outcome]
    answers: list[Row]
    pending: frozenset[str]
    """Messages that were taken over, and whose end is not known yet."""


def outcomes(tx: Tx, session: str) -> Told:
    """What became of the messages of which the file does not tell it yet."""
    ended: list[Outcome] = []
    answers: list[Row] = []
    pending = set()
    for each in tx.all(sql.OF_SESSION, session_id=session, limit=MOST_OUTCOMES):
        outcome, answer = _ended(tx, each)
        if outcome is None:
            pending.add(each.out_id)
            continue
        ended.append(outcome)
        answers += [answer] if answer is not None else []
    return Told(ended, answers, frozenset(pending))


def _ended(tx: Tx, each: BoxedOutcome) -> tuple[Outcome | None, Row | None]:
    if each.reason is not None:
        return Outcome(each.out_id, None, "failed", each.created_at), None
    if each.question_id is not None:
        return _answered_by(tx, each)
    if each.message_id is None:
        return Outcome(each.out_id, None, "delivered", each.created_at), None
    try:
        message = queue.get(tx, each.message_id)
    except NotFound:
        return Outcome(each.out_id, None, "unknown", tx.now), None
    if message.state is MessageState.QUEUED:
        return None, None
    sent = message.state is MessageState.SENT
    id = message.platform_ids[0] if message.platform_ids else None
    ended_at = message.ended_at or tx.now
    return Outcome(each.out_id, id, "delivered" if sent else "failed", ended_at), None


def _answered_by(tx: Tx, each: BoxedOutcome) -> tuple[Outcome | None, Row | None]:
    try:
        question = questions.get(tx, str(each.question_id))
    except NotFound:
        return Outcome(each.out_id, None, "unknown", tx.now), None
    if question.ended_at is None:
        return None, None
    content = {
        "questionId": each.out_id,
        "state": question.state,
        "answer": question.answer,
        "by": question.answered_by,
    }
    row = Row(question.id, "system", question.ended_at, encode_json(content, "The answer"))
    return Outcome(each.out_id, None, "delivered", question.ended_at), row


def forget(tx: Tx, session: str, ids: Sequence[str]) -> None:
    """The file tells these outcomes now."""
    for id in ids:
        tx.run(sql.FORGET, session_id=session, out_id=id)


def hear(tx: Tx, run: Run, acks: Mapping[str, str]) -> None:
    """The answers that the agent has taken in need not be told it by letter."""
    for id, status in acks.items():
        if not id.startswith("qst_") or status != "completed":
            continue
        try:
            question = questions.get(tx, id)
        except CorralError:
            continue
        if question.run_id == run.id and question.ended_at is not None:
            questions.hear(tx, question.id)


def keep_state(tx: Tx, session: str, state: Mapping[str, str]) -> None:
    """Show in the store what the inside remembers; it is the file that counts for the agent."""
    shown = sessions.state(tx, session)
    for name, value in sorted(state.items())[:MOST_STATE]:
        own = f"boxed:{abridged(name, 100)}"
        short = abridged(value, MOST_STATE_VALUE)
        if shown.get(own) != short and "\0" not in own + short:
            sessions.set_state(tx, session, own, short)
