"""Channels and what belongs to them: one attribute of the store for each noun."""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from corral.adapters.channels.contract import Incoming
from corral.api.operation import Room, read, write
from corral.domain.chat import queries
from corral.domain.chat.channels import ops, wirings
from corral.domain.chat.conversations import long_running, turns
from corral.domain.chat.inbound import held as inbound_held
from corral.domain.chat.inbound import receive as inbound_receive
from corral.domain.chat.inbound.moderation import MAX_TEXT
from corral.domain.chat.model import HOST, Message, Next, Talk
from corral.domain.chat.outbound import attachments, cards, queue
from corral.domain.host_requests import answers
from corral.domain.host_requests import ops as requests
from corral.domain.mail.model import Letter
from corral.domain.runs.model import Run
from corral.kernel.errors import Conflict, CorralError, Held, IllegalMove, Invalid

if TYPE_CHECKING:
    from corral.adapters.channels.contract import Accepted, Adapter, File
    from corral.adapters.sandbox_bridge.schema import Folder
    from corral.services.chat.delivery import Delivered
    from corral.services.chat.sandbox_sync import Looked

Deliveries = list["Delivered"]
Runs = list[Run]
Talks = list[Talk]
Stored = list[Message]
Paths = list[str]

LONGEST_LOOK = 1.0  # behind a wake-up that never came
AT_ONCE = 100
"""Events that are stored together: others who write are to get their turn."""


class Health(msgspec.Struct, frozen=True):
    """Whether a channel can be used."""

    channel: str
    ok: bool
    trouble: str | None
    looked_at: int


class Channels(Room):
    """Connected chat platforms."""

    noun = "channel"

    add = write(ops.add_channel)
    get = read(ops.get_channel)
    list = read(ops.list_channels, mode="one")
    remove = write(wirings.remove_channel)
    note_cursor = write(ops.note_cursor, mode="one", repeatable=True)
    note_health = write(ops.note_health, mode="one", repeatable=True)

    def open(self, channel: str) -> "Adapter":
        """The adapter of a channel, with its secrets; CorralError says what it lacks."""
        from corral.api.settings import Secrets
        from corral.services.chat.delivery import adapter_of

        return adapter_of(self.get(channel), Secrets(self._database))

    def test(self, channel: str) -> Health:
        """Try whether a channel can be used, now; what was found is kept with it."""
        found = self.get(channel)
        trouble: str | None
        try:
            adapter = self.open(found.id)
            try:
                adapter.start()
                trouble = adapter.health()
            finally:
                adapter.stop()
        except CorralError as error:
            trouble = error.message
        except (OSError, ValueError) as error:
            trouble = str(error)
        except Exception as error:  # whatever an adapter does, it is its trouble
            trouble = f"{type(error).__name__}: {error}"
        self.note_health(found.id, trouble)
        return Health(found.name, trouble is None, trouble, self._database.clock.now())


class Places(Room):
    """Chats on channels."""

    noun = "place"

    get = read(ops.get_place)
    list = read(ops.list_places)
    meet = write(ops.meet, repeatable=True)
    set_policy = write(ops.set_policy, repeatable=True)
    block = write(ops.block_place)
    unblock = write(ops.unblock_place)


class Senders(Room):
    """Accounts that speak on channels, and who is behind them."""

    noun = "sender"

    get = read(ops.get_sender)
    list = read(ops.list_senders, mode="one")
    approve = write(inbound_held.approve)
    block = write(inbound_held.block)


class People(Room):
    """People, whatever they are called on any channel."""

    noun = "person"

    set = write(ops.set_person, repeatable=True)
    list = read(ops.list_people, mode="one")


class Wirings(Room):
    """Which agents hear which places."""

    noun = "wiring"

    add = write(inbound_held.add_wiring)
    change = write(wirings.change_wiring, repeatable=True)
    get = read(wirings.get_wiring)
    remove = write(wirings.remove_wiring)
    list = read(wirings.list_wirings, mode="one")
    try_out = read(inbound_receive.try_out)


class Destinations(Room):
    """Where agents may send to."""

    noun = "destination"

    get = read(wirings.get_destination)
    grant = write(wirings.grant, repeatable=True)
    revoke = write(wirings.revoke)
    list = read(wirings.list_destinations)


class Requests(Room):
    """What agents ask of the host."""

    noun = "request"

    ask = write(requests.ask, repeatable_by="key", durable=True)
    get = read(requests.get)
    list = read(requests.list_requests)
    withdraw = write(requests.withdraw)
    secrets_given = write(requests.secrets_given, repeatable=True)


