"""Results of chat workflows."""

import msgspec


class ChannelHealth(msgspec.Struct, frozen=True):
    """Whether a channel can be used."""

    channel: str
    ok: bool
    trouble: str | None
    looked_at: int
