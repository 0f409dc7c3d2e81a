"""Retention: delete rows that ended longer ago than a setting allows.

A table declares one of two rules:

- `Retention`, for rows that are deleted alone. The table is walked along its key, which ascends
  with creation time, in batches from the oldest row on. So no transaction is long, and no
  additional index is needed. The walk stops at the first batch whose rows are all too new, or, if
  the key does not ascend with time, at the end of the table.
- `PrunableRows`, for rows that are deleted together with rows of other tables, such as a race with
  its attempts. An index finds them; `CascadingRetention` adds the function that deletes them.

`services/store/retention_rules.py` lists the rules of all tables; `prune.py` applies them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from corral.db.statement import Row, Statement, encode_rows
from corral.db.tx import Tx

Key = int | str


class RetentionScope(NamedTuple):
    """The rows that a retention rule applies to."""

    project: str | None = None
    """Only rows of this project."""
    except_projects: tuple[str, ...] = ()
    """Without `project`: all rows except those of projects with a rule of their own."""
    imported: bool | None = False
    """False: only rows that Corral created. True: only imported rows. None: both."""


ALL_ROWS = RetentionScope()
_IMPORTED = {False: " AND {} IS NULL", True: " AND {} IS NOT NULL", None: ""}


class ScopedStatement:
    """A statement with `{in_scope}` in place of the condition that selects a `RetentionScope`.

    `project` is the column with the project of a row, None if rows have no project. `imported` is
    the column that is null in rows that Corral created, None if the table has no imported rows.
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
            # Rows without a project belong to no excluded project; NULL would fail the list test.
            "of_others": f"({project} IS NULL OR NOT {project} {{is_listed}})"
            if project
            else "TRUE",
        }
        # In a table without imported rows, a request for only imported rows selects nothing.
        import_conditions = _IMPORTED if imported else {False: "", True: " AND FALSE", None: ""}
        self.variants = {
            (scope, choice): Statement(
                text.replace("{in_scope}", condition + import_condition.format(imported))
            )
            for scope, condition in scopes.items()
            for choice, import_condition in import_conditions.items()
        }

    def run(self, tx: Tx, scope: RetentionScope, **params: Any) -> list[Row]:
        if scope.project is not None:
            return tx.run(self.variants["of_one", scope.imported], project=scope.project, **params)
        if scope.except_projects:
            others = self.variants["of_others", scope.imported]
            return tx.run(others, keys_=encode_rows(scope.except_projects), **params)
        return tx.run(self.variants["all", scope.imported], **params)

    def value(self, tx: Tx, scope: RetentionScope, **params: Any) -> Any:
        """Return the first column of the first row, or None."""
        rows = self.run(tx, scope, **params)
        return rows[0][0] if rows else None


class PruneBatch(NamedTuple):
    """The result of one batch."""

    rows: int
    """The number of rows that were deleted, or counted."""
    last: Key | None
    """The key to continue after; None at the end of the walk."""


class RetentionRule(Protocol):
    """What the two kinds of rules have in common."""

    @property
    def table(self) -> str: ...

    @property
    def setting(self) -> str:
        """The name of the setting with the retention time in milliseconds."""
        ...

    @property
    def by_project(self) -> bool:
        """Whether the setting of a row's project takes precedence."""
        ...

    def prune(
        self,
        tx: Tx,
        *,
        before: int,
        after: Key | None = None,
        count_only: bool = False,
        scope: RetentionScope = ALL_ROWS,
    ) -> PruneBatch:
        """Delete the next batch of rows that ended before a time, or count them.

        Call it again with `after` = `last` of the result until `last` is None.
        """
        ...


