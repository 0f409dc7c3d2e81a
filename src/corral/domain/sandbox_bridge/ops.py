"""The host's side of a sandboxed session: build the view of `inbound.db` from the store."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from corral.adapters.sandbox_bridge.rows import (
    DeliveryOutcome,
    DestinationRow,
    InboundRow,
    InboundView,
)
from corral.adapters.sandbox_bridge.schema import SessionFolder
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.chat.channels import destinations, places
from corral.domain.chat.conversations import ops as conversations
from corral.domain.chat.conversations import prompts
from corral.domain.chat.model import Conversation, MessageState
from corral.domain.chat.outbound import queue, targets
from corral.domain.chat.payloads import parse_chat
from corral.domain.mail import ops as mail
from corral.domain.mail.model import Letter
from corral.domain.questions import ops as questions
from corral.domain.runs import ops as runs
from corral.domain.runs.model import SESSION_SANDBOX_PREFIX, Run
from corral.domain.sandbox_bridge import sql
from corral.domain.sandbox_bridge.letters import build_row_id, with_sandbox_paths
from corral.domain.sandbox_bridge.model import SandboxOutcome
from corral.domain.sessions import ops as sessions
from corral.domain.settings import ops as settings
from corral.kernel.display_text import shorten
from corral.kernel.errors import CorralError, NotFound
from corral.kernel.ids import parse_number
from corral.kernel.prompt import transcribe
from corral.kernel.validation import encode_json

RETENTION = sql.RETENTION
MAX_OUTCOMES = 500
MAX_STATE_ENTRIES = 50
MAX_STATE_VALUE = 4_000


def select_sandbox(tx: Tx, conversation: Conversation) -> str:
    """Return the sandbox for a session's run: `session:` with the tool, or none."""
    session = sessions.get(tx, conversation.session_id)
    name = agents.get(tx, conversation.agent_id).name
    tool = settings.get_value(tx, "chat.sandbox", agent=name, project=session.project_id)
    return "none" if tool == "off" else f"{SESSION_SANDBOX_PREFIX}{tool}"


# -- the view of the store ------------------------------------------------------------------------


def list_letters(tx: Tx, session: str) -> list[Letter]:
    """Return the letters that a session's run works on."""
    conversation = conversations.find_conversation(tx, session)
    claimed = conversation.claimed_letters if conversation else []
    letters = [mail.find_by_number(tx, parse_number("let", letter.id)) for letter in claimed]
    return [letter for letter in letters if letter is not None and letter.ended_at is None]


def build_view(tx: Tx, session: str, folder: SessionFolder) -> InboundView:
    """Build the view at the start of a run: its letters, destinations and reply address."""
    conversation = conversations.find_conversation(tx, session)
    if conversation is None or conversation.run_id is None:
        return InboundView(only=True)
    letters = with_sandbox_paths(list_letters(tx, session), folder)
    prompt = runs.get_launch(tx, conversation.run_id).prompt or ""
    # The first letter has the whole prompt, because its quoted blocks belong together.
    rows = [
        _build_row(tx, conversation, letter, "" if number else prompt)
        for number, letter in enumerate(letters)
    ]
    cleared = sessions.get(tx, session).cleared_turn
    if cleared:
        clear = encode_json({"action": "clear"}, "The order")
        rows.insert(0, InboundRow(f"clear-{cleared}", "system", tx.now, clear))
    return msgspec.structs.replace(build_addresses(tx, conversation), rows=rows, only=True)


def _build_row(tx: Tx, conversation: Conversation, letter: Letter, text: str) -> InboundRow:
    chat = parse_chat(letter)
    content: dict[str, Any] = {"text": text}
    place = places.load_place(tx, chat.place) if chat is not None else None
    if chat is not None:
        content |= {"sender": chat.sender, "original_text": chat.text, "place": chat.place_name}
    else:
        content["original_text"] = transcribe(prompts.quote_letter(tx, conversation, letter))
    return InboundRow(
        id=build_row_id(letter),
        kind="chat" if chat is not None else "system",
        timestamp=letter.created_at,
        content=encode_json(content, "The letter", max_bytes=1 << 27),
        tries=letter.attempts,
        platform_id=place.platform_id if place is not None else None,
        channel_type=places.load_channel(tx, place).name if place is not None else None,
        thread_id=chat.thread if chat is not None else None,
    )


