"""Delivery of outbound messages to chat platforms.

A letter is claimed, checked against the current permissions, and sent. A platform that deduplicates
by key makes retries safe: an attempt that was interrupted is simply repeated. On other platforms
the letter is marked as unconfirmed just before it is sent, until its outcome is recorded. An
unconfirmed letter is looked up in the platform's history; if that is not possible, the channel's
setting decides whether to send it again.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from corral.adapters.channels.contract import (
    ChannelAdapter,
    FailedMessage,
    MessageKind,
    OutgoingMessage,
    RejectedMessage,
    SendOutcome,
    SentMessage,
    StoredFile,
    UnconfirmedMessage,
    UnsupportedMessage,
)
from corral.adapters.channels.message_text import format_card
from corral.adapters.processes import process
from corral.domain.chat.channels import places
from corral.domain.chat.model import Channel, Place, UnconfirmedPolicy
from corral.domain.chat.outbound import delivery, reconciliation
from corral.domain.chat.outbound.delivery import OutboundLetter
from corral.domain.mail import ops as mail
from corral.domain.mail import queries
from corral.domain.mail.model import Letter, LetterState
from corral.domain.mail.payloads import OutboundMessage, parse_payload
from corral.kernel.clock import MINUTE, SECOND
from corral.kernel.errors import Conflict, CorralError
from corral.services.mail import claim, next_due

if TYPE_CHECKING:
    from corral.db.database import Database

# Longer than any adapter may take for one message, so that the lease does not expire meanwhile.
LEASE_MS = MINUTE + MINUTE // 2
# Time for a platform to show a message before its history is read.
CONFIRM_MS = 5 * SECOND
BATCH = 20  # messages of one place at a time, so that other places are not starved
MAX_UNCONFIRMED = 50

log = logging.getLogger("corral")


class DeliveryResult(msgspec.Struct, frozen=True):
    """The result of delivering one letter."""

    message_id: str
    place_id: str
    state: str
    """done, waiting (retried at `due_at`), unconfirmed, dead or refused."""
    reason: str | None
    due_at: int | None = None


def create_delivery_owner() -> str:
    """Return a claim owner that identifies this process, so that others can detect its death."""
    return process.identify_self().as_owner("delivery", time.monotonic_ns())


class Delivery:
    """Delivers the letters of one channel through its adapter."""

    def __init__(
        self, database: "Database", channel: Channel, adapter: ChannelAdapter, owner: str
    ) -> None:
        self._database = database
        self._channel = channel
        self._adapter = adapter
        self._owner = owner

    def deliver_due(self, place_id: str | None = None) -> list[DeliveryResult]:
        """Send the due messages of all places, or of one, each place in its order."""
        results: list[DeliveryResult] = []
        for place in self._list_places():
            if place_id not in (None, place.id):
                continue
            results += self._resolve_expired(place)
            has_unconfirmed = bool(self._list_unconfirmed(place))
            # Keeps the order: no letter may overtake an unconfirmed one.
            if not has_unconfirmed:
                results += self._send_due(place)
        return results

    def _list_places(self) -> Iterator[Place]:
        """Yield the places of the channel that have pending or unconfirmed letters."""
        mailboxes = self._database.read(
            lambda tx: {
                *queries.list_mailboxes(tx, "place"),
                *queries.list_unconfirmed_mailboxes(tx, "place"),
            }
        )
        for mailbox in sorted(mailboxes):
            try:
                id = mailbox.removeprefix("place:")
                place = self._database.read(partial(places.get_place, place=id))
            except CorralError:
                continue  # an invented mailbox name; there is no such place
            if place.channel_id == self._channel.id:
                yield place

    def _send_due(self, place: Place) -> Iterator[DeliveryResult]:
        for _ in range(BATCH):
            due, now = next_due(self._database, place.mailbox), self._database.clock.now()
            if due is None or due > now:
                if due is not None and due > now + SECOND:
                    self._shorten_lease(place)
                return
            letters = claim(self._database, place.mailbox, owner=self._owner, lease_ms=LEASE_MS)
            if not letters:
                return
            result = self._send_one(letters[0])
            if result is not None:
                yield result
                if result.state not in ("done", "refused", "dead"):
                    return

    def _shorten_lease(self, place: Place) -> None:
        """Let the lease of a dead process of this machine expire soon."""
        page = self._database.read(
            lambda tx: queries.list_waiting(tx, mailbox=place.mailbox, limit=1), mode="one"
        )
        for letter in page.items:
            if process.is_dead(letter.owner):
                with suppress(Conflict):
                    self._renew_lease(letter, SECOND)

    def _renew_lease(self, letter: Letter, lease_ms: int) -> None:
        renew = partial(mail.renew, letter=letter, lease_ms=lease_ms)
        self._database.write(renew, mode="one", repeatable=True)

    def _send_one(self, letter: Letter) -> DeliveryResult | None:
        write = self._database.write
        outbound = write(lambda tx: delivery.prepare_delivery(tx, letter))
        if outbound is None:
            return self._read_result(letter)
        try:
            if not self._adapter.traits.idempotent:
                mark = partial(mail.begin_delivery, letter=letter)
                letter = self._database.write(mark, mode="one", durable=True)
                outbound = msgspec.structs.replace(outbound, letter=letter)
            outcome = self._find_earlier_outcome(outbound) or self._send(outbound)
            return self._record_outcome(outbound, outcome)
        except Conflict:
            return None  # the letter was dropped or taken over meanwhile

    def _find_earlier_outcome(self, outbound: OutboundLetter) -> SendOutcome | None:
        """Return the outcome of an earlier attempt, after the platform has forgotten its key.

        Returns None when the message has to be sent.
        """
        retention_ms = self._adapter.traits.key_retention_ms
        age = self._database.clock.now() - outbound.message.created_at
        if outbound.letter.attempts < 2 or retention_ms is None or age <= retention_ms:
            return None
        if outbound.message.kind in (MessageKind.EDIT, MessageKind.REACTION):
            return None  # idempotent: repeating them changes nothing
        ids = self._search_history(outbound)
        if ids is None:
            return FailedMessage(
                "the history of the platform cannot be read to see whether the message arrived"
            )
        return SentMessage(ids) if ids else None

    def _send(self, outbound: OutboundLetter) -> SendOutcome:
        if outbound.message.kind is MessageKind.REACTION and not self._adapter.traits.reactions:
            return UnsupportedMessage(f"a channel of kind {self._channel.kind} has no reactions")
        if outbound.message.kind is MessageKind.FILE and (
            problem := self._find_file_problem(outbound)
        ):
            return problem
        try:
            return self._adapter.send(build_outgoing(outbound, self._adapter))
        except Exception as error:  # an adapter may fail in any way
            log.warning("%s: sending failed: %r", self._channel.name, error)
            return UnconfirmedMessage(f"the adapter failed ({type(error).__name__})")

    def _find_file_problem(self, outbound: OutboundLetter) -> SendOutcome | None:
        """Return why a file cannot be sent; None when it can.

        The channel must support files, and the file must be the copy that was queued.
        """
        from corral.adapters import attachments
        from corral.services.chat.attachments import get_sent_folder

        if not self._adapter.traits.files:
            return UnsupportedMessage(
                f"a channel of kind {self._channel.kind} does not support files"
            )
        file = _find_file(outbound)
        if file is None:
            problem: str | None = "there is none"
        else:
            problem = attachments.explain_undeliverable(file, get_sent_folder())
        if problem:
            return RejectedMessage(f"the file {outbound.message.text} is not sent: {problem}")
        return None

    def _record_outcome(self, outbound: OutboundLetter, outcome: SendOutcome) -> DeliveryResult:
        letter, message = outbound.letter, outbound.message
        match outcome:
            case SentMessage():
                ids = [id for id in outcome.ids if id][:20]
                self._database.write(
                    lambda tx: delivery.mark_delivered(tx, letter, message.id, ids), durable=True
                )
            case RejectedMessage() | UnsupportedMessage():
                self._database.write(
                    lambda tx: delivery.reject(tx, letter, message, outcome.reason)
                )
            case FailedMessage():
                self._database.write(
                    lambda tx: delivery.mark_failed(
                        tx, letter, message.id, outcome.reason, pause_ms=outcome.retry_ms
                    )
                )
            case UnconfirmedMessage() if self._adapter.traits.idempotent:
                # Safe to retry: the platform deduplicates by key.
                self._database.write(
                    lambda tx: delivery.mark_failed(tx, letter, message.id, outcome.reason)
                )
            case UnconfirmedMessage():
                self._renew_lease(letter, CONFIRM_MS)  # then the history of the platform is read
        return self._read_result(letter)

    def _read_result(self, letter: Letter) -> DeliveryResult:
        current = self._database.read(lambda tx: mail.get(tx, letter.id))
        payload = parse_payload(current)
        return DeliveryResult(
            message_id=payload.message if isinstance(payload, OutboundMessage) else current.id,
            place_id=current.mailbox.removeprefix("place:"),
            state=current.state,
            reason=current.last_error,
            due_at=current.due_at if current.state is LetterState.WAITING else None,
        )

    # -- unconfirmed letters --------------------------------------------------------------------

    def _resolve_expired(self, place: Place) -> list[DeliveryResult]:
        """Resolve unconfirmed letters whose lease has expired or whose sender has died."""
        now = self._database.clock.now()
        expired = [
            letter
            for letter in self._list_unconfirmed(place)
            if letter.due_at <= now or process.is_dead(letter.owner)
        ]
        return [self._resolve_one(letter) for letter in expired]

    def _list_unconfirmed(self, place: Place) -> list[Letter]:
        return self._database.read(
            lambda tx: reconciliation.list_unconfirmed(tx, place, limit=MAX_UNCONFIRMED)
        )

    def _resolve_one(self, letter: Letter) -> DeliveryResult:
        write = self._database.write
        outbound = self._database.read(lambda tx: reconciliation.load_unconfirmed(tx, letter))
        message = outbound.message
        ids = self._find_delivered_ids(outbound)
        if ids is not None:
            reason = (
                "the platform shows the message"
                if ids
                else "the platform does not show the message"
            )
            write(lambda tx: reconciliation.resolve(tx, letter.id, message.id, ids or None, reason))
        elif self._channel.on_unconfirmed is UnconfirmedPolicy.RETRY:
            reason = "unconfirmed: the message is sent again and may appear twice"
            write(lambda tx: reconciliation.resolve(tx, letter.id, message.id, None, reason))
        else:
            reason = "unconfirmed: the message is not sent again"
            write(lambda tx: reconciliation.give_up_unconfirmed(tx, letter, message.id, reason))
        return self._read_result(letter)

    def _find_delivered_ids(self, outbound: OutboundLetter) -> list[str] | None:
        """Return the platform's ids of an unconfirmed message.

        The list is empty when the message certainly did not arrive. Returns None when that is
        unknown.
        """
        if self._adapter.traits.idempotent:
            return []  # safe to send again: the platform deduplicates by key
        if not self._adapter.traits.history or outbound.message.kind in (
            MessageKind.EDIT,
            MessageKind.REACTION,
        ):
            return None
        return self._search_history(outbound)

    def _search_history(self, outbound: OutboundLetter) -> list[str] | None:
        """Search the platform's history for a message; returns as `_find_delivered_ids`."""
        outgoing = build_outgoing(outbound, self._adapter)
        try:
            history = self._adapter.list_posted(outgoing)
        except Exception as error:
            log.warning("%s: cannot read its history: %r", self._channel.name, error)
            return None
        sent_ids = self._database.read(lambda tx: reconciliation.list_sent_ids(tx, outbound.place))
        for sent in history:
            if sent.key is not None:
                matches = sent.key == outgoing.key
            else:
                matches = (
                    sent.text.strip() == outgoing.text.strip() and sent.thread == outgoing.thread
                )
            if matches and sent.id not in sent_ids:
                return [sent.id]
        return []


def build_outgoing(outbound: OutboundLetter, adapter: ChannelAdapter) -> OutgoingMessage:
    """Convert a message for an adapter; a card becomes text on a platform without buttons."""
    message, data = outbound.message, outbound.message.data or {}
    options = list(data.get("options", []))
    text = message.text
    kind = message.kind
    if kind is MessageKind.QUESTION and not adapter.traits.buttons:
        text, kind = format_card(text, options), MessageKind.TEXT
    if kind is MessageKind.EDIT and not adapter.traits.edits:
        kind = MessageKind.TEXT
    return OutgoingMessage(
        key=message.event_id.removeprefix("out:"),
        place=outbound.place.platform_id,
        thread=message.thread if adapter.traits.threads else None,
        kind=kind,
        text=text,
        reply_to=message.reply_to,
        question=data.get("question"),
        options=options,
        file=_find_file(outbound),
        begun_at=message.created_at,
    )


def _find_file(outbound: OutboundLetter) -> StoredFile | None:
    file = (outbound.message.data or {}).get("file")
    return (
        msgspec.convert(file, StoredFile)
        if outbound.message.kind is MessageKind.FILE and file
        else None
    )
