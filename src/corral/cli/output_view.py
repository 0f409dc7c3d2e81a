"""A run's output for a person: words, plain text, or what its terminal looked like."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from corral.adapters.redaction import clean_of_secrets
from corral.cli.render import nobody_reads
from corral.domain.runs.model import Mode, Run

if TYPE_CHECKING:
    from corral.api import Corral

# Of a terminal's output so much is played, from its end: playing is slow.
MOST_PLAYED = 8 << 20


class Reading:
    """One reader's way through one output."""

    def __init__(self, store: "Corral", run: Run, *, stream: str, raw: bool) -> None:
        self._store = store
        self._run = run
        self._stream = stream
        self._raw = raw
        self._offset = 0
        self._finish: Callable[[], bytes] = bytes
        """What is held back at the end."""

    def all(self, *, follow: bool) -> Iterator[bytes]:
        """From the beginning; with `follow` until the run is over."""
        if self._is_played and not follow:
            yield self._play().encode()
            return
        yield from self._from(0, follow=follow)

    def tail(self, count: int) -> Iterator[bytes]:
        """The last lines as they are now."""
        text = self._store.outputs.open(self._run.id, stream=self._stream)
        self._offset = text.size
        if self._is_played:
            lines = self._play().splitlines(keepends=True)
            yield "".join(lines[-count:]).encode()
            return
        show = self._shown()
        yield show(b"".join(line + b"\n" for line in text.tail(count)))
        yield self._finish()

    def rest(self) -> Iterator[bytes]:
        """What comes after the lines that `tail` gave, until the run is over."""
        yield from self._from(self._offset, follow=True)

    def _from(self, offset: int, *, follow: bool) -> Iterator[bytes]:
        runs, run = self._store.runs, self._run
        show = self._shown()
        for piece in self._store.outputs.follow(
            run.id,
            stream=self._stream,
            offset=offset,
            over=lambda: not follow or nobody_reads() or not runs.refreshed(run).is_live,
        ):
            yield show(piece.text)
        yield self._finish()

    @property
    def _is_played(self) -> bool:
        return self._run.mode is Mode.PTY and self._stream == "output" and not self._raw

    def _play(self) -> str:
        from corral.adapters.output.render import Terminal

        screen = Terminal(columns=200, rows=50, history=1_000_000)
        size = self._store.outputs.open(self._run.id).size
        begin = max(0, size - MOST_PLAYED)
        for piece in self._store.outputs.follow(self._run.id, offset=begin):
            screen.feed(piece.text)
        shown: str = clean_of_secrets(screen.text())
        return shown

    def _shown(self) -> Callable[[bytes], bytes]:
        """Text that is redacted once more: what stood apart may have come together in it."""
        if self._raw:
            return lambda data: data
        from corral.adapters.output import redact
        from corral.adapters.output.render import PipeText
        from corral.services.runs.transcript_text import telling_of

        telling = telling_of(self._store, self._run) if self._stream == "output" else None
        shown = telling if telling is not None else PipeText()
        redactor = redact.Redactor()
        self._finish = lambda: redactor.feed(shown.finish().encode()) + redactor.finish()
        return lambda data: redactor.feed(shown.feed(data).encode())
