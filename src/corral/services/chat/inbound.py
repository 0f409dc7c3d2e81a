"""Inbound events of chat platforms: store each once, with its attachments, and route it.

An event is stored before the cursor of its channel advances and before a webhook is answered. A
crash in between makes the platform send the event again; its id deduplicates it.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from corral import config
from corral.adapters.channels.contract import AcceptedRequest, ChannelAdapter, IncomingEvent
from corral.domain.chat.channels import ops
from corral.domain.chat.inbound import receive
from corral.domain.chat.inbound.message import MAX_TEXT
from corral.domain.chat.model import Message
from corral.kernel.errors import Conflict, CorralError, Invalid, NotFound, Refused
from corral.services.chat.channels import get_channel, open_adapter

if TYPE_CHECKING:
    from corral.db.database import Database

_REJECTIONS = (Invalid, NotFound, Refused, Conflict)
"""The errors of a single event; the channel and the store can still be used."""

BATCH = 100
"""Events that are stored in one transaction; small, so that other writers are not blocked."""


def receive_event(database: "Database", channel: str, event: IncomingEvent) -> Message:
    """Store an event, once, and route it. When this returns, the event is durable."""
    stored = store_attachments(database, channel, event)
    return database.write(
        lambda tx: receive.receive(tx, channel, stored), durable=True, repeatable=True
    )


def receive_events(
    database: "Database",
    channel: str,
    events: Sequence[IncomingEvent],
    *,
    cursor: str | None = None,
) -> list[Message]:
    """Store events in their order and advance the cursor, in one transaction."""
    stored = [store_attachments(database, channel, event) for event in events]
    return database.write(
        lambda tx: receive.receive_all(tx, channel, stored, cursor=cursor),
        durable=True,
        repeatable=True,
    )


def store_attachments(database: "Database", channel: str, event: IncomingEvent) -> IncomingEvent:
    """Return the event with its attachments stored in private files of this machine.

    A text that is too long becomes an attachment too. No file is written for an event that may
    contain a requested secret.
    """
    # UTF-8 has at most four bytes per character.
    if not event.attached and 4 * len(event.text) <= MAX_TEXT:
        return event
    text = event.text.encode(errors="replace")
    if not event.attached and len(text) <= MAX_TEXT:
        return event
    from corral.adapters import attachments
    from corral.adapters.channels.contract import RawAttachment
    from corral.domain.settings import ops as settings

    channel_id = database.read(partial(ops.get_channel, channel=channel)).id
    if database.read(partial(receive.has_possible_secret, channel=channel_id, incoming=event)):
        return event
    attached = list(event.attached)
    if len(text) > MAX_TEXT:
        attached.append(RawAttachment("message.txt", text, len(text), "text/plain"))
    max_bytes = int(database.read(lambda tx: settings.get_value(tx, "chat.max_file_bytes")))
    folder = config.home() / "channels" / channel_id
    files = attachments.store_attachments(folder, event.event_id, attached, max_bytes=max_bytes)
    return msgspec.structs.replace(event, attached=[], files=[*event.files, *files])


def poll_channel(
    database: "Database", channel: str, adapter: ChannelAdapter, *, seconds: float = 0
) -> list[Message]:
    """Fetch the new events of a platform, store them, and then advance the cursor.

    An event that cannot be stored is recorded as unreadable, so that it does not block the others.
    """
    target = get_channel(database, channel)
    batch = adapter.receive(target.cursor, seconds)
    cursor = batch.cursor if batch.cursor != target.cursor else None
    for event_id, reason in batch.unreadable.items():  # before the cursor passes them
        _record_unreadable(database, target.id, event_id, reason)
    stored: list[Message] = []
    last = max(0, len(batch.events) - 1) // BATCH * BATCH
    for first in range(0, last, BATCH):
        stored += _receive_batch(database, target.id, batch.events[first : first + BATCH])
    return stored + _receive_batch(database, target.id, batch.events[last:], cursor=cursor)


def _receive_batch(
    database: "Database",
    channel: str,
    events: Sequence[IncomingEvent],
    *,
    cursor: str | None = None,
) -> list[Message]:
    """Store events and advance the cursor, in one transaction.

    If one of the events is rejected, each is stored on its own, and the cursor after them.
    """
    stored: list[Message] = []
    try:
        if events:
            return receive_events(database, channel, events, cursor=cursor)
    except _REJECTIONS as error:
        _raise_if_removed(error)
        stored = _receive_one_by_one(database, channel, events)
    if cursor is not None:
        _set_cursor(database, channel, cursor)
    return stored


def _receive_one_by_one(
    database: "Database", channel: str, events: Sequence[IncomingEvent]
) -> list[Message]:
    stored = []
    for event in events:
        try:
            stored.append(receive_event(database, channel, event))
        except _REJECTIONS as error:
            _raise_if_removed(error)
            _record_unreadable(database, channel, event.event_id, error.message)
    return stored


def _raise_if_removed(error: CorralError) -> None:
    """Raise the error of a removed channel: it applies to all events, so none is skipped."""
    if error.details.get("reason") == "channel_removed":
        raise error


def _record_unreadable(database: "Database", channel: str, event_id: str, reason: str) -> None:
    database.write(lambda tx: receive.record_unreadable(tx, channel, event_id, reason))


def _set_cursor(database: "Database", channel: str, cursor: str) -> None:
    database.write(lambda tx: ops.save_cursor(tx, channel, cursor), mode="one", repeatable=True)


def accept_webhook(
    database: "Database", channel: str, headers: dict[str, str], body: bytes
) -> AcceptedRequest:
    """Verify a webhook request of a platform and store its events.

    Raises Invalid when the channel has no webhook, and Refused when the request is not authentic.
    """
    from corral.adapters.channels.contract import RequestRejected

    adapter = open_adapter(database, get_channel(database, channel))
    if not adapter.traits.uses_webhook:
        raise Invalid(f"The channel {channel} has no webhook: it polls its platform.")
    try:
        accepted = adapter.accept(headers, body, database.clock.now())
    except RequestRejected as error:
        raise Refused(
            f"Not a valid webhook request of {channel}: {error}.", reason="bad_signature"
        ) from None
    finally:
        adapter.stop()
    for event in accepted.events:
        receive_event(database, channel, event)
    return accepted
