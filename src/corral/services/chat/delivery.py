"""What goes out to platforms, letter by letter, and what comes in from them.

A letter is claimed, allowed once more, and sent. Where a platform shows a repeated key once,
nothing has to be known of an attempt that nobody finished: it is repeated. Elsewhere the letter is
in doubt from just before the sending until its outcome is recorded; whoever finds one in doubt asks
the platform what it shows, and where it cannot tell, the channel's rule decides, and it is said.
"""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from corral import config
from corral.adapters import process
from corral.adapters.channels import registry
from corral.adapters.channels.contract import (
    Adapter,
    Failed,
    File,
    Incoming,
    Kind,
    Outcome,
    Outgoing,
    Refused,
    Sent,
    Unknown,
    Unsupported,
    card_text,
)
from corral.domain.chat.channels import ops
from corral.domain.chat.model import Channel, InDoubt, Place
from corral.domain.chat.outbound import queue
from corral.domain.chat.outbound.queue import Dispatch
from corral.domain.mail import ops as mail
from corral.domain.mail import queries
from corral.domain.mail.model import Letter, LetterState
from corral.kernel.clock import MINUTE, SECOND
from corral.kernel.errors import Conflict, CorralError

if TYPE_CHECKING:
    from corral.api.mail import Mail
    from corral.api.settings import Secrets
    from corral.db.database import Database

# Longer than any adapter may take for one message, so that nobody else takes the letter meanwhile.
LEASE_MS = MINUTE + MINUTE // 2
# How long a platform is given to show what it may have taken, before it is asked.
DOUBT_MS = 5 * SECOND
ROUND = 20  # messages of one place in one round, so that others get their turn
MOST_IN_DOUBT = 50

log = logging.getLogger("corral")


class Delivered(msgspec.Struct, frozen=True):
    """What became of one letter."""

    message_id: str
    place_id: str
    state: str
    """done, waiting (again at `due_at`), unknown, dead or refused."""
    reason: str | None
    due_at: int | None = None


def adapter_of(channel: Channel, secrets: "Secrets") -> Adapter:
    """The adapter of a channel, with its secrets' values; CorralError says what is missing."""
    values = {name: secrets.resolve(reference) for name, reference in channel.secrets.items()}
    return registry.find(channel.kind)(channel.config, values)


def with_files(database: "Database", channel: str, incoming: Incoming) -> Incoming:
    """The event, with what is attached to it in private files of this machine; of what may be a
    secret that was asked for there, no file is made."""
    from corral.domain.chat.inbound.moderation import MAX_TEXT

    text = incoming.text.encode(errors="replace")
    if not incoming.attached and len(text) <= MAX_TEXT:
        return incoming
    from corral.adapters import attachments
    from corral.adapters.channels.contract import Attached
    from corral.domain.chat.inbound import receive
    from corral.domain.settings import ops as settings

    on = database.read(partial(ops.get_channel, channel=channel))
    if database.read(partial(receive.is_secret, channel=on.id, incoming=incoming)):
        return incoming
    attached = list(incoming.attached)
    if len(text) > MAX_TEXT:
        attached.append(Attached("message.txt", text, len(text), "text/plain"))
    most = int(database.read(lambda tx: settings.value(tx, "gateway.max_file_bytes")))
    folder = config.home() / "channels" / on.id
    kept = attachments.keep(folder, incoming.event_id, attached, most=most)
    return msgspec.structs.replace(incoming, attached=[], files=[*incoming.files, *kept])


def owner_here() -> str:
    """As whom this process takes letters out: whoever finds one later can tell whether it lives."""
    me = process.identify(os.getpid())
    assert me is not None
    return f"delivery:{me.host}:{me.pid}:{me.start_token}:{time.monotonic_ns()}"


def _is_gone(owner: str | None) -> bool:
    """Whether a letter's owner was a process of this machine that is no more."""
    kind, _, rest = (owner or "").partition(":")
    words = rest.rsplit(":", 3)
    if kind != "delivery" or len(words) != 4 or words[0] != process.host():
        return False
    found = process.identify(int(words[1])) if words[1].isdigit() else None
    return found is None or found.start_token != words[2]


