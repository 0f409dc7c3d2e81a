"""SQL statements: text written once, compiled for each engine on first use."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import EnumType
from functools import cached_property
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from corral.db.dialect import TOKENS, Engine
from corral.kernel.redaction_policy import Policy, StoredParameter

T = TypeVar("T")
Row = tuple[Any, ...]
Params = Mapping[str, Any]

_TOKEN = re.compile(r"\{([a-z_]+)\}")
_WORD = re.compile(r"'\w+'")
_STORES = re.compile(r"\b(INSERT|UPDATE|REPLACE|MERGE)\b", re.IGNORECASE)
_WRITES = re.compile(r"\b(INSERT|UPDATE|REPLACE|MERGE|DELETE)\b", re.IGNORECASE)
_LISTED = re.compile(
    r"(?P<column>[\w.]+)(?P<not> NOT)? IN \((?P<words>\s*'\w+'(?:,\s*'\w+'){2,}\s*)\)"
)
# Comments explain a predicate where it stands. They are not sent to the engine: line breaks are
# collapsed below, so a comment would swallow the rest of the statement.
# Quoted text may contain `--`, so it is matched first and kept.
_QUOTED_OR_COMMENT = re.compile(r"""('(?:[^']|'')*'|"[^"]*")|--[^\n]*""")
# A colon in quoted text or in a PostgreSQL cast (`::`) does not start a parameter.
_PARAMETER = re.compile(r"'(?:[^']|'')*'|::|:([a-z_][a-z0-9_]*)|\s+")


class Compiled(NamedTuple):
    """SQL for one engine, with numbered parameters and without superfluous white space.

    Both engines hash or compare the whole text at every execution to find the prepared statement.
    """

    text: str
    names: tuple[str, ...]
    """The names of the parameters, in the order of their numbers."""
    values: Callable[[Params], tuple[Any, ...]]
    """Returns the parameters in that order; binding by number is faster than by name."""


def translate_for_engine(text: str, engine: Engine) -> str:
    """Replace every `{token}` by the SQL of an engine."""
    translated = _TOKEN.sub(lambda match: TOKENS[match[1]][engine], text)
    return _LISTED.sub(_expand_in_list, translated) if engine == "sqlite" else translated


def _expand_in_list(match: re.Match[str]) -> str:
    """Expand `IN (…)` with three or more literals into comparisons.

    SQLite builds an in-memory table for such a list, in every statement that evaluates a CHECK or a
    partial index with it; comparisons cost almost nothing.
    """
    operator, conjunction = ("<>", " AND ") if match["not"] else ("=", " OR ")
    column = match["column"]
    comparisons = (f"{column} {operator} {word}" for word in _WORD.findall(match["words"]))
    return f"({conjunction.join(comparisons)})"


def _remove_comments(text: str) -> str:
    """Remove all `--` comments, but keep quoted text as it is."""
    return _QUOTED_OR_COMMENT.sub(r"\1", text) if "--" in text else text


