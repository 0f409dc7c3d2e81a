"""Chat channels and everything that belongs to them: one class per noun."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corral.adapters.channels.contract import IncomingEvent
from corral.api import agent_rules as rules
from corral.api.operation import Resource, operation, read, write
from corral.api.policy import USES_FILES, USES_SECRETS
from corral.domain.chat import queries
from corral.domain.chat.channels import destinations, ops, people, places, wirings
from corral.domain.chat.conversations import long_running
from corral.domain.chat.inbound import approvals
from corral.domain.chat.inbound import receive as inbound_receive
from corral.domain.chat.model import Message, NextLetters
from corral.domain.chat.outbound import attachments, queue
from corral.services.chat.model import ChannelHealth
from corral.services.wait import wait_until

if TYPE_CHECKING:
    from corral.adapters.channels.contract import AcceptedRequest, ChannelAdapter, StoredFile


class Channels(Resource):
    """Connected chat platforms."""

    noun = "channel"
    subjects = ("channel",)

    add = write(ops.add_channel, people_only=True)
    get = read(ops.get_channel)
    list = read(ops.list_channels, mode="one")
    remove = write(ops.remove_channel, people_only=True)

    @operation(local=USES_SECRETS, people_only=True)
    def open(self, channel: str) -> "ChannelAdapter":
        """Return the adapter of a channel with the values of its secrets.

        Raises a CorralError that names the missing setting or secret.
        """
        from corral.services.chat.channels import open_adapter

        return open_adapter(self._database, self.get(channel))

    @operation(local=USES_SECRETS, people_only=True)
    def test(self, channel: str) -> ChannelHealth:
        """Connect to the platform of a channel now, and record the result with the channel."""
        from corral.services.chat.channels import check_channel

        return check_channel(self._database, channel)


class Places(Resource):
    """Chats on channels: direct messages, groups and rooms of a platform."""

    noun = "place"
    subjects = ("place",)

    get = read(places.get_place)
    list = read(places.list_places)
    register = write(places.register_place, repeatable=True, people_only=True)
    set_policy = write(places.set_policy, repeatable=True, people_only=True)
    block = write(places.block_place, people_only=True)
    unblock = write(places.unblock_place, people_only=True)


class Senders(Resource):
    """Accounts that write on channels, and the people they belong to."""

    noun = "sender"
    subjects = ("sender",)

    get = read(people.get_sender)
    list = read(people.list_senders, mode="one")
    approve = write(approvals.approve_sender, people_only=True)
    block = write(approvals.block_sender, people_only=True)


class People(Resource):
    """People, independent of their accounts on channels."""

    noun = "person"

    set = write(people.set_person, repeatable=True, people_only=True)
    list = read(people.list_people, mode="one")


class Wirings(Resource):
    """Wirings: which agent receives the messages of which place, and when."""

    noun = "wiring"
    subjects = ("wiring",)

    add = write(approvals.wire_agent, people_only=True)
    change = write(wirings.change_wiring, repeatable=True, people_only=True)
    get = read(wirings.get_wiring)
    remove = write(wirings.remove_wiring, people_only=True)
    list = read(wirings.list_wirings, mode="one")
    preview = read(inbound_receive.preview_routes)


class Destinations(Resource):
    """Destinations: the places that an agent may send to, under names of its own."""

    noun = "destination"
    subjects = ("destination",)

    get = read(destinations.get_destination)
    grant = write(destinations.grant, repeatable=True, people_only=True)
    revoke = write(destinations.revoke, people_only=True)
    list = read(destinations.list_destinations, agent=rules.as_agent)


class Messages(Resource):
    """Messages on channels, inbound and outbound."""

    noun = "message"
    subjects = ("message",)

    get = read(queries.get_message)
    list = read(queries.list_messages)
    awaiting_approval = read(queries.list_awaiting_approval, mode="one")
    send = write(
        queue.send,
        repeatable_by="key",
        actor=("agent",),
        agent=rules.as_message_sender,
        objects={"run": "runs", "session": "sessions"},
    )
    send_as_system = write(queue.send_as_system, repeatable_by="key", people_only=True)

    _send_files = write(attachments.send, repeatable_by="key")
    _next = write(long_running.take_next)
    _has_next = read(long_running.has_next)

    @operation(
        actor=("agent",),
        agent=rules.as_message_sender,
        objects={"run": "runs", "session": "sessions"},
    )
    def send_files(
        self,
        files: Sequence[str],
        *,
        agent: str,
        text: str = "",
        to: str | None = None,
        session: str | None = None,
        run: str | None = None,
        key: str | None = None,
    ) -> Sequence[Message]:
        """Send files of an agent, after `text`, by their paths on this machine.

        The files must be in folders that the agent works in. They are copied now, so later changes
        do not matter. All files are queued, or none. The other options are those of `send`.
        """
        from corral.services.chat.attachments import copy_agent_files

        copies = copy_agent_files(self._database, files, agent=agent, session=session, run=run)
        return self._send_files(
            copies, agent=agent, text=text, to=to, session=session, run=run, key=key
        )

    @operation(local=USES_FILES)
    def file(self, message: str, number: int = 1) -> tuple["StoredFile", bytes]:
        """Return a file of a message with its content; files are numbered from 1.

        Raises NotFound when the message has no such file, or the file is not on this machine.
        """
        from corral.services.chat.attachments import read_attachment

        return read_attachment(self.get(message), number)

    @operation(local="it is for a run, on the same machine", in_run="own_run")
    def next(
        self, run: str, *, after: str | None = None, answer: str | None = None, wait_ms: int = 0
    ) -> NextLetters | None:
        """Acknowledge the messages of a running turn, answer them, and return the next ones.

        For a run that stays alive between messages. `after` is the last letter that it received
        here; everything up to it is acknowledged. Unacknowledged messages are delivered again, to
        this run, or to the next one if this run does not complete. Waits up to `wait_ms` and
        returns None when no message came.
        """
        batch = self._next(run, after=after, answer=answer)
        if batch is not None or wait_ms <= 0:
            return batch
        return wait_until(
            self._database,
            lambda: self._next(run) if self._has_next(run) else None,
            timeout_ms=wait_ms,
        )

    @operation(local=USES_FILES, people_only=True)
    def receive(self, channel: str, incoming: IncomingEvent) -> Message:
        """Store an event of a platform with its attachments, and route it to the agents.

        Idempotent by the event's id. When this returns, the event is durable and may be
        acknowledged to the platform.
        """
        from corral.services.chat.inbound import receive_event

        return receive_event(self._database, channel, incoming)

    @operation(local=USES_FILES, people_only=True)
    def receive_all(
        self, channel: str, events: Sequence[IncomingEvent], *, cursor: str | None = None
    ) -> Sequence[Message]:
        """Store events of a platform in their order and advance the cursor, in one transaction.

        Idempotent by the events' ids. When this returns, all of them are durable.
        """
        from corral.services.chat.inbound import receive_events

        return receive_events(self._database, channel, events, cursor=cursor)


class Chat(Resource):
    """Conversations on channels, and the webhooks of platforms."""

    noun = "chat"

    conversations = read(queries.list_conversations)

    @operation(local="platforms call POST /channels/NAME", people_only=True)
    def receive_webhook(
        self, channel: str, headers: dict[str, str], body: bytes
    ) -> "AcceptedRequest":
        """Verify a webhook request of a platform and store its events durably.

        Raises Invalid when the channel has no webhook, and Refused when the request is not
        authentic.
        """
        from corral.services.chat.inbound import accept_webhook

        return accept_webhook(self._database, channel, headers, body)
