"""A channel for programs: signed HTTP requests in both directions.

Inbound: `POST /channels/NAME` with a JSON object (event_id, place, sender, text …) and the header
`Corral-Signature: t=SECONDS,v1=HEX`, an HMAC-SHA256 with the shared secret over `SECONDS.` and the
body. Outbound: the same format, sent to the configured URL. The receiver deduplicates by `key`.
Files are passed by reference: name, size, type, SHA-256 and the path on this machine.
"""

import hashlib
from collections.abc import Mapping
from typing import ClassVar

import msgspec

from corral.adapters import notifications
from corral.adapters.channels.contract import (
    AcceptedRequest,
    BaseAdapter,
    ChannelTraits,
    FailedMessage,
    IncomingEvent,
    MessageKind,
    OutgoingMessage,
    RequestRejected,
    SendOutcome,
    SentMessage,
    UnsupportedMessage,
)
from corral.adapters.channels.signatures import parse_signed_at, verify_signature
from corral.kernel.clock import SystemClock
from corral.kernel.validation import replace_invalid_utf8


class WebhookEvent(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of an inbound request."""

    event_id: str
    place: str
    place_name: str | None = None
    direct: bool | None = None
    thread: str | None = None
    message_id: str | None = None
    sender: str
    sender_name: str | None = None
    text: str = ""
    mentioned: bool = False
    reply_to: str | None = None
    question: str | None = None
    at: int | None = None


class WebhookAdapter(BaseAdapter):
    """A channel to a program over signed HTTP requests."""

    kind = "webhook"
    traits = ChannelTraits(
        max_text=60_000,
        threads=True,
        edits=True,
        reactions=True,
        buttons=True,
        files=True,
        idempotent=True,
        uses_webhook=True,
    )
    config: ClassVar[Mapping[str, bool]] = {"url": False}
    secrets: ClassVar[Mapping[str, bool]] = {"secret": True}

    def start(self) -> None:
        url = self._config.get("url")
        if url is not None and not str(url).startswith(("http://", "https://")):
            raise ValueError("the URL must begin with http:// or https://")

    def check_health(self) -> str | None:
        """Check that the URL is reachable, without sending; a channel without a URL is healthy."""
        url = self._config.get("url")
        try:
            if url is not None:
                notifications.check_webhook(str(url))
        except notifications.Undelivered as error:
            return str(error)
        return None

    def accept(self, headers: Mapping[str, str], body: bytes, now: int) -> AcceptedRequest:
        header = headers.get(notifications.SIGNATURE_HEADER.lower(), "")
        parts = dict(part.partition("=")[::2] for part in header.split(","))
        seconds = parts.get("t", "")
        signed_at = parse_signed_at(seconds)
        expected = notifications.sign_body(self._secrets["secret"], body, signed_at)
        received = f"t={seconds},v1={parts.get('v1', '')}"
        verify_signature(received, expected, signed_at=signed_at, now=now)
        try:
            event = msgspec.json.decode(replace_invalid_utf8(body), type=WebhookEvent)
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise RequestRejected(str(error)) from None
        kind = MessageKind.ANSWER if event.question else MessageKind.TEXT
        return AcceptedRequest([IncomingEvent(kind=kind, **msgspec.structs.asdict(event))])

    def send(self, message: OutgoingMessage) -> SendOutcome:
        url = self._config.get("url")
        if url is None:
            return UnsupportedMessage("the channel has no URL to send to")
        body = msgspec.json.encode(message)
        try:
            notifications.post_webhook(
                str(url), body, at=SystemClock().now(), secret=self._secrets.get("secret")
            )
        except notifications.Undelivered as error:
            return FailedMessage(str(error))
        return SentMessage([hashlib.sha256(message.key.encode()).hexdigest()[:16]])


ADAPTER = WebhookAdapter
