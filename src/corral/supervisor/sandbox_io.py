"""Sandboxed chat agents: a stream, and messages in the session's outbound file."""

import time

from corral import config
from corral.adapters.sandbox_bridge import outbound
from corral.adapters.sandbox_bridge.schema import SessionFolder
from corral.kernel.errors import CorralError
from corral.supervisor.retry import AGENT_STORE_TIMEOUT
from corral.supervisor.stream_io import StreamIO

# While the file is unchanged: the store may have new results for the agent.
POLL_SECONDS = 1.0


class SandboxIO(StreamIO):
    """Synchronizes the session files when they change, and periodically.

    A failed synchronization is retried at the end of the turn.
    """

    _stamp: object = None
    _next_sync = 0.0
    _last_warning: str | None = None

    def poll(self) -> bool:
        has_output = super().poll()
        return self._synchronize() or has_output

    def _synchronize(self) -> bool:
        run, now = self._run, time.monotonic()
        folder = SessionFolder(str(config.sandbox_folder(str(run.session_id))))
        stamp = outbound.file_stamp(folder)
        if stamp == self._stamp and now < self._next_sync:
            return False
        self._stamp, self._next_sync = stamp, now + POLL_SECONDS
        try:
            with self._store.server_timeout(AGENT_STORE_TIMEOUT):
                result = self._store.internal.chat.sync_sandbox(run.id)
        except CorralError as error:
            self._warn(error.message)
            return False
        if result.error is not None:
            self._warn(f"The agent's session file was rejected: {result.error}")
        return bool(result.ingested or result.refused)

    def _warn(self, message: str) -> None:
        if message != self._last_warning:
            self._log("warn", message, None)
        self._last_warning = message
