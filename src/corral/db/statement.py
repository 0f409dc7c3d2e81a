"""A statement: SQL text, written once, compiled for each engine when it is first used there."""

import re
from collections.abc import Callable, Mapping, Sequence
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
_LISTED = re.compile(
    r"(?P<column>[\w.]+)(?P<not> NOT)? IN \((?P<words>\s*'\w+'(?:,\s*'\w+'){2,}\s*)\)"
)
# Quoted text and PostgreSQL's casts hold colons that are no parameters.
_PARAMETER = re.compile(r"'(?:[^']|'')*'|::|:([a-z_][a-z0-9_]*)|\s+")


class Compiled(NamedTuple):
    """SQL in an engine's own words, with numbers for parameters and no more space than it needs:
    both engines look at the whole text again each time to find what they have prepared."""

    text: str
    names: tuple[str, ...]
    """Of the parameters, in the order of their numbers."""
    values: Callable[[Params], tuple[Any, ...]]
    """Picks them out; by number they are bound faster than by name."""


def for_engine(text: str, engine: Engine) -> str:
    """The text with every `{token}` in the engine's own words."""
    own = _TOKEN.sub(lambda match: TOKENS[match[1]][engine], text)
    return _LISTED.sub(_compared, own) if engine == "sqlite" else own


def _compared(listed: re.Match[str]) -> str:
    """For three words and more SQLite fills a table in memory, in every statement that meets the
    list in a CHECK or in the condition of an index; comparisons cost next to nothing."""
    sign, link = ("<>", " AND ") if listed["not"] else ("=", " OR ")
    column = listed["column"]
    compared = (f"{column} {sign} {word}" for word in _WORD.findall(listed["words"]))
    return f"({link.join(compared)})"


def _compile(text: str, engine: Engine, mark: str) -> Compiled:
    names: list[str] = []

    def place(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return " " if match[0].isspace() else match[0]
        if name not in names:
            names.append(name)
        return f"{mark}{names.index(name) + 1}"

    compiled = _PARAMETER.sub(place, for_engine(text.strip(), engine))
    return Compiled(compiled, tuple(names), _picker(names))


def _picker(names: Sequence[str]) -> Callable[[Params], tuple[Any, ...]]:
    if len(names) > 1:
        return itemgetter(*names)
    return lambda params: tuple([params[name] for name in names])


class Statement:
    """SQL with `:name` parameters that gives back no records.

    One that is `unread` writes one row at most, and that is not read back: it answers with its
    number where it inserts one, with any number where it changes one. SQLite knows that without
    being asked (RETURNING costs it a table in memory); for PostgreSQL the text must return it.

    `policies` declares what redaction does with a parameter, by its name: required where the text
    does not show which column stores it, and otherwise in place of the policy of that column.
    """

    def __init__(
        self,
        text: str,
        *,
        unread: bool = False,
        policies: Mapping[str, Policy] | None = None,
    ) -> None:
        self.text = text
        self.unread = unread
        self.policies = policies or {}

    @cached_property
    def reads(self) -> bool:
        """Whether it leaves the store as it is."""
        return self.text.lstrip().startswith("SELECT")

    @cached_property
    def searched(self) -> Mapping[str, StoredParameter]:
        """The stored parameters that are searched for secrets: the redacted and the rejected ones.

        Raises LookupError if the policy of a stored parameter is not known.
        """
        if not _STORES.search(self.text) or not self.sqlite.names:
            return {}
        # Imported here: most commands only read, and the list of columns is long.
        from corral.db.column_policies import searched_parameters

        return searched_parameters(self.text, self.table, self.policies)

    @cached_property
    def table(self) -> str:
        """What it writes to."""
        found = re.search(r"(?:INSERT INTO|UPDATE|DELETE FROM) (\w+)", self.text)
        return found[1] if found else "store"

    @cached_property
    def sqlite(self) -> Compiled:
        return _compile(self.text, "sqlite", "?")

    @cached_property
    def postgres(self) -> Compiled:
        return _compile(self.text, "postgres", "$")

    @cached_property
    def for_server(self) -> bytes:
        """The text as PostgreSQL gets it: one object, by which what was prepared is found."""
        return self.postgres.text.encode()


class Query(Statement, Generic[T]):
    """SQL whose columns are the fields of a record, in the record's order."""

    def __init__(
        self,
        record: type[T],
        text: str,
        *,
        unread: bool = False,
        policies: Mapping[str, Policy] | None = None,
    ) -> None:
        super().__init__(text, unread=unread, policies=policies)
        self.record = record

    @cached_property
    def make(self) -> Callable[[Row], T]:
        return record_maker(self.record)


def record_maker(record: type[T]) -> Callable[[Row], T]:
    """A function that turns a row into a record: enums and JSON decoded, all else as it is."""
    build: Callable[..., T] = record
    struct: Any = record
    decoders = [
        (index, decoder)
        for index, field in enumerate(msgspec.structs.fields(struct))
        if (decoder := _decoder(field.type)) is not None
    ]

    def make(row: Row) -> T:
        values = list(row)
        count = len(values)  # fields behind those may be filled in by the room
        for index, decode in decoders:
            if index < count and values[index] is not None:
                values[index] = decode(values[index])
        return build(*values)

    return make if decoders else lambda row: build(*row)


def _decoder(kind: Any) -> Callable[[Any], Any] | None:
    options = [part for part in getattr(kind, "__args__", ()) if part is not type(None)]
    plain = options[0] if len(options) == 1 and not hasattr(kind, "__origin__") else kind
    if isinstance(plain, EnumType):
        return plain._value2member_map_.__getitem__  # calling the enum does the same, slower
    if plain is bool:
        return bool  # 0 and 1 in both engines
    if plain in (str, int, float, bytes):
        return None
    return msgspec.json.Decoder(plain).decode
