"""`corral chat`: a person in front of a terminal. What is said goes to a function, and what is
answered comes out of it."""

from collections.abc import Callable, Mapping
from typing import Any

from corral.adapters.channels.contract import (
    Kind,
    Outcome,
    Outgoing,
    Plain,
    Sent,
    Traits,
    Unsupported,
    card_text,
)

Show = Callable[[str], None]


class Terminal(Plain):
    """It shows what it is sent where it was opened; elsewhere there is nobody to show it to."""

    kind = "terminal"
    traits = Traits(max_text=100_000, files=True, attended=True)

    def __init__(
        self, config: Mapping[str, Any], secrets: Mapping[str, str], show: Show | None = None
    ) -> None:
        super().__init__(config, secrets)
        self._show = show

    def send(self, message: Outgoing) -> Outcome:
        if self._show is None:
            return Unsupported("nobody sits in front of it here")
        if message.kind is Kind.REACTION:
            return Unsupported("a terminal shows no signs")
        text = message.text
        if message.kind is Kind.QUESTION:
            text = card_text(text, message.options)
        if message.file is not None:
            text = f"[a file: {message.file.path}]"
        self._show(text)
        return Sent([message.key])


ADAPTER = Terminal
