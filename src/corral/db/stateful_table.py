"""Tables whose rows have a state, and the statements that create rows and change their state."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from corral.db.dialect import Engine
from corral.db.listing import Listing
from corral.db.lookup import not_found
from corral.db.statement import Query, Row, Statement, columns_of
from corral.db.tx import Tx
from corral.kernel.errors import NotFound
from corral.kernel.ids import parse_number
from corral.kernel.pagination import LAST_ID, LAST_NUMBER
from corral.kernel.states import TransitionTable

R = TypeVar("R")


class StatefulTable(Generic[R]):
    """A table whose rows have a state: its record type, transition table and columns.

    - `record`: the record type of a row; it has the fields `id` and `state`.
    - `columns`: the SELECT list of the record, if it is not just its fields.
    - `key`: the primary key column; `project`: the column with the project of a row.
    - `id_prefix`: the prefix of the public id, for tables whose key is a sequence number.
    - `make_record`: builds the record of a new row from its number, values and state, so that the
      row is not read back. For tables with so many inserts that this matters.
    - `extra_columns`: columns that transitions may set although the record has no field with their
      name.
    - `insert_expressions`: columns whose INSERT value is a SQL expression in terms of the given
      values (`:column`). PostgreSQL only, where concurrent writers could otherwise choose the same
      queue position; SQLite has one writer and inserts the values as given.
    """

    def __init__(
        self,
        record: type[R],
        transitions: TransitionTable,
        *,
        table: str,
        columns: str | None = None,
        key: str = "id",
        id_prefix: str | None = None,
        project: str | None = None,
        make_record: Callable[[int, Mapping[str, Any], Any], R] | None = None,
        extra_columns: Iterable[str] = (),
        insert_expressions: Mapping[str, str] | None = None,
    ) -> None:
        self.record = record
        self.transitions = transitions
        self.table = table
        self.columns = columns or columns_of(record)
        self.key = key
        self.id_prefix = id_prefix
        self.project = project
        self.make_record = make_record
        self.insert_expressions = insert_expressions or {}
        fields: Any = record
        self.writable = {*fields.__struct_fields__, *extra_columns} - {"id", "state", key}
        self._inserts: dict[tuple[str, ...], Query[R]] = {}
        self.by_key = Query(record, f"SELECT {self.columns} FROM {table} WHERE {key} = :key_")
        self.by_key_for_update = Query(record, f"{self.by_key.text} {{locked}}")

    def get(self, tx: Tx, key: str | int, *, for_update: bool = False) -> R:
        """Return the row with this key, or raise NotFound."""
        row = tx.first(self.by_key_for_update if for_update else self.by_key, key_=key)
        if row is None:
            raise self.not_found(key)
        return row

    def get_for_update(self, tx: Tx, key: str | int) -> R:
        """Return the row and lock it until this transaction ends."""
        tx.begin()
        return self.get(tx, key, for_update=True)

    def not_found(self, key: str | int) -> NotFound:
        id = f"{self.id_prefix}_{key}" if self.id_prefix else key
        return not_found(self.transitions.kind, id)

    def insert_query(
        self, values: Mapping[str, Any], on_conflict: str, verb: str, engine: Engine
    ) -> "Query[R]":
        """Return the INSERT of a new row with these columns."""
        shape = (engine, verb, on_conflict, *values)
        query = self._inserts.get(shape)
        if query is None:
            query = self._inserts[shape] = self._build_insert(values, on_conflict, verb, engine)
        return query

    def _build_insert(
        self, columns: Iterable[str], on_conflict: str, verb: str, engine: Engine
    ) -> "Query[R]":
        names = ", ".join(columns)
        values = ", ".join(self.insert_value(name, engine) for name in columns)
        conflict = f" ON CONFLICT {on_conflict} DO NOTHING" if on_conflict else ""
        insert = (
            f"INSERT INTO {self.table} ({names}, state)"
            f" VALUES ({values}, '{self.transitions.initial_states[verb]}'){conflict}"
        )
        if self.make_record is None:
            return self.build_record_query(insert, engine)
        return self.build_key_query(insert, engine, *self.insert_expressions)

    def build_new_record(self, row: Row, values: dict[str, Any], verb: str) -> R:
        """Return the record of a row that `insert_query` inserted, from its key and values.

        Only for a table with `make_record`. `values` gets the values of `insert_expressions`.
        """
        assert self.make_record is not None
        if len(row) > 1:
            values.update(zip(self.insert_expressions, row[1:], strict=True))
        return self.make_record(row[0], values, self.transitions.initial_states[verb])

    def insert_value(self, column: str, engine: Engine) -> str:
        """Return the SQL for the value of a column in the INSERT of a new row."""
        parameter = f":{column}"
        return parameter if engine == "sqlite" else self.insert_expressions.get(column, parameter)

    def build_update(self, verb: str, columns: Sequence[str], condition: str) -> str:
        """Return the UPDATE that applies a verb to the rows that meet a condition.

        Raises TypeError for a column that transitions may not set.
        """
        if unknown := set(columns) - self.writable:
            raise TypeError(f"{self.record.__name__} has no fields {', '.join(sorted(unknown))}")
        sources, to = self.transitions[verb]
        assignments = "".join(f", {name} = :{name}" for name in columns)
        states = ", ".join(f"'{state}'" for state in sources)
        # `state IN` is the transition table: from any other state the statement updates no row.
        return (
            f"UPDATE {self.table} SET state = '{to}'{assignments}"
            f" WHERE {condition} AND state IN ({states})"
        )

    def build_record_query(self, change: str, engine: Engine) -> "Query[R]":
        """Return the change as a query for the new record; on PostgreSQL it inserts the event."""
        if engine == "sqlite":
            return Query(self.record, f"{change} RETURNING {self.columns}")
        return Query(self.record, self._add_events(change, self.columns))

    def build_key_query(self, change: str, engine: Engine, *computed: str) -> "Query[R]":
        """Return the change as a query for the key and the `computed` columns only.

        The caller knows the other values, and reading them back would cost time.
        """
        columns = ", ".join((self.key, *computed))
        text = change if engine == "sqlite" else self._add_events(change, columns)
        return Query(self.record, text, returns_key_only=True)

    def build_ids_statement(self, change: str, engine: Engine) -> Statement:
        """Return the change as a statement that yields the public ids of the changed rows.

        On SQLite it yields their projects too, from which the events are then written.
        """
        if engine == "sqlite":
            return Statement(f"{change} RETURNING {self.public_id}, {self.project or 'NULL'}")
        return Statement(self._add_events(change, self.public_id))

    def _add_events(self, change: str, columns: str) -> str:
        """Return PostgreSQL's statement for a change and its events.

        It makes the change, inserts an event for each changed row, and selects `columns` of these
        rows. `build_event_params` returns its additional parameters.
        """
        return f"""
            WITH written AS ({change} RETURNING *),
            inserted_events AS (
                INSERT INTO events (at, actor, kind, verb, subject, project_id, data, run_id)
                SELECT :at_, :actor_, '{self.transitions.kind}', :verb_, {self.public_id},
                       {self.project or "CAST(NULL AS TEXT)"}, CAST(:data_ AS JSON),
                       CAST(:run_id_ AS TEXT)
                FROM written
            )
            SELECT {columns} FROM written
        """

    def newest_first(self, condition: str = "") -> Listing[R]:
        """Return the list of the rows that meet a condition, newest first.

        Ids and sequence numbers ascend with the creation time.
        """
        and_condition = f" AND {condition}" if condition else ""
        query = Query(
            self.record,
            f"SELECT {self.columns} FROM {self.table} WHERE {self.key} < :before{and_condition}"
            f" ORDER BY {self.key} DESC LIMIT :limit",
        )
        start = LAST_NUMBER if self.id_prefix else LAST_ID
        return Listing(query, start={"before": start}, key=self._sort_key)

    def _sort_key(self, record: Any) -> tuple[str | int]:
        return (parse_number(self.id_prefix, record.id) if self.id_prefix else record.id,)

    @property
    def public_id(self) -> str:
        """The SQL expression of the public id of a row."""
        return f"'{self.id_prefix}_' || {self.key}" if self.id_prefix else self.key


def build_event_params(tx: Tx, verb: str, data: str | None = None) -> dict[str, Any]:
    """Return the parameters of a statement that inserts events with `data` as JSON.

    The trailing underscores keep them apart from the columns of the changed row.
    """
    return {
        "at_": tx.now,
        "actor_": tx.actor,
        "verb_": verb,
        "data_": data,
        "run_id_": tx.run_id,
    }