class Retention:
    """The retention rule of rows that are deleted alone.

    - `setting`: the name of the setting with the retention time in milliseconds.
    - `ended`: the condition that a row ended before `:before`.
    - `created`: the column with the creation time; None if the key does not ascend with it.
    - `project`: the column with the project of a row, whose own setting takes precedence; None if
      rows have no project.
    - `imported`: the column that is null in rows that Corral created; None if the table has no
      imported rows.

    In numbered tables (`key="seq"`) the newest row always stays: its number must not be reused.
    """

    def __init__(
        self,
        table: str,
        *,
        setting: str,
        created: str | None,
        ended: str,
        key: str = "id",
        project: str | None = None,
        imported: str | None = None,
    ) -> None:
        self.table = table
        self.setting = setting
        self.by_project = project is not None
        is_numbered = key == "seq"
        self._start: Key = 0 if is_numbered else ""
        # SQLite assigns max(seq) + 1, so deleting the newest row would free its number.
        keep_newest = f" AND {key} < (SELECT max({key}) FROM {table})" if is_numbered else ""
        # :after and :last limit the batch, `ended` is the rule.
        expired = (
            f"FROM {table} WHERE {key} > :after AND {key} <= :last AND {ended}{keep_newest}"
            " AND {in_scope}"
        )
        # The last key and the oldest creation time of the next :limit rows. Without a creation
        # time it is 0, so that the walk goes on to the end of the table.
        self.window = Statement(f"""
            SELECT max({key}), min(born) FROM (
                SELECT {key}, {created or "0"} AS born FROM {table}
                WHERE {key} > :after ORDER BY {key} LIMIT :limit
            ) AS oldest
        """)
        self.count = ScopedStatement(
            f"SELECT count(*) {expired}", project=project, imported=imported
        )
        self.delete = ScopedStatement(
            f"DELETE {expired} RETURNING {key}", project=project, imported=imported
        )

    def prune(
        self,
        tx: Tx,
        *,
        before: int,
        after: Key | None = None,
        limit: int = 1_000,
        count_only: bool = False,
        scope: RetentionScope = ALL_ROWS,
    ) -> PruneBatch:
        """Delete the rows that ended before a time, among the next `limit` rows after a key."""
        start = self._start if after is None else after
        last, oldest = tx.run(self.window, after=start, limit=limit)[0]
        if last is None or oldest >= before:
            return PruneBatch(0, None)
        window = {"after": start, "last": last, "before": before}
        if count_only:
            return PruneBatch(self.count.value(tx, scope, **window), last)
        return PruneBatch(len(self.delete.run(tx, scope, **window)), last)


class PrunableRows:
    """The rows that `CascadingRetention` deletes.

    - `setting`, `key`, `project`, `imported`: as in `Retention`.
    - `ended`: for each index along which expired rows are found, its time column and the condition
      that a row ended before `:before`.
    - `count_ended`: the condition of a dry run, if it is another one: a row may become deletable
      only when rows of the same table were deleted.
    - `batch`: the number of rows that are deleted in one transaction.
    """

    def __init__(
        self,
        table: str,
        *,
        setting: str,
        ended: Mapping[str, str],
        batch: int,
        count_ended: str | None = None,
        key: str = "id",
        project: str | None = "project_id",
        imported: str | None = "imported_at",
    ) -> None:
        self.table = table
        self.setting = setting
        self.by_project = project is not None
        self.batch = batch
        # skip_locked: a row that is changed concurrently is left to the next run.
        self.select = {
            column: ScopedStatement(
                f"SELECT {key} FROM {table} WHERE {condition} AND {{in_scope}}"
                f" ORDER BY {column} LIMIT :limit {{skip_locked}}",
                project=project,
                imported=imported,
            )
            for column, condition in ended.items()
        }
        counted = ended.values() if count_ended is None else [count_ended]
        self.counts = [
            ScopedStatement(
                f"SELECT count(*) FROM {table} WHERE {condition} AND {{in_scope}}",
                project=project,
                imported=imported,
            )
            for condition in counted
        ]

    def list_keys(
        self, tx: Tx, *, before: int, limit: int | None = None, scope: RetentionScope = ALL_ROWS
    ) -> list[str]:
        """List the keys of rows that ended before a time, longest ago first.

        Returns up to `limit` keys (default: `batch`) for each index, and locks their rows.
        """
        return [
            key
            for statement in self.select.values()
            for (key,) in statement.run(tx, scope, before=before, limit=limit or self.batch)
        ]

    def count(self, tx: Tx, *, before: int, scope: RetentionScope = ALL_ROWS) -> int:
        """Count all rows that ended before a time."""
        return sum(statement.value(tx, scope, before=before) for statement in self.counts)


class CascadingRetention:
    """The retention rule of rows that are deleted together with rows of other tables.

    `delete(tx, keys)` returns the number of rows of the table that it deleted. It may leave rows to
    the next transaction if they own many others.
    """

    def __init__(self, rows: PrunableRows, delete: Callable[[Tx, Sequence[str]], int]) -> None:
        self.rows = rows
        self.delete = delete
        self.table = rows.table
        self.setting = rows.setting
        self.by_project = rows.by_project

    def prune(
        self,
        tx: Tx,
        *,
        before: int,
        after: Key | None = None,
        count_only: bool = False,
        scope: RetentionScope = ALL_ROWS,
    ) -> PruneBatch:
        """Delete the next batch; `after` is ignored, because deleted rows are not listed again."""
        if count_only:
            return PruneBatch(self.rows.count(tx, before=before, scope=scope), None)
        keys = self.rows.list_keys(tx, before=before, scope=scope)
        return PruneBatch(self.delete(tx, keys), keys[-1]) if keys else PruneBatch(0, None)
