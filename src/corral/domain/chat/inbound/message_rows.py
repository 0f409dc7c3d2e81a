"""The rows of inbound messages."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from corral.adapters.channels.contract import IncomingEvent
from corral.db.transitions import create, transition
from corral.db.tx import Tx
from corral.domain.chat import sql
from corral.domain.chat.inbound.message import MAX_EVENT_ID, InboundMessage
from corral.domain.chat.inbound.routing_cache import Recipient, encode_routes
from corral.domain.chat.model import Message
from corral.kernel.ids import parse_number
from corral.kernel.validation import check_text, encode_json


def store_message(
    tx: Tx,
    inbound: InboundMessage,
    verb: str,
    reason: str | None,
    recipients: Sequence[Recipient] = (),
) -> Message:
    """Store a message; `verb` gives its first state."""
    row = build_row(tx, inbound, reason, recipients)
    row |= {"ended_at": None if verb == "hold" else tx.now}
    return create(
        tx, sql.MESSAGES, row, verb=verb, event_data=_build_event_data(inbound.place.id, reason)
    )


def finish_held(
    tx: Tx,
    message: Message,
    verb: str,
    reason: str | None,
    recipients: Sequence[Recipient] = (),
) -> Message:
    """Move a held message to its final state."""
    return transition(
        tx,
        sql.MESSAGES,
        verb,
        parse_number("msg", message.id),
        event_data={"reason": reason} if reason else None,
        reason=reason,
        routes=encode_routes(recipients),
        ended_at=tx.now,
    )


def build_row(
    tx: Tx, inbound: InboundMessage, reason: str | None, recipients: Sequence[Recipient]
) -> dict[str, Any]:
    """Return the columns of a message that has ended."""
    incoming = inbound.incoming
    return {
        "channel_id": inbound.channel.id,
        "place_id": inbound.place.id,
        "thread": _clean_platform_id(incoming.thread),
        "direction": "in",
        "kind": incoming.kind,
        "event_id": f"in:{incoming.event_id}",
        "platform_ids": encode_json([incoming.message_id], "The ids")
        if incoming.message_id
        else "[]",
        "reply_to": _clean_platform_id(incoming.reply_to),
        "sender_id": inbound.sender.id,
        "text": inbound.text,
        "data": _encode_data(incoming),
        "reason": reason,
        "routes": encode_routes(recipients),
        "at": incoming.at if incoming.at is not None else tx.now,
        "created_at": tx.now,
        "ended_at": tx.now,
    }


def _encode_data(incoming: IncomingEvent) -> str:
    if not (incoming.mentioned or incoming.files or incoming.question):
        return '{"mentioned":false}'
    data: dict[str, Any] = {"mentioned": incoming.mentioned}
    if incoming.files:
        data["files"] = [msgspec.to_builtins(file) for file in incoming.files]
    if incoming.question:
        data["question"] = incoming.question
    return encode_json(data, "The data")


def _build_event_data(place_id: str, reason: str | None) -> dict[str, Any]:
    return {"in": place_id, "reason": reason} if reason else {"in": place_id}


@lru_cache(256)  # mostly the same for one place
def encode_event_data(place_id: str, reason: str | None) -> str:
    """Encode the data of the event of a stored message."""
    return encode_json(_build_event_data(place_id, reason), "An event")


def _clean_platform_id(value: str | None) -> str | None:
    return check_text(value, "The platform's id", max_bytes=MAX_EVENT_ID) if value else None
