"""`corral mcp`: the tools on standard input and output, one JSON-RPC message per line.

Agent CLIs start this server with each of their runs, and some drop the tools of a slow server. So
it imports only what a response needs; the store is opened at the first tool call. A call that waits
has a thread of its own, so other calls are answered meanwhile.
"""

import os
import sys
import threading
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from corral.mcp.protocol import (
    INVALID_REQUEST,
    NEVER_CANCELLED,
    RpcError,
    RpcMessage,
    RpcResponse,
    error_response,
    handle_message,
    parse_message,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    from corral.api import Corral
    from corral.mcp.identity import Caller

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_WAITING_CALLS = 16
SHUTDOWN_SECONDS = 1.5  # time for waiting calls to return after the client closed its end


class LocalHandler:
    """Handles messages with a store that this process opens."""

    def __init__(self, url: str | None) -> None:
        self._url = url
        self._lock = threading.Lock()

    @cached_property
    def _identity(self) -> "tuple[Corral, Caller]":
        from corral.api import open
        from corral.mcp.identity import caller_from_environment

        store = open(self._url)
        store.release_connections_early()  # every agent has a server of its own
        try:
            return store, caller_from_environment(store)
        except BaseException:
            store.close()
            raise

    def identify(self) -> "tuple[Corral, Caller]":
        with self._lock:  # concurrent first calls open one store
            return self._identity

    def handle(self, line: bytes, message: RpcMessage, cancelled: threading.Event) -> RpcResponse:
        return handle_message(message, self.identify, cancelled)


class StdioServer:
    """Serves one client until it closes standard input."""

    def __init__(
        self, handler: "Callable[[bytes, RpcMessage, threading.Event], RpcResponse]"
    ) -> None:
        self._handler = handler
        self._write_lock = threading.Lock()
        self._waiting: dict[str | int, tuple[threading.Event, threading.Thread]] = {}

    def run(self, source: "BinaryIO") -> None:
        while line := source.readline(MAX_MESSAGE_BYTES):
            if len(line) >= MAX_MESSAGE_BYTES and not line.endswith(b"\n"):
                while not line.endswith(b"\n") and line:
                    line = source.readline(MAX_MESSAGE_BYTES)
                limit = f"{MAX_MESSAGE_BYTES // 1024**2} MB"
                self._send(
                    error_response(RpcError(INVALID_REQUEST, f"The message exceeds {limit}."))
                )
            elif not line.isspace():
                self._handle_line(line)
        waiting = [*self._waiting.values()]
        for cancelled, _ in waiting:
            cancelled.set()
        for _, thread in waiting:
            thread.join(SHUTDOWN_SECONDS)

    def _handle_line(self, line: bytes) -> None:
        try:
            message = parse_message(line)
        except RpcError as error:
            self._send(error_response(error))
            return
        if message.id is None:
            self._handle_notification(message)
            return
        tool = message.tool
        if tool is None or not tool.waits:
            self._send(self._handler(line, message, NEVER_CANCELLED))
        elif len(self._waiting) >= MAX_WAITING_CALLS or message.id in self._waiting:
            text = f"{MAX_WAITING_CALLS} calls are waiting already. Wait for one of them."
            self._send(error_response(RpcError(INVALID_REQUEST, text), message.id))
        else:
            self._start_waiting(line, message, message.id)

    def _start_waiting(self, line: bytes, message: RpcMessage, id: str | int) -> None:
        cancelled = threading.Event()

        def work() -> None:
            response = self._handler(line, message, cancelled)
            # A client that closed its input may still read responses; one that cancelled this call
            # expects none.
            if self._waiting.pop(id, None) is not None:
                with suppress(BrokenPipeError):
                    self._send(response)

        thread = threading.Thread(target=work, daemon=True)
        self._waiting[id] = cancelled, thread
        thread.start()

    def _handle_notification(self, message: RpcMessage) -> None:
        if message.method == "notifications/cancelled" and message.params.request_id is not None:
            waiting = self._waiting.pop(message.params.request_id, None)
            if waiting is not None:
                waiting[0].set()

    def _send(self, response: RpcResponse) -> None:
        with self._write_lock:
            _write(response.body + b"\n")


def _write(body: bytes) -> None:
    remaining = memoryview(body)
    while remaining:
        remaining = remaining[os.write(1, remaining) :]


def run(url: str | None = None) -> int:
    """Serve the client on standard input until it closes; return the exit status."""
    from corral import config

    address = config.store_url(url)
    if config.is_remote(address):
        from corral.mcp.proxy import ProxyHandler

        handler = ProxyHandler(address, config.token()).handle
    else:
        handler = LocalHandler(url).handle
    with suppress(BrokenPipeError, KeyboardInterrupt):  # the client has exited
        StdioServer(handler).run(sys.stdin.buffer)
    return 0
