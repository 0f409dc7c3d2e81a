"""An agent that tells in structured lines what it does."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from corral.adapters.output.capped import read_cut
from corral.adapters.output.lines import Line, Splitter
from corral.adapters.providers.facts import Fact, Said, Used
from corral.adapters.providers.lines import MAX_LINE, facts_of
from corral.domain.runs.model import Run
from corral.supervisor.agent_io import LONGEST_PAUSE, SHORTEST_PAUSE, Log, Recorder, Voice

if TYPE_CHECKING:
    from corral.adapters.providers.provider import Parser
    from corral.api import Corral

PIECE = 1 << 18


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
        only_outcome: bool = False,
    ) -> None:
        """`only_outcome`: turns and usage come from the CLI's own record instead."""
        super().__init__()
        self._store, self._run, self._log = store, run, log
        self.recorder = self._recorder = Recorder(store, run, self, log, secrets=secrets)
        self.only_outcome = only_outcome
        self._parser = parser
        self._path = path
        self._offset = offset
        self._lines = Splitter(offset, most=MAX_LINE)
        self.pause = SHORTEST_PAUSE

    def look(self) -> bool:
        found = False
        self._recorder.pass_on()
        while not self._recorder.is_behind and (data := self._read()):
            found = True
            self._take(self._lines.feed(data))
        pending = [] if self.only_outcome else self._parser.pending()
        self._recorder.look_at_budget([*pending, *self.pending_in_record()])
        self.pause = SHORTEST_PAUSE if found else min((self.pause or 0) * 2, LONGEST_PAUSE)
        return found

    def close(self) -> None:
        self.look()
        while data := self._read():  # what was left where it is while the store was away
            self._recorder.finish()
            self._take(self._lines.feed(data))
        self._take(self._lines.finish())
        self._recorder.take(self._kept(self._parser.close()), place="end")
        self._recorder.finish()

    def _take(self, lines: list[Line]) -> None:
        for line in lines:
            # By its place in the output, which is the same for whoever reads it again.
            facts = self._kept(facts_of(self._parser, line))
            self._recorder.take(facts, place=str(line.at))

    def _kept(self, facts: list[Fact]) -> list[Fact]:
        """Drop the facts that the record also has, with their own time and model."""
        if self.only_outcome:
            return [fact for fact in facts if not isinstance(fact, Said | Used)]
        if any(isinstance(fact, Used) for fact in facts) and self._is_recorded():
            return [fact for fact in facts if not isinstance(fact, Used)]
        return facts

    def _is_recorded(self) -> bool:
        return self.record is not None and self.record.replaces_usage()

    def _read(self) -> bytes:
        """What comes next; what the cap has cut out of the file meanwhile is passed over."""
        while True:
            try:
                with self._path.open("rb") as file:
                    file.seek(self._offset)
                    data = file.read(PIECE)
            except OSError:
                return b""
            cut = read_cut(self._path)  # after it was read: what was cut by then reads as zeros
            if cut is None or self._offset + len(data) <= cut.start or self._offset >= cut.end:
                break
            data = data[: max(cut.start - self._offset, 0)]
            if data:
                break
            self._offset = cut.end
            self._lines.skip_to(cut.end)
        self._offset += len(data)
        return data
