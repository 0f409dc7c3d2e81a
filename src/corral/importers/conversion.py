"""The conversion of source rows to target rows, and the redaction of secrets in them."""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

from corral.adapters.redaction import Redaction, redact_value
from corral.importers.mappings.target_rows import to_json_text
from corral.importers.mappings.types import KEPT, KEY, NOT_IMPORTED, TableMapping, TargetRow
from corral.importers.source.database import RawRow
from corral.importers.source.row import SourceRow

_SEPARATOR = "\n\n"
_REDACTION = Redaction()


class ConvertedRow(NamedTuple):
    """A row of the source, its target rows, and its hash."""

    key: str
    row: SourceRow
    targets: list[TargetRow]
    """The row of the object first."""
    digest: str
    restored: bool
    """Whether the row was imported before, and its object was deleted here."""


def convert_row(table: TableMapping, row: SourceRow, is_duplicate: bool) -> list[TargetRow]:
    """Convert a row. Values that no target row has are kept in `row.unmapped`."""
    if is_duplicate and not table.alias:
        row.problems.append("the row has no key, or a key that another row has too")
    targets = list(table.convert(row)) if table.convert else []
    if not targets and not table.alias:
        row.keep_all()
        row.report_reason(table.reason or "required values are missing")
    for name, target in table.columns.items():
        if target == NOT_IMPORTED:
            row.unmapped.pop(name, None)
            if row.has_value(name):
                row.problems.append(f"{name} is not imported: it may be a secret")
        elif target == KEPT and not table.alias:
            row.keep(name)
    if not table.alias:
        row.keep_unused(
            {
                name
                for name, target in table.columns.items()
                if target == NOT_IMPORTED or (target == KEY and row.peek_text(name) == row.key)
            }
        )
    return targets


def find_parents(table: TableMapping, row: SourceRow) -> Iterator[tuple[str, str]]:
    """Yield the rows of other tables that a row refers to: their table and key."""
    for name, other in table.refs.items():
        if (key := row.peek_key(name)) is not None:
            yield other, key
    if table.links is not None:
        yield from table.links(row)


def compute_digest(raw: RawRow) -> str:
    """Return a hash of all values of a row."""
    return blake2b(repr(raw.values).encode(), digest_size=8).hexdigest()


def redact_rows(converted: Sequence[ConvertedRow]) -> int:
    """Redact everything that looks like a secret; returns the number of rows that had one.

    All texts are checked together first: mostly there is no secret, and that costs a tenth of
    checking each text.
    """
    if not _has_secret(converted):
        return 0
    redacted = 0
    for entry in converted:
        before = [*_list_texts([entry])]
        for target in entry.targets:
            for name, value in target.values.items():
                if isinstance(value, str):
                    target.values[name] = _REDACTION.clean(value)
        clean = redact_value(entry.row.unmapped)
        entry.row.unmapped.clear()
        entry.row.unmapped.update(clean)
        redacted += [*_list_texts([entry])] != before
    return redacted


def _has_secret(converted: Sequence[ConvertedRow]) -> bool:
    joined = _SEPARATOR.join(_list_texts(converted))
    return bool(redact_value(joined) != joined)


def _list_texts(converted: Sequence[ConvertedRow]) -> Iterator[str]:
    for entry in converted:
        for target in entry.targets:
            yield from (value for value in target.values.values() if isinstance(value, str))
        if entry.row.unmapped:
            yield to_json_text(entry.row.unmapped)
