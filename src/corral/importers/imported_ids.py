"""The ids of objects that were created from rows of one source, by table and key."""

from collections.abc import Iterable

from corral.db.tx import Tx
from corral.domain.imports import origins
from corral.domain.imports.origins import SourceName, SourceTable

MAX_CACHED = 20_000


class ImportedIds(dict[tuple[str, str], str]):
    """Caches ids by table and key of a row; `load` must be called before a lookup."""

    def __init__(self, tx: Tx, source: SourceName) -> None:
        super().__init__()
        self._tx = tx
        self._source = source

    def load(self, rows: Iterable[tuple[str, str]]) -> None:
        """Load the ids of rows, given by table and key, with one query per table.

        Earlier entries are dropped when the cache is full.
        """
        keys_by_table: dict[str, set[str]] = {}
        for table, key in rows:
            keys_by_table.setdefault(table, set()).add(key)
        if len(self) > MAX_CACHED:
            self.clear()
        for table, keys in keys_by_table.items():
            missing = sorted(key for key in keys if (table, key) not in self)
            if not missing:
                continue
            source_table = SourceTable(*self._source, table)
            for key, known in origins.find_imported(self._tx, source_table, missing).items():
                if known.id is not None:
                    self[table, key] = known.id
