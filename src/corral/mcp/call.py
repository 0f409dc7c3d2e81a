"""One tool call: the caller, the store, and the idempotency key."""

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

MAX_WAIT_SECONDS = 50  # some agent CLIs abort a tool call after a minute
SLICE_SECONDS = 1.0  # a waiting call checks this often whether it was cancelled
encode = msgspec.json.Encoder(enc_hook=str).encode

WaitSeconds = Annotated[
    int,
    Meta(
        ge=0,
        le=MAX_WAIT_SECONDS,
        description=f"Wait up to this many seconds (maximum {MAX_WAIT_SECONDS}).",
    ),
]


class ToolArguments(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The arguments of a tool. Unknown names are refused, so no call can pass `agent`."""


class WriteArguments(ToolArguments, kw_only=True):
    """The arguments of a tool that changes something."""

    idempotency_key: Annotated[
        str | None,
        Meta(
            description="Unique key of this call. Unsure whether it arrived? Repeat it with the "
            "same key: it runs once."
        ),
    ] = None


class ToolResult(msgspec.Struct, kw_only=True):
    """The result of a tool."""

    next_step: str


class ToolCall:
    """The context that a tool function gets."""

    def __init__(
        self, store: "Corral", caller: Caller, tool: str, cancelled: threading.Event
    ) -> None:
        self.store = store
        self.caller = caller
        self._tool = tool
        self._cancelled = cancelled

    def perform(
        self,
        operation: str,
        arguments: WriteArguments,
        to_result: Callable[[Any], T],
        **parameters: Any,
    ) -> T | msgspec.Raw:
        """Call `operation` with `parameters` and convert what it returns with `to_result`.

        With an idempotency key the operation is performed once; a repeated call gets the stored
        result. `to_result` runs inside the operation's transaction and must not write.
        """
        resource_name, _, verb = operation.partition(".")
        resource = getattr(self.store, resource_name)
        if arguments.idempotency_key is None:
            return to_result(getattr(resource, verb)(**parameters))
        from hashlib import sha256

        from corral.api.idempotency import IdempotencyKey, call_with_key

        fingerprint = sha256(self._tool.encode() + b"\0" + encode(arguments)).hexdigest()
        key = IdempotencyKey(self.caller.id, f"mcp:{arguments.idempotency_key}", fingerprint)
        return msgspec.Raw(
            call_with_key(
                resource, verb, parameters, key=key, encode=lambda value: encode(to_result(value))
            )
        )

    def wait_slices(self, seconds: int) -> Iterator[int]:
        """Yield slices of the wait in milliseconds until it is over or the call is cancelled.

        The operation waits within a slice: see `services/wait.py`.
        """
        deadline = time.monotonic() + min(seconds, MAX_WAIT_SECONDS)
        while True:
            remaining = deadline - time.monotonic()
            yield round(max(0.0, min(remaining, SLICE_SECONDS)) * 1_000)
            if remaining <= SLICE_SECONDS or self._cancelled.is_set():
                return