def build_addresses(tx: Tx, conversation: Conversation) -> InboundView:
    """Build the part of the view with the agent's destinations and the session's reply address."""
    granted = destinations.list_destinations(tx, agent=conversation.agent_id, limit=1_000).items
    rows = []
    for destination in granted:
        place = places.load_place(tx, destination.place_id)
        channel = places.load_channel(tx, place).name
        rows.append(
            DestinationRow(
                destination.name, place.display_name, "channel", channel, place.platform_id
            )
        )
    address = targets.find_reply_address(tx, conversation)
    routing: tuple[str | None, str | None, str | None] = (None, None, None)
    if address is not None:
        place = address.place
        routing = (places.load_channel(tx, place).name, place.platform_id, address.thread)
    return InboundView(destinations=rows, routing=routing)


# -- outcomes -------------------------------------------------------------------------------------


class OutcomeReport(msgspec.Struct, frozen=True):
    """The outcomes that the file does not show yet."""

    outcomes: list[DeliveryOutcome]
    answers: list[InboundRow]
    pending: frozenset[str]
    """Ingested messages without a final outcome."""


def collect_outcomes(tx: Tx, session: str) -> OutcomeReport:
    """Return the outcomes of ingested messages that the file does not show yet."""
    final: list[DeliveryOutcome] = []
    answers: list[InboundRow] = []
    pending = set()
    for ingested in tx.all(sql.OUTCOMES_OF_SESSION, session_id=session, limit=MAX_OUTCOMES):
        outcome, answer = _find_outcome(tx, ingested)
        if outcome is None:
            pending.add(ingested.out_id)
            continue
        final.append(outcome)
        answers += [answer] if answer is not None else []
    return OutcomeReport(final, answers, frozenset(pending))


def _find_outcome(
    tx: Tx, ingested: SandboxOutcome
) -> tuple[DeliveryOutcome | None, InboundRow | None]:
    if ingested.reason is not None:
        return DeliveryOutcome(ingested.out_id, None, "failed", ingested.created_at), None
    if ingested.question_id is not None:
        return _find_answer(tx, ingested)
    if ingested.message_id is None:
        return DeliveryOutcome(ingested.out_id, None, "delivered", ingested.created_at), None
    try:
        message = queue.get_message(tx, ingested.message_id)
    except NotFound:
        return DeliveryOutcome(ingested.out_id, None, "unknown", tx.now), None
    if message.state is MessageState.QUEUED:
        return None, None
    sent = message.state is MessageState.SENT
    id = message.platform_ids[0] if message.platform_ids else None
    ended_at = message.ended_at or tx.now
    return DeliveryOutcome(ingested.out_id, id, "delivered" if sent else "failed", ended_at), None


def _find_answer(
    tx: Tx, ingested: SandboxOutcome
) -> tuple[DeliveryOutcome | None, InboundRow | None]:
    try:
        question = questions.get(tx, str(ingested.question_id))
    except NotFound:
        return DeliveryOutcome(ingested.out_id, None, "unknown", tx.now), None
    if question.ended_at is None:
        return None, None
    content = {
        "questionId": ingested.out_id,
        "state": question.state,
        "answer": question.answer,
        "by": question.answered_by,
    }
    row = InboundRow(question.id, "system", question.ended_at, encode_json(content, "The answer"))
    return DeliveryOutcome(ingested.out_id, None, "delivered", question.ended_at), row


def delete_outcomes(tx: Tx, session: str, ids: Sequence[str]) -> None:
    """Delete outcomes that the file shows now."""
    for id in ids:
        tx.run(sql.DELETE_OUTCOME, session_id=session, out_id=id)


def acknowledge_answers(tx: Tx, run: Run, acks: Mapping[str, str]) -> None:
    """Close the letters with answers that the agent has read in the file."""
    for id, status in acks.items():
        if not id.startswith("qst_") or status != "completed":
            continue
        try:
            question = questions.get(tx, id)
        except CorralError:
            continue
        if question.run_id == run.id and question.ended_at is not None:
            questions.acknowledge(tx, question.id)


def save_state(tx: Tx, session: str, state: Mapping[str, str]) -> None:
    """Copy the agent's session state to the store, for people. The file remains authoritative."""
    shown = sessions.get_state(tx, session)
    for name, value in sorted(state.items())[:MAX_STATE_ENTRIES]:
        key = f"sandbox:{shorten(name, 100)}"
        short = tx.shorten_for_storage(value, MAX_STATE_VALUE)
        if shown.get(key) != short and "\0" not in key + short:
            sessions.set_state(tx, session, key, short)
