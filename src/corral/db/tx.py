"""An open transaction: what every operation gets as its first argument."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

from corral.db.dialect import Engine
from corral.db.statement import Params, Query, Row, Statement
from corral.kernel.ids import new_id
from corral.kernel.redaction_policy import Policy, StoredParameter, no_place
from corral.kernel.text import encode_json

T = TypeVar("T")

# What an operation declares of itself, see `Database.write`.
Mode = Literal["many", "one"]

NOTE = Statement("""
    INSERT INTO events (at, actor, kind, verb, subject, project_id, data, run_id)
    VALUES (:at, :actor, :kind, :verb, :subject, :project_id, :data, :run_id)
""")


class Link(Protocol):
    """A link to the database, as a transaction on it needs it."""

    engine: Engine

    def execute(self, statement: Statement, params: Params) -> list[Row]: ...
    def execute_each(self, statement: Statement, given: Sequence[Params]) -> list[list[Row]]: ...
    def begin(self) -> None: ...
    def note(self, values: Row) -> None:
        """Write an event: what NOTE takes, in its order."""

    def noted(self, count: int) -> None:
        """Told that another statement has just written so many events."""


class Redaction(Protocol):
    """What takes secrets out of words, wherever words are kept."""

    def know(self, *values: str) -> None:
        """Take these values out too from now on."""

    def keep_shapes(self) -> None:
        """Leave in what only looks like a key."""

    suspects: Callable[[str], bool]
    """False when there is nothing to take out of a text, for certain; cheap."""

    def clean(self, text: str) -> str:
        """The text without secrets; JSON stays JSON."""

    def clean_rows(self, text: str, values: Mapping[str | int, StoredParameter]) -> str:
        """Redact rows as JSON, in these values of each row; Invalid if one is rejected."""


class Tx:
    """One transaction with its single `now`: all its timestamps are equal.

    In mode "one" the first writing statement commits by itself, which saves the round trips of
    BEGIN and COMMIT; a second one is a mistake in the operation and raises.

    Everything that is kept passes here, so this is where secrets are taken out of it; that becomes
    an event of the same transaction, and `taken` says what they were taken out of.
    """

    __slots__ = (
        "_execute",
        "_link",
        "_redaction",
        "_wrote",
        "actor",
        "engine",
        "mode",
        "noted",
        "now",
        "origin",
        "taken",
    )

    def __init__(
        self,
        link: Link,
        now: int,
        actor: str,
        mode: Mode,
        redaction: Redaction | None = None,
        origin: str | None = None,
    ) -> None:
        self._link = link
        self._redaction = redaction
        self._execute = link.execute
        self._wrote = False
        self.engine = link.engine
        self.now = now
        self.actor = actor
        self.origin = origin
        """The id of the run that the calling process belongs to, if any."""
        self.mode = mode
        self.noted = False
        """Whether an event was written, so that those who wait are woken after the commit."""
        self.taken: Sequence[str] = ()

    def for_another(
        self, now: int, actor: str, redaction: Redaction | None, origin: str | None
    ) -> None:
        """Continue the same transaction for another operation, perhaps of another handle."""
        self.now = now
        self._redaction = redaction
        self.act_as(actor, origin)

    def act_as(self, actor: str, origin: str | None) -> None:
        """Record the following changes under another actor and the run of its process."""
        self.actor = actor
        self.origin = origin
        self.taken = ()

    def run(self, statement: Statement, **params: Any) -> list[Row]:
        """Execute and give back whatever rows there are."""
        return self.execute(statement, params)

    def execute(self, statement: Statement, params: Params) -> list[Row]:
        if not statement.reads:
            if self.mode == "one":
                if self._wrote:
                    raise RuntimeError("an operation declared as one statement wrote twice")
                self._wrote = True
            redaction = self._redaction
            if redaction is not None:
                suspects = redaction.suspects
                for name in statement.searched:
                    value = params[name]
                    if value.__class__ is str and suspects(value):
                        self._take_out(redaction, statement, params)
                        break
        return self._execute(statement, params)

    def _take_out(self, redaction: Redaction, statement: Statement, params: Params) -> None:
        """Redact the parameters in place, because the record of a new row is built from them too.

        Raises Invalid if a parameter whose policy is "rejected" contains a secret.
        """
        kept: Any = params
        taken: list[StoredParameter] = []
        for name, stored in statement.searched.items():
            value = kept[name]
            if value.__class__ is not str or not redaction.suspects(value):
                continue
            rows = stored.rows
            clean = redaction.clean(value) if rows is None else redaction.clean_rows(value, rows)
            if clean == value:
                continue
            if stored.policy is Policy.REJECTED:
                raise no_place(stored.column)
            kept[name] = clean
            taken.append(stored)
        if taken:
            self.several()
            told = {"fields": [stored.column for stored in taken]}
            self.note(
                "secret", "redact", statement.table, project_id=kept.get("project_id"), data=told
            )
            self.taken = [*self.taken, *(f"{each.table}.{each.column}" for each in taken)]

    def without_secrets(self, text: str) -> str:
        """A text as it would be kept; for whoever keeps a piece of it, which may cut a secret in
        two that is then none any more."""
        redaction = self._redaction
        return redaction.clean(text) if redaction and redaction.suspects(text) else text

    def execute_each(self, statement: Statement, given: Sequence[Params]) -> list[list[Row]]:
        """Execute it with each of the given parameters, one after the other, on PostgreSQL without
        waiting in between. One that is `unread` answers each with its number, or with no row."""
        self.several()
        redaction = self._redaction
        if redaction is not None and statement.searched:
            for params in given:
                self._take_out(redaction, statement, params)
        return self._link.execute_each(statement, given) if given else []

    def all(self, query: Query[T], **params: Any) -> list[T]:
        make = query.make
        return [make(row) for row in self.execute(query, params)]

    def one(self, query: Query[T], **params: Any) -> T | None:
        """The first record, if there is any."""
        rows = self.execute(query, params)
        return query.make(rows[0]) if rows else None

    def value(self, statement: Statement, **params: Any) -> Any:
        """The first column of the first row, or None."""
        rows = self.execute(statement, params)
        return rows[0][0] if rows else None

    def new_id(self, prefix: str) -> str:
        return new_id(prefix, self.now)

    def note(
        self,
        kind: str,
        verb: str,
        subject: str,
        *,
        project_id: str | None = None,
        data: dict[str, Any] | None = None,
    ) -> None:
        """Write the event of a change that this transaction makes."""
        self.noted = True
        told = encode_json(data, "An event") if data else None
        if told is not None and self._redaction is not None and self._redaction.suspects(told):
            told = self._redaction.clean(told)
        self._link.note((self.now, self.actor, kind, verb, subject, project_id, told, self.origin))

    def note_each(self, events: Sequence[Params]) -> None:
        """Write several events with the parameters of NOTE; `run_id` is set here."""
        if events:
            self.noted = True
            self.execute_each(NOTE, [{**event, "run_id": self.origin} for event in events])
            self._link.noted(len(events))

    def note_all(self, statement: Statement, params: Params, count: int) -> None:
        """Write the events of so many changes by one statement."""
        if count:
            self.noted = True
            self._execute(statement, params)
            self._link.noted(count)

    def several(self) -> None:
        """From here on, several statements belong together, also in mode "one"."""
        if self.mode == "one":
            self._link.begin()
            self.mode = "many"

    def serialize(self, name: str) -> None:
        """Let no other transaction that names the same thing run beside this one.

        For rules over several rows ("at most 20 timers") that no constraint can state. On SQLite
        a writing transaction is alone anyway.
        """
        if self.engine == "postgres":
            self.several()
            self._execute(_SERIALIZE, {"name": name})


_SERIALIZE = Statement("SELECT pg_advisory_xact_lock(hashtextextended(CAST(:name AS TEXT), 0))")
