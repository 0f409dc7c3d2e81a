"""Channels and their adapters, which connect to the chat platforms."""

from typing import TYPE_CHECKING

from corral.adapters.channels import registry
from corral.adapters.channels.contract import ChannelAdapter
from corral.domain.chat.channels import ops
from corral.domain.chat.model import Channel
from corral.kernel.errors import CorralError
from corral.services.chat.model import ChannelHealth
from corral.services.secrets import resolve_secret

if TYPE_CHECKING:
    from corral.db.database import Database


def get_channel(database: "Database", channel: str) -> Channel:
    """Return a channel by its name or id; raises NotFound."""
    return database.read(lambda tx: ops.get_channel(tx, channel))


def open_adapter(database: "Database", channel: Channel) -> ChannelAdapter:
    """Return the adapter of a channel with the values of its secrets.

    Raises a CorralError that names the missing setting or secret.
    """
    values = {name: resolve_secret(database, secret) for name, secret in channel.secrets.items()}
    return registry.get_adapter_class(channel.kind)(channel.config, values)


def check_channel(database: "Database", name: str) -> ChannelHealth:
    """Connect to the platform of a channel now, and record the result with the channel."""
    channel = get_channel(database, name)
    error_text: str | None
    try:
        adapter = open_adapter(database, channel)
        try:
            adapter.start()
            error_text = adapter.check_health()
        finally:
            adapter.stop()
    except CorralError as error:
        error_text = error.message
    except (OSError, ValueError) as error:
        error_text = str(error)
    except Exception as error:  # an adapter may fail in any way
        error_text = f"{type(error).__name__}: {error}"
    database.write(
        lambda tx: ops.save_health(tx, channel.id, error_text), mode="one", repeatable=True
    )
    return ChannelHealth(channel.name, error_text is None, error_text, database.clock.now())
