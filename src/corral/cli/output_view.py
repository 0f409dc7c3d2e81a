"""The output of a run for display: transcript text, plain text, or a rendered terminal."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from corral.adapters.redaction import redact_value
from corral.cli.render import is_output_closed
from corral.domain.runs.model import Run, RunMode

if TYPE_CHECKING:
    from corral.api import Corral

MAX_REPLAYED_BYTES = 8 << 20
"""How much of a terminal's output is replayed, from its end; emulating a terminal is slow."""


class OutputPrinter:
    """Reads one output of one run, converted for display."""

    def __init__(self, store: "Corral", run: Run, *, stream: str, raw: bool) -> None:
        self._store = store
        self._run = run
        self._stream = stream
        self._raw = raw
        self._offset = 0
        self._finish: Callable[[], bytes] = bytes
        """Returns what the converters hold back until the end."""

    def read(self, *, follow: bool) -> Iterator[bytes]:
        """Yield the output from its beginning; with `follow`, until the run is over."""
        if self._is_rendered and not follow:
            yield self._render_terminal().encode()
            return
        yield from self._read_from(0, follow=follow)

    def tail(self, count: int) -> Iterator[bytes]:
        """Yield the last `count` lines."""
        output = self._store.outputs.open(self._run.id, stream=self._stream)
        self._offset = output.size
        if self._is_rendered:
            lines = self._render_terminal().splitlines(keepends=True)
            yield "".join(lines[-count:]).encode()
            return
        convert = self._converter()
        yield convert(b"".join(line + b"\n" for line in output.tail(count)))
        yield self._finish()

    def follow_tail(self) -> Iterator[bytes]:
        """Yield what follows the lines returned by `tail`, until the run is over."""
        yield from self._read_from(self._offset, follow=True)

    def _read_from(self, offset: int, *, follow: bool) -> Iterator[bytes]:
        runs, run = self._store.runs, self._run
        convert = self._converter()
        for piece in self._store.outputs.follow(
            run.id,
            stream=self._stream,
            offset=offset,
            is_finished=lambda: not follow or is_output_closed() or not runs.refresh(run).is_live,
        ):
            yield convert(piece.text)
        yield self._finish()

    @property
    def _is_rendered(self) -> bool:
        return self._run.mode is RunMode.PTY and self._stream == "output" and not self._raw

    def _render_terminal(self) -> str:
        from corral.adapters.output.render import TerminalEmulator

        screen = TerminalEmulator(columns=200, rows=50, history=1_000_000)
        size = self._store.outputs.open(self._run.id).size
        start = max(0, size - MAX_REPLAYED_BYTES)
        for piece in self._store.outputs.follow(self._run.id, offset=start):
            screen.feed(piece.text)
        text: str = redact_value(screen.text())
        return text

    def _converter(self) -> Callable[[bytes], bytes]:
        """Return the conversion to text.

        The text is redacted again: converting may join pieces of a secret that were apart.
        """
        if self._raw:
            return lambda data: data
        from corral.adapters.output import redact
        from corral.adapters.output.render import PipeRenderer
        from corral.services.runs.output_rendering import find_renderer

        transcript = None
        if self._stream == "output":
            transcript = find_renderer(self._run, self._store.runs.get_launch(self._run.id))
        text = transcript if transcript is not None else PipeRenderer()
        redactor = redact.Redactor()
        self._finish = lambda: redactor.feed(text.finish().encode()) + redactor.finish()
        return lambda data: redactor.feed(text.feed(data).encode())
