"""The full-text index of run outputs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corral.db.tx import Tx
from corral.domain.runs.model import Run, RunMode
from corral.domain.search import ops as search
from corral.kernel.errors import NotFound
from corral.services.runs.outputs import open_output

if TYPE_CHECKING:
    from corral.db.database import Database

INDEXED_BYTES = 256 * 1024
"""Bytes at each end of an output that are indexed."""
PASSAGE_LENGTH = 2_000  # characters


def index_output(database: "Database", run: Run, secrets: Sequence[str] = ()) -> None:
    """Index the beginning and the end of an output as plain text. Idempotent."""
    try:
        output = open_output(database, run.id)
        size = output.size
        parts = [(0, output.bytes(0, INDEXED_BYTES))]
        if size > INDEXED_BYTES:
            start = max(INDEXED_BYTES, size - INDEXED_BYTES)
            parts.append((start, output.bytes(start, INDEXED_BYTES)))
    except NotFound:
        return
    passages = [
        (offset, passage)
        for offset, part in parts
        for passage in _split_passages(_render(part, run, secrets))
    ]
    if passages:
        database.write(lambda tx: _replace(tx, run, passages))


def _render(part: bytes, run: Run, secrets: Sequence[str]) -> str:
    """Return the text as a terminal shows it.

    It is redacted again: a terminal escape inside a secret may have hidden it before.
    """
    from corral.adapters.output.redact import redact
    from corral.adapters.output.render import render

    text = render(part, terminal=run.mode is RunMode.PTY)
    return redact(text.encode(), secrets).decode(errors="replace")


def _replace(tx: Tx, run: Run, passages: list[tuple[int, str]]) -> None:
    while not search.remove_subject(tx, "output", run.id):
        pass
    at = run.ended_at or tx.now
    for offset, passage in passages:
        search.add(tx, "output", run.id, offset, run.project_id, at, passage)


def _split_passages(text: str) -> list[str]:
    """Split a text into passages of complete lines; a long line is split too."""
    passages: list[str] = []
    current = ""
    for line in text.splitlines(keepends=True):
        for part in (line[at : at + PASSAGE_LENGTH] for at in range(0, len(line), PASSAGE_LENGTH)):
            if current and len(current) + len(part) > PASSAGE_LENGTH:
                passages.append(current)
                current = ""
            current += part
    return [passage for passage in [*passages, current] if passage.strip()]
