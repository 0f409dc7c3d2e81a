"""`Tx`: the open transaction that every domain function takes as its first argument."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

from corral.db.dialect import Engine
from corral.db.statement import Params, Query, Row, Statement
from corral.kernel.display_text import shorten
from corral.kernel.ids import new_id
from corral.kernel.redaction_policy import Policy, StoredParameter, secret_rejected
from corral.kernel.validation import encode_json

T = TypeVar("T")

# Declared by each operation; see `Database.write`.
Mode = Literal["many", "one"]

INSERT_EVENT = Statement("""
    INSERT INTO events (at, actor, kind, verb, subject, project_id, data, run_id)
    VALUES (:at, :actor, :kind, :verb, :subject, :project_id, :data, :run_id)
""")


class Connection(Protocol):
    """The subset of a connection that a transaction uses."""

    engine: Engine

    def execute(self, statement: Statement, params: Params) -> list[Row]: ...
    def execute_batch(
        self, statement: Statement, param_sets: Sequence[Params]
    ) -> list[list[Row]]: ...
    def begin(self) -> None: ...
    def insert_event(self, values: Row) -> None:
        """Insert an event; `values` are the parameters of INSERT_EVENT in their order."""

    def count_inserted_events(self, count: int) -> None:
        """Account for events that another statement has just inserted."""


class SecretFilter(Protocol):
    """Removes secrets from text before it is stored."""

    def add_known_values(self, *values: str) -> None:
        """Also remove these values from now on."""

    def redact_known_values_only(self) -> None:
        """Keep text that only looks like a secret."""

    may_contain_secret: Callable[[str], bool]
    """Whether a text may contain a secret; False is certain. Cheap."""

    def clean(self, text: str) -> str:
        """Return the text without secrets; JSON stays valid JSON."""

    def clean_rows(self, text: str, values: Mapping[str | int, StoredParameter]) -> str:
        """Redact rows as JSON, in these values of each row; Invalid if one is rejected."""


class Tx:
    """One transaction; all its timestamps are equal to `now`.

    In mode "one" the first statement that writes commits by itself, which saves the round trips of
    BEGIN and COMMIT. A second one raises RuntimeError: the operation was declared wrongly.

    Everything that is stored passes through here, so secrets are removed here. Each removal is an
    event of the same transaction; `redacted_columns` lists the columns.
    """

    __slots__ = (
        "_connection",
        "_execute",
        "_redaction",
        "_wrote",
        "actor",
        "engine",
        "has_events",
        "mode",
        "now",
        "redacted_columns",
        "run_id",
    )

    def __init__(
        self,
        connection: Connection,
        now: int,
        actor: str,
        mode: Mode,
        redaction: SecretFilter | None = None,
        run_id: str | None = None,
    ) -> None:
        self._connection = connection
        self._redaction = redaction
        self._execute = connection.execute
        self._wrote = False
        self.engine = connection.engine
        self.now = now
        self.actor = actor
        self.run_id = run_id
        """The id of the run that the calling process belongs to, if any."""
        self.mode = mode
        self.has_events = False
        """Whether an event was written, so that listeners are notified after the commit."""
        self.redacted_columns: Sequence[str] = ()

    def continue_for(
        self, now: int, actor: str, redaction: SecretFilter | None, run_id: str | None
    ) -> None:
        """Continue the same transaction for another operation, perhaps of another handle."""
        self.now = now
        self._redaction = redaction
        self.act_as(actor, run_id)

    def act_as(self, actor: str, run_id: str | None) -> None:
        """Record the following changes under another actor and the run of its process."""
        self.actor = actor
        self.run_id = run_id
        self.redacted_columns = ()

    def run(self, statement: Statement, **params: Any) -> list[Row]:
        """Execute a statement and return its rows."""
        return self.execute(statement, params)

    def execute(self, statement: Statement, params: Params) -> list[Row]:
        if not statement.reads:
            if self.mode == "one":
                if self._wrote:
                    raise RuntimeError("an operation declared as one statement wrote twice")
                self._wrote = True
            redaction = self._redaction
            if redaction is not None:
                may_contain_secret = redaction.may_contain_secret
                for name in statement.redactable_params:
                    value = params[name]
                    if value.__class__ is str and may_contain_secret(value):
                        self._redact(redaction, statement, params)
                        break
        return self._execute(statement, params)

    def _redact(self, redaction: SecretFilter, statement: Statement, params: Params) -> None:
        """Redact the parameters in place, because the record of a new row is built from them too.

        Raises Invalid if a parameter whose policy is "rejected" contains a secret.
        """
        values: Any = params
        redacted: list[StoredParameter] = []
        for name, stored in statement.redactable_params.items():
            value = values[name]
            if value.__class__ is not str or not redaction.may_contain_secret(value):
                continue
            rows = stored.rows
            clean = redaction.clean(value) if rows is None else redaction.clean_rows(value, rows)
            if clean == value:
                continue
            if stored.policy is Policy.REJECTED:
                raise secret_rejected(stored.column)
            values[name] = clean
            redacted.append(stored)
        if redacted:
            columns = [f"{stored.table}.{stored.column}" for stored in redacted]
            fields = [stored.column for stored in redacted]
            self._record_redaction(statement.table, fields, columns, values.get("project_id"))

    def _record_redaction(
        self, table: str, fields: list[str], columns: list[str], project_id: str | None = None
    ) -> None:
        self.begin()
        self.emit("secret", "redact", table, project_id=project_id, data={"fields": fields})
        self.redacted_columns = [*self.redacted_columns, *columns]

    def without_secrets(self, text: str) -> str:
        """Return a text as it would be stored.

        For callers that store only a part of it: cutting a secret in two would hide it from
        redaction.
        """
        redaction = self._redaction
        return redaction.clean(text) if redaction and redaction.may_contain_secret(text) else text

    def redact_before_split(self, text: str, table: str, column: str) -> str:
        """Redact a text whose pieces are stored in this column, and record the redaction."""
        clean = self.without_secrets(text)
        if clean != text:
            self._record_redaction(table, [column], [f"{table}.{column}"])
        return clean

    def shorten_for_storage(self, text: str, max_chars: int) -> str:
        """Return a text of at most `max_chars` characters for storage.

        A text that must be cut is redacted first: redaction cannot recognize a part of a secret.
        """
        if len(text) <= max_chars:
            return text  # redacted as a whole when it is stored
        return shorten(self.without_secrets(text), max_chars)

    def execute_batch(self, statement: Statement, param_sets: Sequence[Params]) -> list[list[Row]]:
        """Execute a statement once for each set of parameters, in order; pipelined on PostgreSQL.

        A statement with `returns_key_only` returns the row number for each set, or no row.
        """
        self.begin()
        redaction = self._redaction
        if redaction is not None and statement.redactable_params:
            for params in param_sets:
                self._redact(redaction, statement, params)
        return self._connection.execute_batch(statement, param_sets) if param_sets else []

    def all(self, query: Query[T], **params: Any) -> list[T]:
        """Return all records."""
        make = query.make
        return [make(row) for row in self.execute(query, params)]

    def first(self, query: Query[T], **params: Any) -> T | None:
        """Return the first record, or None."""
        rows = self.execute(query, params)
        return query.make(rows[0]) if rows else None

    def one(self, query: Query[T], **params: Any) -> T:
        """Return the first record of a query that always has one.

        For INSERT … RETURNING, and for UPDATE of a row that this transaction has read.
        """
        return query.make(self.execute(query, params)[0])

    def value(self, statement: Statement, **params: Any) -> Any:
        """Return the first column of the first row, or None."""
        rows = self.execute(statement, params)
        return rows[0][0] if rows else None

    def new_id(self, prefix: str) -> str:
        return new_id(prefix, self.now)

    def emit(
        self,
        kind: str,
        verb: str,
        subject: str,
        *,
        project_id: str | None = None,
        data: dict[str, Any] | None = None,
    ) -> None:
        """Write the event of a change that this transaction makes."""
        self.has_events = True
        encoded = encode_json(data, "An event") if data else None
        if (
            encoded is not None
            and self._redaction is not None
            and self._redaction.may_contain_secret(encoded)
        ):
            encoded = self._redaction.clean(encoded)
        self._connection.insert_event(
            (self.now, self.actor, kind, verb, subject, project_id, encoded, self.run_id)
        )

    def emit_batch(self, events: Sequence[Params]) -> None:
        """Write several events, each with its kind, verb, subject, project_id and data."""
        if events:
            self.has_events = True
            shared = {"at": self.now, "actor": self.actor, "run_id": self.run_id}
            self.execute_batch(INSERT_EVENT, [{**shared, **event} for event in events])
            self._connection.count_inserted_events(len(events))

    def emit_with(self, statement: Statement, params: Params, count: int) -> None:
        """Write events with a statement that inserts `count` of them from `params`."""
        if count:
            self.has_events = True
            self._execute(statement, params)
            self._connection.count_inserted_events(count)

    def begin(self) -> None:
        """Promote a transaction in mode "one" to an explicit transaction. Idempotent."""
        if self.mode == "one":
            self._connection.begin()
            self.mode = "many"

    def serialize(self, name: str) -> None:
        """Wait for other transactions that serialize on the same name, and block later ones.

        For rules over several rows ("at most 20 timers") that no constraint can express. SQLite has
        one writer at a time, so nothing is needed there.
        """
        if self.engine == "postgres":
            self.begin()
            self._execute(_SERIALIZE, {"name": name})


_SERIALIZE = Statement("SELECT pg_advisory_xact_lock(hashtextextended(CAST(:name AS TEXT), 0))")
