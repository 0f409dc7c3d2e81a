"""The terminal channel of `corral chat`. Messages are shown by a callback of the command."""

from collections.abc import Callable, Mapping
from typing import Any

from corral.adapters.channels.contract import (
    BaseAdapter,
    ChannelTraits,
    MessageKind,
    OutgoingMessage,
    SendOutcome,
    SentMessage,
    UnsupportedMessage,
)
from corral.adapters.channels.message_text import format_card

ShowText = Callable[[str], None]


class TerminalAdapter(BaseAdapter):
    """Shows messages in the process that opened it; sending from another process is unsupported."""

    kind = "terminal"
    traits = ChannelTraits(max_text=100_000, files=True, attended=True)

    def __init__(
        self, config: Mapping[str, Any], secrets: Mapping[str, str], show: ShowText | None = None
    ) -> None:
        super().__init__(config, secrets)
        self._show = show

    def send(self, message: OutgoingMessage) -> SendOutcome:
        if self._show is None:
            return UnsupportedMessage("no terminal is open in this process")
        if message.kind is MessageKind.REACTION:
            return UnsupportedMessage("a terminal cannot show reactions")
        text = message.text
        if message.kind is MessageKind.QUESTION:
            text = format_card(text, message.options)
        if message.file is not None:
            text = f"[file: {message.file.path}]"
        self._show(text)
        return SentMessage([message.key])


ADAPTER = TerminalAdapter