class Messages(Room):
    """What was said on channels, both ways."""

    noun = "message"

    get = read(queries.get)
    list = read(queries.list_messages)
    held = read(queries.list_held, mode="one")
    send = write(queue.send, repeatable_by="key")
    say = write(queue.say, repeatable_by="key")

    _send_kept = write(attachments.send, repeatable_by="key")
    _receive = write(inbound_receive.receive, durable=True, repeatable=True)
    _receive_all = write(inbound_receive.receive_all, durable=True, repeatable=True)
    _next = write(long_running.next_letters)
    _has_next = read(long_running.has_next)

    def send_files(
        self,
        files: Paths,
        *,
        agent: str,
        text: str = "",
        to: str | None = None,
        session: str | None = None,
        run: str | None = None,
        key: str | None = None,
    ) -> Stored:
        """An agent sends files: by their paths on this machine, in folders that it works in.

        They are read now, into private files; what becomes of them later does not matter. `text`
        is said before them. Else as `send`.
        """
        from corral.services.chat.attachments import take

        kept = take(self._database, files, agent=agent, session=session, run=run)
        return self._send_kept(
            kept, agent=agent, text=text, to=to, session=session, run=run, key=key
        )

    def file(self, message: str, number: int = 1) -> tuple["File", bytes]:
        """A file that was attached to a message or sent by it, with its bytes, where it is kept."""
        from corral.services.chat.attachments import read

        return read(self.get(message), number)

    def next(
        self, run: str, *, after: str | None = None, answer: str | None = None, wait_ms: int = 0
    ) -> Next | None:
        """For a run that goes on: be done with the messages it was given, say the answer to them,
        and get those that came next, waiting for them; None when none came in time.

        `after` is the last letter that it got here. What was given and not acknowledged so comes
        again, to this run or, when it ends otherwise than well, to the next.
        """
        found = self._next(run, after=after, answer=answer)
        if found is not None or wait_ms <= 0:
            return found
        deadline = time.monotonic() + wait_ms / 1_000
        with self._database.listening() as listener:
            while True:
                if self._has_next(run) and (found := self._next(run)) is not None:
                    return found
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                listener.wait(min(left, LONGEST_LOOK))

    def receive(self, channel: str, incoming: Incoming) -> Message:
        """Store an event of a platform, once, with what is attached to it, and give it to whoever
        is to hear it. When this returns, the platform may be told that we have it."""
        return self._receive(channel, self._with_files(channel, incoming))

    def receive_all(
        self, channel: str, events: Sequence[Incoming], *, cursor: str | None = None
    ) -> Stored:
        """Store what a platform brought at once, in its order, and how far that is; all or nothing
        of it. When this returns, the platform may be told that we have it."""
        kept = [self._with_files(channel, each) for each in events]
        return self._receive_all(channel, kept, cursor=cursor)

    def _with_files(self, channel: str, incoming: Incoming) -> Incoming:
        # No character has more than four bytes.
        if not incoming.attached and 4 * len(incoming.text) <= MAX_TEXT:
            return incoming
        from corral.services.chat.delivery import with_files

        return with_files(self._database, channel, incoming)


