"""The chat page of the dashboard, whose messages are in the store itself.

The page stores messages of its user under the account of the dashboard. Messages of agents are
displayed from the store, so a message is delivered as soon as it is recorded, and exactly once.
"""

from corral.adapters.channels.contract import (
    BaseAdapter,
    ChannelTraits,
    OutgoingMessage,
    SendOutcome,
    SentMessage,
)


class WebAdapter(BaseAdapter):
    """Shows all kinds of messages, including cards, edits and reactions; files by name."""

    kind = "web"
    traits = ChannelTraits(
        max_text=16_000,
        edits=True,
        reactions=True,
        buttons=True,
        files=True,
        idempotent=True,
        uses_webhook=True,
    )

    def send(self, message: OutgoingMessage) -> SendOutcome:
        return SentMessage([message.key])


ADAPTER = WebAdapter
