"""Making a run's output findable by its words, once it is over."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corral.db.tx import Tx
from corral.domain.runs.model import Mode, Run
from corral.domain.search import ops as search
from corral.kernel.errors import NotFound

if TYPE_CHECKING:
    from corral.api.outputs import Outputs
    from corral.db.database import Database

MOST = 256 * 1024
"""Bytes at each end of an output that are made findable."""
PASSAGE = 2_000


def make_findable(
    database: "Database", outputs: "Outputs", run: Run, secrets: Sequence[str] = ()
) -> None:
    """Put both ends of an output into the index, as text; a second time replaces the first."""
    try:
        text = outputs.open(run.id)
        size = text.size
        parts = [(0, text.bytes(0, MOST))]
        if size > MOST:
            begin = max(MOST, size - MOST)
            parts.append((begin, text.bytes(begin, MOST)))
    except NotFound:
        return
    passages = [
        (offset, passage)
        for offset, part in parts
        for passage in _passages(_text(part, run, secrets))
    ]
    if passages:
        database.write(lambda tx: _replace(tx, run, passages))


def _text(part: bytes, run: Run, secrets: Sequence[str]) -> str:
    """As a person sees it. It is redacted again: an escape may have stood within a secret."""
    from corral.adapters.output.redact import redact
    from corral.adapters.output.render import render

    shown = render(part, terminal=run.mode is Mode.PTY)
    return redact(shown.encode(), secrets).decode(errors="replace")


def _replace(tx: Tx, run: Run, passages: list[tuple[int, str]]) -> None:
    while not search.forget(tx, "output", run.id):
        pass
    at = run.ended_at or tx.now
    for offset, passage in passages:
        search.add(tx, "output", run.id, offset, run.project_id, at, passage)


def _passages(text: str) -> list[str]:
    """Pieces of a few lines each."""
    pieces: list[str] = []
    gathered = ""
    for line in text.splitlines(keepends=True):
        for part in (line[at : at + PASSAGE] for at in range(0, len(line), PASSAGE)):
            if gathered and len(gathered) + len(part) > PASSAGE:
                pieces.append(gathered)
                gathered = ""
            gathered += part
    return [piece for piece in [*pieces, gathered] if piece.strip()]
