"""The one mechanism that forgets rows which are over and older than a setting allows.

A table is walked along its key, which rises with time, a piece at a time from the oldest on: nobody
waits long for the store, and no index has to be kept for it. The walk ends where the rows are too
young to have ended long ago, or, where the key does not rise with time, with the table.
"""

from typing import NamedTuple

from corral.db.statement import Statement
from corral.db.tx import Tx

Key = int | str


class Piece(NamedTuple):
    """What one step of the walk has forgotten, or counted."""

    rows: int
    last: Key | None
    """Go on behind this key; None at the end of the walk."""


class Retention:
    """How long rows of a table are kept.

    `setting` names how many milliseconds; `over` is the condition on a row that ended before
    `:before`, and `born` the column with the moment at which it was made; None where the key does
    not rise with it. Of numbered rows (`key="seq"`) the newest always stays, because its number
    must not be given out again.
    """

    def __init__(
        self, table: str, *, setting: str, born: str | None, over: str, key: str = "id"
    ) -> None:
        self.table = table
        self.setting = setting
        numbered = key == "seq"
        self._start: Key = 0 if numbered else ""
        newest_stays = f" AND {key} < (SELECT max({key}) FROM {table})" if numbered else ""
        old = f"FROM {table} WHERE {key} > :after AND {key} <= :last AND {over}{newest_stays}"
        self.window = Statement(f"""
            SELECT max({key}), min(born) FROM (
                SELECT {key}, {born or "0"} AS born FROM {table}
                WHERE {key} > :after ORDER BY {key} LIMIT :limit
            ) AS oldest
        """)
        self.count = Statement(f"SELECT count(*) {old}")
        self.forget = Statement(f"DELETE {old} RETURNING {key}")

    def prune(
        self,
        tx: Tx,
        *,
        before: int,
        after: Key | None = None,
        limit: int = 1_000,
        count_only: bool = False,
    ) -> Piece:
        """Forget what ended before a moment, among the next `limit` rows behind a key."""
        start = self._start if after is None else after
        last, oldest = tx.run(self.window, after=start, limit=limit)[0]
        if last is None or oldest >= before:
            return Piece(0, None)
        window = {"after": start, "last": last, "before": before}
        if count_only:
            return Piece(tx.value(self.count, **window), last)
        return Piece(len(tx.run(self.forget, **window)), last)