class Delivery:
    """What is sent over one channel by one adapter."""

    def __init__(
        self, database: "Database", letters: "Mail", channel: Channel, adapter: Adapter, owner: str
    ) -> None:
        self._database = database
        self._mail = letters
        self._channel = channel
        self._adapter = adapter
        self._owner = owner

    def due(self, only: str | None = None) -> list[Delivered]:
        """Send what is due in the channel's places, or in one of them, each in its order."""
        told: list[Delivered] = []
        for place in self._places():
            if only not in (None, place.id):
                continue
            told += self._settle(place)
            if not self._in_doubt(place):  # nothing overtakes what may have arrived
                told += self._of_place(place)
        return told

    def _places(self) -> Iterator[Place]:
        """The channel's places to which letters are on their way."""
        waiting = set(self._database.read(lambda tx: queries.lines(tx, "place")))
        doubtful = self._database.read(
            lambda tx: queries.list_by_state(tx, state="unknown", limit=200).items
        )
        waiting |= {each.mailbox for each in doubtful if each.mailbox.startswith("place:")}
        for mailbox in sorted(waiting):
            try:
                id = mailbox.removeprefix("place:")
                place = self._database.read(partial(ops.get_place, place=id))
            except CorralError:
                continue  # somebody made the name up; nothing is ever sent there
            if place.channel_id == self._channel.id:
                yield place

    def _of_place(self, place: Place) -> Iterator[Delivered]:
        for _ in range(ROUND):
            due, now = self._mail.next_due(place.mailbox), self._database.clock.now()
            if due is None or due > now:
                if due is not None and due > now + SECOND:
                    self._cut_short(place)
                return
            letters = self._mail.claim(place.mailbox, owner=self._owner, lease_ms=LEASE_MS)
            if not letters:
                return
            said = self._one(letters[0])
            if said is not None:
                yield said
                if said.state not in ("done", "refused", "dead"):
                    return

    def _cut_short(self, place: Place) -> None:
        """The lease of one who died here in the middle of a sending ends soon: nobody waits for
        it, and nothing that it does can come any more."""
        for letter in self._mail.list(mailbox=place.mailbox, limit=1).items:
            if _is_gone(letter.owner):
                with suppress(Conflict):
                    self._mail.renew(letter, lease_ms=SECOND)

    def _one(self, letter: Letter) -> Delivered | None:
        write = self._database.write
        going = write(lambda tx: queue.dispatch(tx, letter))
        if going is None:
            return self._told(letter)
        try:
            if not self._adapter.traits.idempotent:
                letter = self._mail.doubt(letter)
                going = msgspec.structs.replace(going, letter=letter)
            return self._record(going, self._found_again(going) or self._send(going))
        except Conflict:
            return None  # somebody dropped it, or took it over, meanwhile

    def _found_again(self, going: Dispatch) -> Outcome | None:
        """Of a sending that is repeated later than the platform remembers keys: what it shows."""
        remembers = self._adapter.traits.remembers_ms
        age = self._database.clock.now() - going.message.created_at
        if going.letter.attempts < 2 or remembers is None or age <= remembers:
            return None
        if going.message.kind in (Kind.EDIT, Kind.REACTION):
            return None  # done twice they look as if they had been done once
        found = self._look_up(going)
        if found is None:
            return Failed("whether it arrived before cannot be read from the platform's history")
        return Sent(found) if found else None

    def _send(self, going: Dispatch) -> Outcome:
        if going.message.kind is Kind.REACTION and not self._adapter.traits.reactions:
            return Unsupported(f"a channel of kind {self._channel.kind} has no signs on messages")
        if going.message.kind is Kind.FILE and (why := self._cannot_carry(going)):
            return why
        try:
            return self._adapter.send(outgoing(going, self._adapter))
        except Exception as error:  # whatever an adapter does, the others are served
            log.warning("%s: sending failed: %r", self._channel.name, error)
            return Unknown(f"the adapter failed ({type(error).__name__})")

    def _cannot_carry(self, going: Dispatch) -> Outcome | None:
        """Why a file is not sent: the platform takes none, or it is not what the agent sent."""
        from corral.adapters import attachments
        from corral.services.chat.attachments import sent_folder

        if not self._adapter.traits.files:
            return Unsupported(f"a channel of kind {self._channel.kind} takes no files")
        file = _file(going)
        if why := attachments.trouble_with(file, sent_folder()) if file else "there is none":
            return Refused(f"the file {going.message.text} is not sent: {why}")
        return None

    def _record(self, going: Dispatch, outcome: Outcome) -> Delivered:
        letter, message = going.letter, going.message
        match outcome:
            case Sent():
                ids = [id for id in outcome.ids if id][:20]
                self._database.write(
                    lambda tx: queue.delivered(tx, letter, message.id, ids), durable=True
                )
            case Refused() | Unsupported():
                self._database.write(lambda tx: queue.refuse(tx, letter, message, outcome.reason))
            case Failed():
                self._database.write(
                    lambda tx: queue.failed(
                        tx, letter, message.id, outcome.reason, pause_ms=outcome.retry_ms
                    )
                )
            case Unknown() if self._adapter.traits.idempotent:
                # It may be repeated: the platform shows it once.
                self._database.write(
                    lambda tx: queue.failed(tx, letter, message.id, outcome.reason)
                )
            case Unknown():
                self._mail.renew(letter, lease_ms=DOUBT_MS)  # and then the platform is asked
        return self._told(letter)

    def _told(self, letter: Letter) -> Delivered:
        now = self._database.read(lambda tx: mail.get(tx, letter.id))
        body = now.body if isinstance(now.body, dict) else {}
        return Delivered(
            message_id=str(body.get("message", now.id)),
            place_id=now.mailbox.removeprefix("place:"),
            state=now.state,
            reason=now.last_error,
            due_at=now.due_at if now.state is LetterState.WAITING else None,
        )

    # -- doubt ----------------------------------------------------------------------------------

    def _settle(self, place: Place) -> list[Delivered]:
        """End the doubt about letters whose sending nobody finished."""
        now = self._database.clock.now()
        over = [
            letter
            for letter in self._in_doubt(place)
            if letter.due_at <= now or _is_gone(letter.owner)
        ]
        return [self._settle_one(letter) for letter in over]

    def _in_doubt(self, place: Place) -> list[Letter]:
        return self._database.read(lambda tx: queue.in_doubt(tx, place, limit=MOST_IN_DOUBT))

    def _settle_one(self, letter: Letter) -> Delivered:
        write = self._database.write
        going = self._database.read(lambda tx: queue.doubtful(tx, letter))
        message = going.message
        found = self._find(going)
        if found is not None:
            why = "the platform shows it" if found else "the platform does not show it"
            write(lambda tx: queue.settle(tx, letter.id, message.id, found or None, why))
        elif self._channel.in_doubt is InDoubt.RETRY:
            why = "nobody can say whether it arrived, so it goes again and may be seen twice"
            write(lambda tx: queue.settle(tx, letter.id, message.id, None, why))
        else:
            why = "nobody can say whether it arrived, so it is not sent again"
            write(lambda tx: queue.bury(tx, letter, message.id, why))
        return self._told(letter)

    def _find(self, going: Dispatch) -> list[str] | None:
        """The platform's ids of a message that may have arrived; [] when it is certain that it did
        not, None when nobody can tell."""
        if self._adapter.traits.idempotent:
            return []  # it is repeated, and shown once
        if not self._adapter.traits.history or going.message.kind in (Kind.EDIT, Kind.REACTION):
            return None
        return self._look_up(going)

    def _look_up(self, going: Dispatch) -> list[str] | None:
        """The same, as the platform's history tells."""
        wanted = outgoing(going, self._adapter)
        try:
            shown = self._adapter.history(wanted)
        except Exception as error:
            log.warning("%s: its history cannot be read: %r", self._channel.name, error)
            return None
        known = self._database.read(lambda tx: queue.known_ids(tx, going.place))
        for seen in shown:
            if seen.key is not None:
                same = seen.key == wanted.key
            else:
                same = seen.text.strip() == wanted.text.strip() and seen.thread == wanted.thread
            if same and seen.id not in known:
                return [seen.id]
        return []


def outgoing(going: Dispatch, adapter: Adapter) -> Outgoing:
    """A message in the adapter's words; a card where there are no buttons is a text."""
    message, data = going.message, going.message.data or {}
    options = list(data.get("options", []))
    text = message.text
    kind = message.kind
    if kind is Kind.QUESTION and not adapter.traits.buttons:
        text, kind = card_text(text, options), Kind.TEXT
    if kind is Kind.EDIT and not adapter.traits.edits:
        kind = Kind.TEXT
    return Outgoing(
        key=message.event_id.removeprefix("out:"),
        place=going.place.platform_id,
        thread=message.thread if adapter.traits.threads else None,
        kind=kind,
        text=text,
        reply_to=message.reply_to,
        question=data.get("question"),
        options=options,
        file=_file(going),
        begun_at=message.created_at,
    )


def _file(going: Dispatch) -> File | None:
    given = (going.message.data or {}).get("file")
    return msgspec.convert(given, File) if going.message.kind is Kind.FILE and given else None
