"""A boxed agent: besides its output, what it says in its session's file is taken over."""

import time

from corral.adapters.sandbox_bridge import outbound
from corral.kernel.errors import CorralError
from corral.services.chat.sandbox_sync import folder_of
from corral.supervisor.budget import MOMENT
from corral.supervisor.stream_io import StreamVoice

BETWEEN_LOOKS = 1.0  # seconds, when the file does not change: outcomes and answers come from afar


class BoxedVoice(StreamVoice):
    """Looks at the file whenever it changes, and now and then. What it cannot take over now, the
    end of the turn does."""

    _stamp: object = None
    _next_look = 0.0
    _trouble: str | None = None

    def look(self) -> bool:
        found = super().look()
        return self._exchange() or found

    def _exchange(self) -> bool:
        run, now = self._run, time.monotonic()
        stamp = outbound.stamp(folder_of(str(run.session_id)))
        if stamp == self._stamp and now < self._next_look:
            return False
        self._stamp, self._next_look = stamp, now + BETWEEN_LOOKS
        try:
            with self._store.waiting_at_most(MOMENT):
                looked = self._store.gateway.exchange(run.id)
        except CorralError as error:
            self._say(error.message)
            return False
        if looked.trouble is not None:
            self._say(f"What the agent wrote is not believed: {looked.trouble}")
        return bool(looked.taken or looked.refused)

    def _say(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._log("warn", trouble, None)
        self._trouble = trouble