def _compile(text: str, engine: Engine, mark: str) -> Compiled:
    names: list[str] = []

    def place(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return " " if match[0].isspace() else match[0]
        if name not in names:
            names.append(name)
        return f"{mark}{names.index(name) + 1}"

    compiled = _PARAMETER.sub(place, translate_for_engine(text.strip(), engine))
    return Compiled(compiled, tuple(names), _make_picker(names))


def _make_picker(names: Sequence[str]) -> Callable[[Params], tuple[Any, ...]]:
    if len(names) > 1:
        return itemgetter(*names)
    return lambda params: tuple([params[name] for name in names])


class Statement:
    """SQL with `:name` parameters whose result is plain rows.

    A statement with `returns_key_only` writes at most one row and does not read it back. For an
    INSERT the result is the new row number. For an UPDATE only the presence of a row is meaningful.
    SQLite knows the number anyway, and RETURNING would cost a table in memory; for PostgreSQL the
    text must return it.

    `policies` declares the redaction policy of a parameter by name. It is required where the text
    does not show which column stores the parameter; elsewhere it overrides the column's policy.
    """

    def __init__(
        self,
        text: str,
        *,
        returns_key_only: bool = False,
        policies: Mapping[str, Policy] | None = None,
    ) -> None:
        self.text = _remove_comments(text)
        self.returns_key_only = returns_key_only
        self.policies = policies or {}

    @cached_property
    def reads(self) -> bool:
        """Whether the statement only reads: a SELECT, or a WITH without a writing verb."""
        text = self.text.lstrip()
        return text.startswith("SELECT") or (
            text.startswith("WITH") and not _WRITES.search(_QUOTED_OR_COMMENT.sub("", text))
        )

    @cached_property
    def redactable_params(self) -> Mapping[str, StoredParameter]:
        """The stored parameters that are searched for secrets: redacted and rejected ones.

        Raises LookupError if the policy of a stored parameter is not known.
        """
        if not _STORES.search(self.text) or not self.sqlite.names:
            return {}
        # Imported here: most commands only read, and the list of columns is long.
        from corral.db.column_policies import find_redactable_params

        return find_redactable_params(self.text, self.table, self.policies)

    @cached_property
    def table(self) -> str:
        """The table that the statement writes to."""
        match = re.search(r"(?:INSERT INTO|UPDATE|DELETE FROM) (\w+)", self.text)
        return match[1] if match else "store"

    @cached_property
    def sqlite(self) -> Compiled:
        return _compile(self.text, "sqlite", "?")

    @cached_property
    def postgres(self) -> Compiled:
        return _compile(self.text, "postgres", "$")

    @cached_property
    def postgres_bytes(self) -> bytes:
        """The text for PostgreSQL; always the same object, by which psycopg finds the plan."""
        return self.postgres.text.encode()


class Query(Statement, Generic[T]):
    """SQL whose columns are the fields of a record, in the same order."""

    def __init__(
        self,
        record: type[T],
        text: str,
        *,
        returns_key_only: bool = False,
        policies: Mapping[str, Policy] | None = None,
    ) -> None:
        super().__init__(text, returns_key_only=returns_key_only, policies=policies)
        self.record = record

    @cached_property
    def make(self) -> Callable[[Row], T]:
        return make_record_builder(self.record)


def columns_of(
    record: Any, table: str = "", /, *, omit: Collection[str] = (), **expressions: str
) -> str:
    """Return the SELECT list of a record: one column for each field, in the order of the fields.

    `table` qualifies the columns. An expression replaces the column of the field that it is named
    after: `columns_of(Letter, priority="-rank")` contains `-rank AS "priority"`. The last fields
    can be omitted, if they have defaults: the caller fills them in. Raises TypeError for a name
    that is not a field, and for an omitted field that is not among the last.
    """
    names = record.__struct_fields__
    if unknown := {*expressions, *omit}.difference(names):
        raise TypeError(f"{record.__name__} has no fields {', '.join(sorted(unknown))}")
    selected = names[: len(names) - len(omit)]
    if misplaced := set(omit).intersection(selected):
        # Records are built by position.
        raise TypeError(f"Not the last fields: {', '.join(sorted(misplaced))}")
    prefix = f"{table}." if table else ""
    return ", ".join(
        f'{expressions[name]} AS "{name}"' if name in expressions else f"{prefix}{name}"
        for name in selected
    )


def make_record_builder(record: type[T]) -> Callable[[Row], T]:
    """Return a function that converts a row into a record, decoding enums, booleans and JSON."""
    build: Callable[..., T] = record
    struct: Any = record
    decoders = [
        (index, decoder)
        for index, field in enumerate(msgspec.structs.fields(struct))
        if (decoder := _find_decoder(field.type)) is not None
    ]

    def make(row: Row) -> T:
        values = list(row)
        count = len(values)  # the caller may fill in further fields
        for index, decode in decoders:
            if index < count and values[index] is not None:
                values[index] = decode(values[index])
        return build(*values)

    return make if decoders else lambda row: build(*row)


def _find_decoder(kind: Any) -> Callable[[Any], Any] | None:
    """Return the function that decodes a stored value; None if the value needs no decoding."""
    plain = _strip_none(kind)
    if isinstance(plain, EnumType):
        return plain._value2member_map_.__getitem__  # the same as calling the enum, but faster
    if plain is bool:
        return bool  # 0 and 1 in both engines
    if plain in (str, int, float, bytes):
        return None
    return msgspec.json.Decoder(plain).decode


def _strip_none(kind: Any) -> Any:
    """Return `X` for the type `X | None`, and any other type unchanged.

    `make` never decodes None. Generic types such as `list[X]` have arguments too, but only they
    have an `__origin__`.
    """
    if hasattr(kind, "__origin__"):
        return kind
    options = [part for part in getattr(kind, "__args__", ()) if part is not type(None)]
    return options[0] if len(options) == 1 else kind


def encode_rows(rows: Sequence[Any]) -> str:
    """Encode rows or keys as one JSON parameter; the caller has validated their text."""
    return msgspec.json.encode(rows).decode()