class Gateway(Room):
    """What the gateway does again and again; anybody may call each of these, at any time."""

    noun = "gateway"

    _note_unreadable = write(inbound_receive.note_unreadable)
    _behind = read(queue.behind)
    _catch_up = write(queue.catch_up)
    _wanted_secrets = read(requests.wanted_secrets, mode="one")
    _secrets_given = write(requests.secrets_given, repeatable=True)
    _ended_cards = read(cards.ended)
    _unshown = read(cards.unshown)
    _show = write(cards.show_open)
    _settle_cards = write(cards.settle_ended)
    address = read(turns.address)
    talks = read(queries.talks)
    next_due = read(turns.next_due)
    _is_used = read(turns.is_used, mode="one")

    def wake(self) -> Runs:
        """Begin a turn for each session with letters, in order of arrival, while there is room."""
        from corral.services.chat import turns as chat_turns

        return chat_turns.wake(self._database)

    def settle(self, *, here: bool = False) -> Talks:
        """End the turns whose run is over: what they were given is done, and answers are queued.
        `here`: only of runs of this machine, which has what they said."""
        from corral.api.outputs import Outputs
        from corral.services.chat import turns as chat_turns

        return chat_turns.settle(self._database, lambda: Outputs(self._database), here=here)

    def prepare(self, session: str) -> "Folder":
        """Have the files there by which a boxed session's run is spoken to, as it is to begin."""
        from corral.services.chat import sandbox_sync

        return sandbox_sync.prepare(self._database, session)

    def exchange(self, run: str) -> "Looked":
        """Take over what a boxed run has said in its session's file, and tell it what became of
        that."""
        from corral.domain.runs import ops as runs
        from corral.services.chat import sandbox_sync as chat_sandbox_sync

        found = self._database.read(lambda tx: runs.get(tx, run))
        return chat_sandbox_sync.exchange(self._database, str(found.session_id), found)

    def deliver(
        self, channel: str, adapter: "Adapter", *, owner: str, place: str | None = None
    ) -> Deliveries:
        """Send what is due to a channel's places, or to one of them, each in its order."""
        from corral.api.mail import Mail
        from corral.services.chat.delivery import Delivery

        found = Channels(self._database).get(channel)
        return Delivery(self._database, Mail(self._database), found, adapter, owner).due(place)

    def take_in(self, channel: str, adapter: "Adapter", *, seconds: float = 0) -> Stored:
        """Receive what a platform has for us, store it, and only then say how far we have read."""
        channels, messages = Channels(self._database), Messages(self._database)
        found = channels.get(channel)
        batch = adapter.receive(found.cursor, seconds)
        cursor = batch.cursor if batch.cursor != found.cursor else None
        for id, why in batch.unreadable.items():  # before it is said that we have read so far
            self._note_unreadable(found.id, id, why)
        stored: Stored = []
        for first in range(0, len(batch.events), AT_ONCE):
            events = batch.events[first : first + AT_ONCE]
            last = first + AT_ONCE >= len(batch.events)
            try:
                stored += messages.receive_all(found.id, events, cursor=cursor if last else None)
            except Invalid:
                stored += self._one_by_one(found.id, events)
                if last and cursor is not None:
                    channels.note_cursor(found.id, cursor)
        if cursor is not None and not batch.events:
            channels.note_cursor(found.id, cursor)
        return stored

    def _one_by_one(self, channel: str, events: Sequence[Incoming]) -> Stored:
        """Store what can be stored. The rest would never be, and hold up everything behind it."""
        stored = []
        for event in events:
            try:
                stored.append(Messages(self._database).receive(channel, event))
            except Invalid as error:
                self._note_unreadable(channel, event.event_id, error.message)
        return stored

    def accept(self, channel: str, headers: dict[str, str], body: bytes) -> "Accepted":
        """Take in what a platform's request brings; it is stored when this returns. Refused when it
        is not the platform's."""
        from corral.adapters.channels.contract import Unwelcome
        from corral.kernel.errors import Refused

        adapter = Channels(self._database).open(channel)
        if not adapter.traits.calls:
            raise Invalid(f"The channel {channel} is not called; it asks by itself.")
        try:
            accepted = adapter.accept(headers, body, self._database.clock.now())
        except Unwelcome as error:
            raise Refused(
                f"That is no request of {channel}: {error}.", reason="bad_signature"
            ) from None
        finally:
            adapter.stop()
        for event in accepted.events:
            Messages(self._database).receive(channel, event)
        return accepted

    def look_after(self) -> int:
        """Show questions that agents ask, let cards say how they ended, do what owners answered,
        and say of what was dropped that it never arrived; gives how much there was."""
        done = self._hear_owners()
        if self._wanted_secrets():
            done += len(self._secrets_given())
        if self._unshown():
            done += len(self._show())
        if self._ended_cards():
            done += self._settle_cards()
        after: str | None = "msg_0"
        while after is not None:
            ended, after = self._behind(after=after)
            for message in ended:
                self._catch_up(message)
        return done

    def _hear_owners(self) -> int:
        from corral.api.mail import Mail

        letters = Mail(self._database)
        done = 0
        while self._is_due(HOST):
            taken = letters.claim(HOST, owner="gateway")
            if not taken:
                break
            done += self._hear(taken[0])
        return done

    def _is_due(self, mailbox: str) -> bool:
        from corral.api.mail import Mail

        due = Mail(self._database).next_due(mailbox)
        return due is not None and due <= self._database.clock.now()

    def _hear(self, letter: Letter) -> int:
        try:
            self._database.write(lambda tx: answers.hear(tx, letter))
        except (Held, IllegalMove):
            return 0
        except CorralError as error:
            why = error.message
            with suppress(Conflict):
                self._database.write(lambda tx: answers.could_not_do(tx, letter, why))
        return 1
