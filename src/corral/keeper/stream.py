"""An agent that tells in structured lines what it does."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from corral.keeper.voice import LONGEST_PAUSE, SHORTEST_PAUSE, Log, Recorder, Voice
from corral.rooms.runs.model import Run

if TYPE_CHECKING:
    from corral.adapters.providers.provider import Parser
    from corral.library import Corral

PIECE = 1 << 18
LONGEST_LINE = 64 << 20


class StreamVoice(Voice):
    """Reads the output file as it grows: the agent writes it by itself."""

    def __init__(
        self,
        store: "Corral",
        run: Run,
        parser: "Parser",
        path: Path,
        *,
        offset: int,
        secrets: Sequence[str],
        log: Log,
    ) -> None:
        super().__init__()
        self._recorder = Recorder(store, run, self, log, secrets=secrets)
        self._parser = parser
        self._path = path
        self._offset = offset
        self._left = b""
        self.pause = SHORTEST_PAUSE

    def look(self) -> bool:
        found = False
        while data := self._read():
            found = True
            *lines, self._left = (self._left + data).split(b"\n")
            for line in lines:
                self._recorder.take(self._parser.feed(line))
            if len(self._left) > LONGEST_LINE:
                self._left = b""
        self._recorder.look_at_budget(self._parser.pending())
        self.pause = SHORTEST_PAUSE if found else min((self.pause or 0) * 2, LONGEST_PAUSE)
        return found

    def close(self) -> None:
        self.look()
        if self._left:
            self._recorder.take(self._parser.feed(self._left))
            self._left = b""
        self._recorder.take(self._parser.close())

    def _read(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(PIECE)
        except OSError:
            return b""
        self._offset += len(data)
        return data
