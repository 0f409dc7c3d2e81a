"""Agents that report what they do in structured lines of their output."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from corral.adapters.output.capped_file import read_cut
from corral.adapters.output.lines import LineSplitter, OutputLine
from corral.adapters.providers.facts import ProviderFact, TurnFact, UsageFact
from corral.adapters.providers.json_lines import MAX_LINE, parse_line
from corral.domain.runs.model import Run
from corral.supervisor.agent_io import MAX_PAUSE, MIN_PAUSE, AgentIO, Log
from corral.supervisor.recorder import Recorder

if TYPE_CHECKING:
    from corral.adapters.providers.provider import StreamParser
    from corral.api import Corral

READ_BYTES = 1 << 18


class StreamIO(AgentIO):
    """Reads the output file while the agent writes it."""

    def __init__(
        self,
        store: "Corral",
        run: Run,
        parser: "StreamParser",
        path: Path,
        *,
        offset: int,
        secrets: Sequence[str],
        log: Log,
        only_outcome: bool = False,
    ) -> None:
        """`only_outcome`: turns and usage come from the CLI's transcript instead."""
        super().__init__()
        self._store, self._run, self._log = store, run, log
        self.recorder = self._recorder = Recorder(store, run, self.status, log, secrets=secrets)
        self.only_outcome = only_outcome
        self._parser = parser
        self._path = path
        self._offset = offset
        self._splitter = LineSplitter(offset, max_bytes=MAX_LINE)
        self.pause = MIN_PAUSE

    def poll(self) -> bool:
        has_output = False
        self._recorder.flush()
        while not self._recorder.is_behind and (data := self._read()):
            has_output = True
            self._record(self._splitter.feed(data))
        pending = [] if self.only_outcome else self._parser.pending()
        self._recorder.check_budget([*pending, *self.pending_in_transcript()])
        self.pause = MIN_PAUSE if has_output else min((self.pause or 0) * 2, MAX_PAUSE)
        return has_output

    def close(self) -> None:
        self.poll()
        while data := self._read():  # not read before, because too many facts were pending
            self._recorder.finish()
            self._record(self._splitter.feed(data))
        self._record(self._splitter.finish())
        self._recorder.record(self._drop_recorded(self._parser.close()), place="end")
        self._recorder.finish()

    def _record(self, lines: list[OutputLine]) -> None:
        for line in lines:
            # The offset is the same for a supervisor that reads the output again.
            facts = self._drop_recorded(parse_line(self._parser, line))
            self._recorder.record(facts, place=str(line.at))

    def _drop_recorded(self, facts: list[ProviderFact]) -> list[ProviderFact]:
        """Drop the facts that the CLI's transcript also has, with time and model."""
        if self.only_outcome:
            return [fact for fact in facts if not isinstance(fact, TurnFact | UsageFact)]
        if any(isinstance(fact, UsageFact) for fact in facts) and self._is_recorded():
            return [fact for fact in facts if not isinstance(fact, UsageFact)]
        return facts

    def _is_recorded(self) -> bool:
        return self.transcript is not None and self.transcript.replaces_usage()

    def _read(self) -> bytes:
        """Read the next piece of the output, skipping what the cap has cut out of the file."""
        while True:
            try:
                with self._path.open("rb") as file:
                    file.seek(self._offset)
                    data = file.read(READ_BYTES)
            except OSError:
                return b""
            cut = read_cut(self._path)  # after reading: bytes cut by then read as zeros
            if cut is None or self._offset + len(data) <= cut.start or self._offset >= cut.end:
                break
            data = data[: max(cut.start - self._offset, 0)]
            if data:
                break
            self._offset = cut.end
            self._splitter.skip_to(cut.end)
        self._offset += len(data)
        return data
