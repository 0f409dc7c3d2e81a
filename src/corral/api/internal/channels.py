"""Operations of `store.internal.channels`."""

from corral.api.operation import Resource, write
from corral.domain.chat.channels import ops


class InternalChannels(Resource):
    """The state of connected chat platforms, for the chat loops of the daemon."""

    noun = "channel"

    save_cursor = write(ops.save_cursor, mode="one", repeatable=True)
    save_health = write(ops.save_health, mode="one", repeatable=True)
