"""Inbound messages: what is known about one while it is routed or moderated."""

from typing import NamedTuple

from corral.adapters.channels.contract import IncomingEvent, MessageKind
from corral.domain.chat.inbound.router import RoutingInput
from corral.domain.chat.model import (
    Channel,
    Place,
    PlaceState,
    Sender,
    SenderState,
    StrangerPolicy,
)

MAX_EVENT_ID = 500
MAX_TEXT = 64 * 1024


class InboundMessage(NamedTuple):
    """A message that is being routed or moderated."""

    channel: Channel
    place: Place
    sender: Sender
    incoming: IncomingEvent
    text: str
    """The text as it is stored."""

    @property
    def policy(self) -> StrangerPolicy:
        return self.place.policy or self.channel.policy

    @property
    def is_known(self) -> bool:
        return self.sender.state is SenderState.KNOWN

    @property
    def is_stranger(self) -> bool:
        """Whether an owner must approve the sender first."""
        return not self.is_known and self.policy is StrangerPolicy.ASK

    @property
    def can_ask_for_agent(self) -> bool:
        """Whether the owners are asked for an agent when none is wired to the place."""
        return self.policy is StrangerPolicy.ASK

    @property
    def routing_input(self) -> RoutingInput:
        return RoutingInput(self.text, self.place.direct, self.incoming.mentioned, self.is_known)

    @property
    def is_empty(self) -> bool:
        """Whether it has neither text nor files, such as a notice that a member joined."""
        incoming = self.incoming
        return incoming.kind is MessageKind.TEXT and not incoming.files and not self.text.strip()

    def explain_rejection(self) -> str | None:
        """Return why the message is rejected; None when it is admitted."""
        if self.place.state is PlaceState.BLOCKED:
            return f"{self.place.display_name} is blocked"
        if self.sender.state is SenderState.BLOCKED:
            return f"{self.sender.display_name} is blocked"
        if self.policy is StrangerPolicy.STRICT and not self.is_known:
            return f"{self.sender.display_name} is unknown, and the policy rejects strangers"
        return None


def clean_message(text: str) -> str:
    """Remove NUL characters and cut a text at MAX_TEXT bytes. A longer text is kept as a file."""
    text = text.replace("\0", "")
    if text.isascii():
        return text[:MAX_TEXT]
    return text.encode("utf-8", "replace")[:MAX_TEXT].decode("utf-8", "ignore")
