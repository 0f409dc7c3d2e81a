"""Handling of requests from clients of a run's control socket: attach, send, signal, stop."""

import os
import select
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from corral.adapters.processes import process

if TYPE_CHECKING:
    from corral.supervisor.agent_io import AgentIO, Reply
    from corral.supervisor.control_connections import ControlConnections
    from corral.supervisor.control_permissions import ControlPermissions

SUSPEND_KEY = b"\x1a"  # Ctrl-Z
SUSPEND_SECONDS = 0.1  # from the key press until the agent is suspended


class ControlTarget(Protocol):
    """The part of the supervisor that the control server uses."""

    @property
    def agent_process(self) -> process.ProcessIdentity | None: ...
    @property
    def agent_io(self) -> "AgentIO": ...
    @property
    def recent_output(self) -> bytes: ...
    def type_in(self, data: bytes) -> bool: ...
    def resize(self, rows: int, columns: int) -> None: ...
    def check_stop(self, grace_period_ms: int | None) -> None: ...


class ControlServer:
    """The control socket of a run, open from `open` to `end`."""

    def __init__(
        self, folder: Path, target: ControlTarget, permissions: "ControlPermissions"
    ) -> None:
        self._folder = folder
        self._target = target
        self._permissions = permissions
        self._connections: ControlConnections | None = None
        self.suspend_check_at: float | None = None
        """When to check whether Ctrl-Z suspended the agent."""
        self.forwarded_signals: set[int] = set()
        """Signals that a client sent to the agent."""

    def open(self) -> None:
        """Create the socket.

        If that fails (a full disk), the run continues; stop requests arrive by the store.
        """
        from corral.supervisor.control_connections import ControlConnections

        with suppress(OSError):
            self._connections = ControlConnections(
                self._folder,
                handle_request=self._handle_request,
                on_input=self._handle_input,
                on_size=lambda rows, columns: self._target.resize(int(rows), int(columns)),
                replay=lambda: self._target.recent_output,
                may_connect=self._permissions.may_connect,
                may_type=self._permissions.may_type,
            )

    @property
    def has_watchers(self) -> bool:
        """Whether a client is attached; also True if the socket is not open."""
        return self._connections is None or self._connections.has_attached

    def register(self, poll: "select.poll") -> None:
        if self._connections is not None:
            self._connections.register(poll)

    def handle(self, ready: Iterable[tuple[int, int]]) -> None:
        if self._connections is not None:
            self._connections.handle(ready)

    def send_output(self, data: bytes) -> None:
        if self._connections is not None:
            self._connections.send_output(data)

    def check_suspended(self) -> None:
        """Notify the attached clients if the agent is suspended; they suspend themselves too."""
        self.suspend_check_at = None
        agent_process = self._target.agent_process
        if agent_process is None or self._connections is None:
            return
        with suppress(OSError):
            stat = process.read_stat(agent_process.pid)
            if stat is not None and stat.state == "T":
                self._connections.notify_suspended()

    def end(self, result: dict[str, Any]) -> None:
        """Send the result of the run to all clients and close the socket."""
        if self._connections is not None:
            self._connections.end(result)
            self._connections = None

    def _handle_input(self, data: bytes) -> None:
        if SUSPEND_KEY in data:
            self.suspend_check_at = time.monotonic() + SUSPEND_SECONDS
        self._target.type_in(data)

    def _handle_request(self, request: dict[str, Any], reply: "Reply") -> None:
        match request.get("op"):
            case "stop":
                grace_period_ms = request.get("grace_period_ms")
                self._target.check_stop(
                    grace_period_ms if isinstance(grace_period_ms, int) else None
                )
                reply({"ok": True})
            case "send":
                self._send(request, reply)
            case "signal":
                reply({"ok": self._signal(int(request.get("number", 0)))})
            case _:
                reply({"ok": False, "error": "unknown_operation"})

    def _send(self, request: dict[str, Any], reply: "Reply") -> None:
        """Pass text to the agent. All interfaces that send text to a run end up here."""
        text, enter = str(request.get("text", "")), request.get("enter") is not False
        dialog = request.get("dialog")
        dialog_id = dialog if isinstance(dialog, str) else None
        if not self._target.agent_io.send(text, enter=enter, dialog=dialog_id, reply=reply):
            typed = text + ("\r" if enter else "")
            reply({"ok": self._target.type_in(typed.encode())})

    def _signal(self, number: int) -> bool:
        """Send a signal to the agent's process group, as a terminal would."""
        agent_process = self._target.agent_process
        if agent_process is None or process.check(agent_process) is not process.Liveness.ALIVE:
            return False
        try:
            os.killpg(agent_process.pid, number)
        except (OSError, OverflowError, ValueError):
            return False
        self.forwarded_signals.add(number)
        return True
