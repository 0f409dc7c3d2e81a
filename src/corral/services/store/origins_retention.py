"""Retention of the table `import_origins`, which records the source of each imported row."""

from corral.db.retention import ALL_ROWS, Key, PruneBatch, RetentionScope
from corral.db.tx import Tx
from corral.domain.imports import origins
from corral.domain.imports.origins import SourceName

BATCH = 1_000
"""Rows that are deleted in one transaction."""


class ImportOriginsRetention:
    """Delete the origins of an imported database when none of its objects exists any more.

    Until then all of them are kept: the next import would treat a row without origin as new.
    """

    table = "import_origins"
    setting = "imports.retention_ms"
    by_project = False

    def prune(
        self,
        tx: Tx,
        *,
        before: int,
        after: Key | None = None,
        count_only: bool = False,
        scope: RetentionScope = ALL_ROWS,
    ) -> PruneBatch:
        """Examine the next source database; its key in a walk is its tool and its path."""
        from corral.importers.target.restoration import Restoration

        if scope.imported is False:
            return PruneBatch(0, None)
        last = SourceName(*str(after).split("\n", 1)) if after else SourceName("", "")
        source = origins.find_next_source(tx, last)
        if source is None:
            return PruneBatch(0, None)
        key = "\n".join(source)
        if origins.get_last_change(tx, source) >= before:
            return PruneBatch(0, key)
        restoration = Restoration(tx)
        if any(restoration.has_existing(rows) for rows in origins.iterate_imported(tx, source)):
            return PruneBatch(0, key)
        if count_only:
            return PruneBatch(origins.count_source(tx, source), key)
        deleted = origins.delete_source(tx, source, limit=BATCH)
        # A full batch: more rows of this source may be left, so the walk stays before it.
        return PruneBatch(deleted, after or "\n" if deleted == BATCH else key)
