"""A channel for programs: signed requests, both ways.

In: `POST /channels/NAME` with a JSON object (event_id, place, sender, text …) and the header
`Corral-Signature: t=SECONDS,v1=HEX`, an HMAC-SHA256 with the shared secret over `SECONDS.` and the
body. Out: the same to the configured URL. Whoever receives looks at `key`: the same key is the same
message. A file is told by reference: its name, size, type, SHA-256, and its path on this machine.
"""

import hashlib
import hmac
from collections.abc import Mapping
from typing import ClassVar

import msgspec

from corral.adapters import notify
from corral.adapters.channels.contract import (
    Accepted,
    Failed,
    Incoming,
    Kind,
    Outcome,
    Outgoing,
    Plain,
    Sent,
    Traits,
    Unsupported,
    Unwelcome,
)
from corral.kernel.clock import MINUTE, SystemClock
from corral.kernel.text import replace_invalid_utf8

OLDEST_MS = 5 * MINUTE


class Said(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a program may say."""

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


class Webhook(Plain):
    kind = "webhook"
    traits = Traits(
        max_text=60_000,
        threads=True,
        edits=True,
        reactions=True,
        buttons=True,
        files=True,
        idempotent=True,
        calls=True,
    )
    config: ClassVar[Mapping[str, bool]] = {"url": False}
    secrets: ClassVar[Mapping[str, bool]] = {"secret": True}

    def start(self) -> None:
        url = self._config.get("url")
        if url is not None and not str(url).startswith(("http://", "https://")):
            raise ValueError("its URL does not begin with http:// or https://")

    def health(self) -> str | None:
        """Whether its URL answers, with nothing sent there; one that only listens is well."""
        url = self._config.get("url")
        try:
            if url is not None:
                notify.reach(str(url))
        except notify.Undelivered as error:
            return str(error)
        return None

    def accept(self, headers: Mapping[str, str], body: bytes, now: int) -> Accepted:
        given = headers.get(notify.SIGNATURE.lower(), "")
        parts = dict(part.partition("=")[::2] for part in given.split(","))
        seconds = parts.get("t", "")
        if not (seconds.isascii() and seconds.isdigit()) or len(seconds) > 12:
            raise Unwelcome("it is not signed")
        signed = notify.signature(self._secrets["secret"], body, int(seconds) * 1_000)
        shown = f"t={seconds},v1={parts.get('v1', '')}"
        if not hmac.compare_digest(signed.encode(), shown.encode()):  # as text only ASCII would do
            raise Unwelcome("its signature is wrong")
        if abs(now - int(seconds) * 1_000) > OLDEST_MS:
            raise Unwelcome("its signature is too old, or of a clock that goes wrong")
        try:
            said = msgspec.json.decode(replace_invalid_utf8(body), type=Said)
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise Unwelcome(str(error)) from None
        kind = Kind.ANSWER if said.question else Kind.TEXT
        return Accepted([Incoming(kind=kind, **msgspec.structs.asdict(said))])

    def send(self, message: Outgoing) -> Outcome:
        url = self._config.get("url")
        if url is None:
            return Unsupported("the channel has no URL to send to; it only listens")
        body = msgspec.json.encode(message)
        try:
            notify.post(str(url), body, at=SystemClock().now(), secret=self._secrets.get("secret"))
        except notify.Undelivered as error:
            return Failed(str(error))
        return Sent([hashlib.sha256(message.key.encode()).hexdigest()[:16]])


ADAPTER = Webhook
