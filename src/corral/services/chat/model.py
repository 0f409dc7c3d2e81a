"""Results of chat workflows."""

import msgspec


class ChannelHealth(msgspec.Struct, frozen=True):
    """Whether a channel can be used."""

    channel: str
    ok: bool
    error: str | None
    checked_at: int
