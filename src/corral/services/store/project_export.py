"""Export of one project into a file that is a store of its own.

A store, not an archive, so that every command works on it unchanged (`corral --store sqlite:///FILE
…`), including `corral db restore`, on any machine with Corral or SQLite.
`domain/insights/project_scope.py` lists its content table by table.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from corral.adapters.redaction import redact_value
from corral.db.database import Database
from corral.db.excerpt import write_excerpt
from corral.db.filesystem import atomic_file
from corral.db.schema import TableDoc
from corral.db.statement import Row
from corral.db.tx import Tx
from corral.db.types import ProgressCallback
from corral.domain.insights.integrity import build_expected_totals
from corral.domain.insights.project_scope import PROJECT_CONDITIONS
from corral.domain.outputs import ops as outputs
from corral.domain.projects import ops as projects
from corral.domain.search import ops as search
from corral.domain.settings import ops as settings
from corral.importers.target import charges
from corral.kernel.errors import CorralError
from corral.kernel.pagination import iter_all
from corral.kernel.validation import check_text
from corral.services.runs.outputs import (
    is_stored_completely,
    iterate_sealed,
    store_sealed_files,
)

MIN_SECRET_LENGTH = 8
"""Shorter texts, which most cells have, cannot look like a secret."""


class ExportedProject(msgspec.Struct, frozen=True):
    """The result of an export."""

    file: str
    project_id: str
    bytes: int
    rows: dict[str, int]
    """Number of rows by table."""
    outputs: int
    """Sealed outputs that are completely included."""
    outputs_missing: int
    """Sealed outputs whose files are missing or on another machine."""


def export_project(
    database: Database, project: str, file: str | Path, on_progress: ProgressCallback
) -> ExportedProject:
    """Write a snapshot of a project into a new private file; see `Projects.export`."""
    id = database.read(lambda tx: projects.get(tx, project)).id
    target = Path(check_text(str(file), "The path")).expanduser().absolute()
    conditions = {table: text.format(project=id) for table, text in PROJECT_CONDITIONS.items()}
    clean = partial(_redact, values=_list_secret_values(database))
    with atomic_file(target) as part:
        with write_excerpt(database, part, conditions, clean, on_progress) as (into, counts):
            stored = _add_outputs(into, on_progress)
            counts["output_chunks"] = outputs.count_chunks(into)
            search.rewind_cursor(into)
            counts["usage_totals"] += charges.insert_totals(
                into, f"project:{id}", build_expected_totals(into)
            )
        size = part.stat().st_size
    return ExportedProject(
        str(target),
        id,
        size,
        {table: count for table, count in counts.items() if count},
        stored[True],
        stored[False],
    )


# -- secrets ---------------------------------------------------------------------------------------


def _list_secret_values(database: Database) -> list[str]:
    """Return the values of secrets that can be read without running a command or a prompt."""
    values = []
    for secret in iter_all(
        lambda after: database.read(partial(settings.list_secrets, after=after))
    ):
        if secret.reference.startswith(("env:", "file:")):
            from corral.adapters import secrets

            with suppress(CorralError):
                values.append(secrets.resolve_secret(secret.reference))
    return values


def _redact(table: TableDoc, row: Row, *, values: Sequence[str]) -> Row:
    """Redact the texts of a row again: patterns and values may have become known since."""
    return tuple(
        _redact_cell(column.type, cell, values)
        if isinstance(cell, str) and len(cell) >= MIN_SECRET_LENGTH
        else cell
        for column, cell in zip(table.columns, row, strict=True)
    )


def _redact_cell(kind: str, cell: str, values: Sequence[str]) -> str:
    if kind.startswith("text"):
        clean: str = redact_value(cell, values)
        return clean
    if kind.startswith("json"):
        if redact_value(cell, values) == cell:
            return cell
        return msgspec.json.encode(redact_value(_decode_cell(cell), values)).decode()
    return cell  # ids, names and states, which other rows refer to


def _decode_cell(cell: str) -> Any:
    return msgspec.json.decode(cell)


# -- output ----------------------------------------------------------------------------------------


def _add_outputs(into: Tx, on_progress: ProgressCallback) -> dict[bool, int]:
    """Store the sealed files of this machine; counts outputs by whether they are complete."""
    stored = {True: 0, False: 0}
    for row in iterate_sealed(into):
        on_progress("output", stored[True], stored[True] + 1)
        stored[is_stored_completely(into, row) or store_sealed_files(into, row)] += 1
    outputs.detach_folders(into)
    return stored
