"""One project as one file: a store of its own, to be looked at with every command of Corral.

It is a store and not an archive of some format, because then everything that shows, searches, adds
up and verifies works on it as it is (`corral --store sqlite:///FILE …`), on a machine that has
nothing but Corral or SQLite, and so does `corral db restore`. What is in it stands in
`domain/insights/project_scope.py`, table by table.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from corral.adapters.redaction import clean_of_secrets
from corral.api.outputs import bring, is_whole, sealed
from corral.db.database import Database, Told
from corral.db.excerpt import excerpt
from corral.db.filesystem import whole_file
from corral.db.schema import TableDoc
from corral.db.statement import Row
from corral.db.tx import Tx
from corral.domain.insights.integrity import charged
from corral.domain.insights.project_scope import OF_PROJECT
from corral.domain.outputs import ops as outputs
from corral.domain.projects import ops as projects
from corral.domain.search import ops as search
from corral.domain.settings import ops as settings
from corral.importers.rows import charges
from corral.kernel.errors import CorralError
from corral.kernel.pagination import every
from corral.kernel.text import clean_text

SHORTEST = 8
"""Nothing shorter looks like a key; most cells are."""


class Exported(msgspec.Struct, frozen=True):
    """A project's file, and what is in it."""

    file: str
    project_id: str
    bytes: int
    rows: dict[str, int]
    """How many of each table."""
    outputs: int
    """Sealed outputs of which all is in it."""
    outputs_missing: int
    """Those whose files are on another machine, or gone."""


def export(database: Database, project: str, file: str | Path, told: Told) -> Exported:
    """Write what belongs to a project, as it is at one moment, into a new private file."""
    id = database.read(lambda tx: projects.get(tx, project)).id
    target = Path(clean_text(str(file), "The path")).expanduser().absolute()
    conditions = {table: text.format(project=id) for table, text in OF_PROJECT.items()}
    clean = partial(_clean, values=_values(database))
    with whole_file(target) as part:
        with excerpt(database, part, conditions, clean, told) as (into, counts):
            found = _add_outputs(into, told)
            counts["output_chunks"] = outputs.count_chunks(into)
            search.go_back(into)
            counts["totals"] += charges.take_totals(into, f"project:{id}", charged(into))
        size = part.stat().st_size
    return Exported(
        str(target),
        id,
        size,
        {table: count for table, count in counts.items() if count},
        found[True],
        found[False],
    )


# -- secrets ---------------------------------------------------------------------------------------


def _values(database: Database) -> list[str]:
    """The secrets of the store that this process can read, without asking anybody for them."""
    found = []
    for secret in every(lambda after: database.read(partial(settings.list_secrets, after=after))):
        if secret.reference.startswith(("env:", "file:")):
            from corral.adapters import secrets

            with suppress(CorralError):
                found.append(secrets.resolve(secret.reference))
    return found


def _clean(table: TableDoc, row: Row, *, values: Sequence[str]) -> Row:
    """Texts once more without secrets: what one looks like, or is, may be known only since."""
    return tuple(
        _clean_cell(column.type, cell, values)
        if isinstance(cell, str) and len(cell) >= SHORTEST
        else cell
        for column, cell in zip(table.columns, row, strict=True)
    )


def _clean_cell(kind: str, cell: str, values: Sequence[str]) -> str:
    if kind.startswith("text"):
        clean: str = clean_of_secrets(cell, values)
        return clean
    if kind.startswith("json"):
        if clean_of_secrets(cell, values) == cell:
            return cell
        return msgspec.json.encode(clean_of_secrets(_decoded(cell), values)).decode()
    return cell  # ids, names and states, by which rows find one another


def _decoded(cell: str) -> Any:
    return msgspec.json.decode(cell)


# -- output ----------------------------------------------------------------------------------------


def _add_outputs(into: Tx, told: Told) -> dict[bool, int]:
    """Put the sealed files of this machine into the file too, and say whether all is there."""
    found = {True: 0, False: 0}
    for row in sealed(into):
        told("output", found[True], found[True] + 1)
        found[is_whole(into, row) or bring(into, row)] += 1
    outputs.leave_folders(into)
    return found
