"""One call of a tool: who calls, on which store, and under which key."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from corral.mcp.identity import Caller

if TYPE_CHECKING:
    from corral.api import Corral

T = TypeVar("T")

MOST_SECONDS = 50  # some agents give a tool a minute
SLICE_SECONDS = 1.0  # a call that waits looks this often whether its caller is still there
encode = msgspec.json.Encoder(enc_hook=str).encode

Wait = Annotated[
    int,
    Meta(
        ge=0,
        le=MOST_SECONDS,
        description=f"Wait up to so many seconds, {MOST_SECONDS} at the most.",
    ),
]


class Arguments(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a tool takes. What it does not know it refuses, `agent` above all."""


class Writing(Arguments, kw_only=True):
    """What a tool that changes something takes besides."""

    idempotency_key: Annotated[
        str | None,
        Meta(
            description="A name for this one call. Not sure that it arrived? Repeat it with the "
            "same name: it is done once."
        ),
    ] = None


class Told(msgspec.Struct, kw_only=True):
    """What a tool answers."""

    next_step: str


class Call:
    """A tool is called with this."""

    def __init__(self, store: "Corral", caller: Caller, tool: str, gone: threading.Event) -> None:
        self.store = store
        self.caller = caller
        self._tool = tool
        self._gone = gone

    def do(
        self, operation: str, asked: Writing, told: Callable[[Any], T], **given: Any
    ) -> T | msgspec.Raw:
        """Do one operation and shape its result; under a key it is done once, and a repeated call
        gets the first one's answer. `told` only looks at the result: it runs inside the
        operation's transaction."""
        attribute, _, verb = operation.partition(".")
        room = getattr(self.store, attribute)
        if asked.idempotency_key is None:
            return told(getattr(room, verb)(**given))
        from hashlib import sha256

        from corral.api.idempotency import Key, once

        fingerprint = sha256(self._tool.encode() + b"\0" + encode(asked)).hexdigest()
        key = Key(self.caller.id, f"mcp:{asked.idempotency_key}", fingerprint)
        return msgspec.Raw(
            once(room, verb, given, key=key, encode=lambda result: encode(told(result)))
        )

    def slices(self, seconds: int) -> Iterator[int]:
        """Waiting, in pieces of milliseconds, until the time is over or the caller has gone."""
        ends = time.monotonic() + min(seconds, MOST_SECONDS)
        while True:
            left = ends - time.monotonic()
            yield round(max(0.0, min(left, SLICE_SECONDS)) * 1_000)
            if left <= SLICE_SECONDS or self._gone.is_set():
                return
