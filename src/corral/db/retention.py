"""The one mechanism that forgets rows which are over and older than a setting allows.

A table is walked along its key, which rises with time, a piece at a time from the oldest on: nobody
waits long for the store, and no index has to be kept for it. The walk ends where the rows are too
young to have ended long ago, or, where the key does not rise with time, with the table.
"""

from typing import Any, NamedTuple

from corral.db.bulk_transitions import encode_rows
from corral.db.statement import Row, Statement
from corral.db.tx import Tx

Key = int | str


class Whose(NamedTuple):
    """The rows that a retention rule applies to: those of one project, or all except those of
    projects with their own rule; and whether imported rows are included."""

    project: str | None = None
    but: tuple[str, ...] = ()
    imported: bool | None = False
    """False: only rows that Corral made. True: only imported rows. None: both."""


EVERYBODY = Whose()
_IMPORTED = {False: " AND {} IS NULL", True: " AND {} IS NOT NULL", None: ""}


class Scoped:
    """A statement in which `{whose}` stands for the condition that selects the rows of a `Whose`.

    `project` is the column with a row's project. `imported` is the column that is null in rows that
    Corral made; None where the table has no imported rows.
    """

    def __init__(
        self,
        text: str,
        *,
        project: str | None = "project_id",
        imported: str | None = "imported_at",
    ) -> None:
        scopes = {
            "all": "TRUE",
            "of_one": f"{project} = :project" if project else "TRUE",
            "of_others": f"({project} IS NULL OR NOT {project} {{is_listed}})"
            if project
            else "TRUE",
        }
        # In a table without imported rows, a request for only imported rows selects nothing.
        origins = _IMPORTED if imported else {False: "", True: " AND FALSE", None: ""}
        self.variants = {
            (scope, choice): Statement(text.replace("{whose}", condition + origin.format(imported)))
            for scope, condition in scopes.items()
            for choice, origin in origins.items()
        }

    def run(self, tx: Tx, whose: Whose, **params: Any) -> list[Row]:
        if whose.project is not None:
            return tx.run(self.variants["of_one", whose.imported], project=whose.project, **params)
        if whose.but:
            others = self.variants["of_others", whose.imported]
            return tx.run(others, keys_=encode_rows(whose.but), **params)
        return tx.run(self.variants["all", whose.imported], **params)

    def value(self, tx: Tx, whose: Whose, **params: Any) -> Any:
        """The first column of the first row, or None."""
        rows = self.run(tx, whose, **params)
        return rows[0][0] if rows else None


class Piece(NamedTuple):
    """What one step of the walk has forgotten, or counted."""

    rows: int
    last: Key | None
    """Go on behind this key; None at the end of the walk."""


class Retention:
    """How long rows of a table are kept.

    `setting` names how many milliseconds; `over` is the condition on a row that ended before
    `:before`, and `born` the column with the moment at which it was made; None where the key does
    not rise with it. `project` is the column with the project that a row belongs to, which may have
    chosen a time of its own; None where rows belong to none. `imported` is the column that is null
    in rows that Corral made; None where the table has no imported rows. Of numbered rows
    (`key="seq"`) the newest always stays, because its number must not be given out again.
    """

    def __init__(
        self,
        table: str,
        *,
        setting: str,
        born: str | None,
        over: str,
        key: str = "id",
        project: str | None = None,
        imported: str | None = None,
    ) -> None:
        self.table = table
        self.setting = setting
        self.by_project = project is not None
        numbered = key == "seq"
        self._start: Key = 0 if numbered else ""
        newest_stays = f" AND {key} < (SELECT max({key}) FROM {table})" if numbered else ""
        old = (
            f"FROM {table} WHERE {key} > :after AND {key} <= :last AND {over}{newest_stays}"
            " AND {whose}"
        )
        self.window = Statement(f"""
            SELECT max({key}), min(born) FROM (
                SELECT {key}, {born or "0"} AS born FROM {table}
                WHERE {key} > :after ORDER BY {key} LIMIT :limit
            ) AS oldest
        """)
        self.count = Scoped(f"SELECT count(*) {old}", project=project, imported=imported)
        self.forget = Scoped(f"DELETE {old} RETURNING {key}", project=project, imported=imported)

    def prune(
        self,
        tx: Tx,
        *,
        before: int,
        after: Key | None = None,
        limit: int = 1_000,
        count_only: bool = False,
        whose: Whose = EVERYBODY,
    ) -> Piece:
        """Forget what ended before a moment, among the next `limit` rows behind a key."""
        start = self._start if after is None else after
        last, oldest = tx.run(self.window, after=start, limit=limit)[0]
        if last is None or oldest >= before:
            return Piece(0, None)
        window = {"after": start, "last": last, "before": before}
        if count_only:
            return Piece(self.count.value(tx, whose, **window), last)
        return Piece(len(self.forget.run(tx, whose, **window)), last)
