"""The chat page of the dashboard: a platform that is the store itself.

What somebody says there is stored by the page, under the name of whoever the dashboard speaks for.
What agents say is shown from the store; so it has arrived as soon as it is recorded, once however
often it is sent, and whether or not anybody looks.
"""

from corral.adapters.channels.contract import Outcome, Outgoing, Plain, Sent, Traits


class Web(Plain):
    """It shows everything that it is sent, also cards, edits and signs; files by their names."""

    kind = "web"
    traits = Traits(
        max_text=16_000,
        edits=True,
        reactions=True,
        buttons=True,
        files=True,
        idempotent=True,
        calls=True,
    )

    def send(self, message: Outgoing) -> Outcome:
        return Sent([message.key])


ADAPTER = Web
