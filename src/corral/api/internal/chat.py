"""Operations of `store.internal.chat`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corral.api.operation import Resource, operation, read
from corral.domain.chat import queries
from corral.domain.chat.channels import ops as channels
from corral.domain.chat.conversations import letter_batch, replies
from corral.domain.chat.model import Conversation, Message
from corral.domain.runs import ops as runs
from corral.domain.runs.model import Run

if TYPE_CHECKING:
    from corral.adapters.channels.contract import ChannelAdapter
    from corral.adapters.sandbox_bridge.schema import SessionFolder
    from corral.services.chat.delivery import DeliveryResult
    from corral.services.chat.sandbox_sync import SyncResult

Runs = list[Run]
Conversations = list[Conversation]


class InternalChat(Resource):
    """The periodic work of chat. Any process may call each method at any time."""

    noun = "chat"

    reply_address = read(replies.find_reply_address)
    next_due = read(letter_batch.find_next_due)
    is_used = read(queries.is_used, mode="one")

    @operation()
    def start_turns(self) -> Runs:
        """Start a turn for each session with pending letters, oldest first, within the limits.

        Returns the runs that were queued.
        """
        from corral.services.chat.turn_start import start_turns

        return start_turns(self._database)

    @operation()
    def finish_turns(self, *, local: bool = False) -> Conversations:
        """End the turns whose run has ended: acknowledge their letters and queue the answers.

        With `local`, only turns whose run was on this machine, which has its output.
        """
        from corral.services.chat.turn_finish import finish_turns

        return finish_turns(self._database, local=local)

    @operation()
    def prepare_sandbox(self, session: str) -> "SessionFolder":
        """Create or repair the files that a sandboxed session communicates with its agent by."""
        from corral.services.chat import sandbox_sync

        return sandbox_sync.prepare_session(self._database, session)

    @operation()
    def sync_sandbox(self, run: str) -> "SyncResult":
        """Ingest the new messages of a sandboxed run and write their outcomes to its files."""
        from corral.services.chat import sandbox_sync

        current = self._database.read(lambda tx: runs.get(tx, run))
        return sandbox_sync.sync_session(self._database, str(current.session_id), current)

    @operation(reads=True)
    def create_delivery_owner(self) -> str:
        """Return a claim owner that identifies this process, so that others detect its death."""
        from corral.services.chat.delivery import create_delivery_owner

        return create_delivery_owner()

    @operation()
    def deliver(
        self, channel: str, adapter: "ChannelAdapter", *, owner: str, place: str | None = None
    ) -> Sequence["DeliveryResult"]:
        """Send the due messages of a channel, or of one place, in their order."""
        from corral.services.chat.delivery import Delivery

        current = self._database.read(lambda tx: channels.get_channel(tx, channel))
        return Delivery(self._database, current, adapter, owner).deliver_due(place)

    @operation()
    def poll(
        self, channel: str, adapter: "ChannelAdapter", *, seconds: float = 0
    ) -> Sequence[Message]:
        """Fetch the new events of a platform, store them, and then advance the cursor.

        Waits up to `seconds` for an event. An event that cannot be stored is recorded as
        unreadable and does not block the others.
        """
        from corral.services.chat.inbound import poll_channel

        return poll_channel(self._database, channel, adapter, seconds=seconds)

    @operation()
    def run_upkeep(self) -> int:
        """Do the pending work that needs no platform; returns how many things were done.

        Applies answers of owners, delivers secrets that were given, shows new questions as cards,
        updates cards of ended questions, and marks messages whose letter was dropped as
        undelivered.
        """
        from corral.services.chat.upkeep import run_upkeep

        return run_upkeep(self._database)
