"""A row of a source: accessors that validate and convert its values.

An invalid value is converted as far as possible, kept unchanged in `unmapped`, and reported in
`problems`. Nothing is dropped silently.
"""

import base64
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from corral.domain.charges.ops import MAX_TOKENS
from corral.importers.file_copies import FileCopier
from corral.importers.source.database import RawRow, Value, encode_key
from corral.importers.source.timestamps import parse_timestamp
from corral.kernel.clock import DAY
from corral.kernel.display_text import shorten
from corral.kernel.errors import CorralError
from corral.kernel.ids import make_backdated_id
from corral.kernel.validation import MAX_NAME, MAX_TEXT, encode_json

T = TypeVar("T")
_MAX_INTEGER = 1 << 53


class RowContext(NamedTuple):
    """What the rows of one database file have in common."""

    now: int
    folder: str
    """The folder of the source, which relative paths refer to."""
    memo: dict[tuple[str, str], Any]
    """Values that earlier rows of the same owner left for later ones."""
    owner_key: str = ""
    """The key of the row that the database file belongs to, in a source with several files."""
    owner_values: Mapping[str, str] = {}
    """The known values of the owner."""
    source_project: Callable[[], str] = str
    """Returns the id of the project for the source's folder, for rows without a project."""
    files: FileCopier | None = None
    """Copies attached files; None: they are not copied."""


class SourceRow:
    """A row of the source, as a mapping reads it.

    `read_…` marks a column as used and reports a problem of its value; `peek_…` does neither.
    """

    __slots__ = (
        "_files",
        "_ids",
        "_known_id",
        "_refs",
        "_values",
        "folder",
        "key",
        "memo",
        "now",
        "owner_key",
        "owner_values",
        "problems",
        "source_project",
        "unmapped",
        "used_columns",
    )

    def __init__(
        self,
        raw: RawRow,
        refs: Mapping[str, str],
        ids: Mapping[tuple[str, str], str],
        context: RowContext,
        *,
        known_id: str | None = None,
    ) -> None:
        """`known_id` is the id of the object that an earlier import created from the row."""
        self.key = raw.key
        self._values = raw.values
        self._refs = refs
        self._ids = ids
        # Copied: mappings read them for every row.
        self.now = context.now
        self.folder = context.folder
        self.memo = context.memo
        self.owner_key = context.owner_key
        self.owner_values = context.owner_values
        self.source_project = context.source_project
        self._files = context.files
        self._known_id = known_id
        self.unmapped: dict[str, Any] = {}
        """Original values that are kept unchanged."""
        self.problems: list[str] = []
        self.used_columns: set[str] = set()

    def keep(self, name: str, why: str = "") -> None:
        """Keep the original value of a column, because it has no target or does not fit."""
        self.used_columns.add(name)
        value = self._values.get(name)
        if value is not None:
            self.unmapped[name] = to_json_value(value)
            if why:
                self.problems.append(f"{name} {why}")

    def report_reason(self, why: str) -> None:
        """Report why a row is not imported, unless a reason is recorded already."""
        if not self.problems:
            self.problems.append(why)

    def keep_all(self) -> None:
        """Keep the original values of all columns."""
        for name in self._values:
            self.keep(name)

    def keep_columns(self, names: Iterable[str]) -> None:
        """Keep the original values of some columns."""
        for name in sorted(names):
            self.keep(name)

    def keep_unused(self, hidden: set[str]) -> None:
        """Keep the values of all columns that the mapping did not read."""
        for name in self._values.keys() - self.used_columns - hidden:
            self.keep(name)

    def has_value(self, name: str) -> bool:
        return self._values.get(name) is not None

    def read_text(self, name: str, *, max_bytes: int = MAX_TEXT) -> str | None:
        """Return text that both engines can store; None when it is missing or empty."""
        self.used_columns.add(name)
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, bytes):
            return str(value)
        try:
            text = value.decode()
        except UnicodeDecodeError:
            self.keep(name, "is not valid UTF-8")
            text = value.decode("utf-8", "replace")
        if "\0" in text:
            self.keep(name, "contains NUL bytes")
            text = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
        if len(value) > max_bytes:
            self.keep(
                name, f"is longer than {max_bytes:,} bytes; it was cut, and the original is kept"
            )
            text = shorten_to_bytes(text, max_bytes)
        return text or None

    def peek_text(self, name: str) -> str:
        """Return the text of a column for comparisons."""
        value = self._values.get(name)
        if isinstance(value, bytes):
            return value.decode("utf-8", "backslashreplace").replace("\0", "\\0")
        return "" if value is None else str(value)

    def peek_clean_text(self, name: str) -> str:
        """Return the text of a column; another pass over the table reports its problems."""
        return self.peek_text(name).replace("\\0", "\N{REPLACEMENT CHARACTER}")

    def peek_timestamp(self, name: str) -> int:
        """Return a timestamp, now if unknown; another pass over the table reports its problems."""
        value = self._values.get(name)
        at = parse_timestamp(
            value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        )
        return self.now if at is None or at > self.now + DAY else at

    def read_text_or(self, name: str, default: str, *, max_bytes: int = MAX_TEXT) -> str:
        """Return text, or `default` when it is missing or empty."""
        return self.read_text(name, max_bytes=max_bytes) or default

    def read_line(self, name: str, *, max_bytes: int = MAX_NAME) -> str | None:
        """Return text on a single line, such as a name."""
        text = self.read_text(name, max_bytes=max_bytes)
        line = " ".join(text.split()) if text else None
        if line != text:
            self.keep(name, "has line breaks or repeated blanks; it became one line")
        return line or None

    def read_name(self, name: str, default: str, *, max_bytes: int = MAX_TEXT) -> str:
        """Return a valid name of an agent or group; keeps the original if it had to change."""
        text = self.read_text(name, max_bytes=max_bytes) or ""
        valid = make_valid_name(text, default)
        if text and valid != text:
            self.keep(name, "has characters that a name here cannot have, or is too long")
        return valid

    def read_integer(
        self, name: str, *, minimum: int = -_MAX_INTEGER, maximum: int = _MAX_INTEGER
    ) -> int | None:
        """Return an integer within bounds."""
        self.used_columns.add(name)
        value = self._values.get(name)
        number = _parse_number(value)
        if number is None or number != int(number) or not minimum <= number <= maximum:
            if value not in (None, b""):
                self.keep(name, "is not a valid number")
            return None
        return int(number)

    def read_integer_or(self, name: str, default: int, *, minimum: int) -> int:
        """Return an integer; reports an invalid one and returns `default`."""
        number = self.read_integer(name, minimum=minimum)
        if number is None:
            self.problems.append(f"{name} is missing or wrong; {default} is assumed")
            return default
        return number

    def read_tokens(self, name: str) -> int:
        """Return a number of tokens; 0 when it is missing."""
        return self.read_integer(name, minimum=0, maximum=MAX_TOKENS) or 0

    def read_flag(self, name: str) -> bool:
        """Return a boolean; False when it is missing or invalid."""
        self.used_columns.add(name)
        value = self._values.get(name)
        if isinstance(value, bytes):
            value = {b"1": 1, b"true": 1, b"yes": 1, b"0": 0, b"false": 0, b"no": 0, b"": 0}.get(
                value.strip().lower(), value
            )
        if value not in (None, 0, 1):
            self.keep(name, "is not a boolean")
        return bool(value) and not isinstance(value, bytes)

    def read_micros(self, name: str) -> int | None:
        """Return dollars as micro-dollars. Zero, the default of these tools, means unknown."""
        self.used_columns.add(name)
        value = self._values.get(name)
        dollars = _parse_number(value)
        if dollars is None or not math.isfinite(dollars) or not 0 <= dollars <= 1_000_000:
            if value is not None:
                self.keep(name, "is not a valid amount")
            return None
        return round(dollars * 1_000_000) or None

    def read_timestamp(self, name: str) -> int | None:
        """Return a timestamp in milliseconds, from seconds, milliseconds or text."""
        self.used_columns.add(name)
        value = self._values.get(name)
        if value in (None, b""):
            return None
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        at = parse_timestamp(text)
        if at is None:
            self.keep(name, "is not a timestamp")
            return None
        if at > self.now + DAY:
            self.keep(name, "is in the future")
            return self.now
        return at

    def read_end_time(self, name: str, start: int) -> int | None:
        """Return a timestamp that is not before `start`."""
        at = self.read_timestamp(name)
        if at is not None and at < start:
            self.keep(name, "is before its start; the start counts as its end")
            return start
        return at

    def read_created_at(self, name: str) -> int:
        """Return the timestamp of creation; now when it is unknown."""
        return self.read_timestamp(name) or self.now

    def read_json(self, name: str, kind: type[T], default: T) -> T:
        """Return a JSON value of a type; reports an invalid one and returns `default`."""
        self.used_columns.add(name)
        value = self._values.get(name)
        if value in (None, b""):
            return default
        raw = value if isinstance(value, bytes) else str(value).encode()
        try:
            decoded = msgspec.json.decode(raw, type=kind)
            encode_json(decoded, name)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self.keep(name, f"is not JSON of the expected type ({_format_type(kind)})")
            return default
        except CorralError:
            self.keep(name, "is JSON that cannot be stored")
            return default
        if kind is not object and msgspec.to_builtins(decoded) != msgspec.json.decode(raw):
            self.keep(name, "has parts that cannot be stored; the original is kept")
        return decoded

    def read_choice(self, name: str, known: Mapping[str, str], default: str) -> str:
        """Translate an enumerated value; reports an unknown one and returns `default`."""
        value = self.read_text(name)
        translated = known.get(value.strip().lower()) if value else None
        if translated is None:
            if value:
                self.keep(name, "has an unknown value")
            elif default:
                self.problems.append(f"{name} is missing; {default} is assumed")
            return default
        if translated != value:
            self.keep(name)
        return translated

    def build_key(self, *names: str) -> str:
        """Return the key of the row that several columns refer to together."""
        self.used_columns.update(names)
        return encode_key([self.peek_text(name) for name in names])

    def peek_list(self, name: str) -> list[str]:
        """Return a list of texts; empty when it is invalid."""
        try:
            return msgspec.json.decode(self.peek_text(name) or "[]", type=list[str])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return []

    def peek_key(self, name: str) -> str | None:
        """Return the key of the row that a column refers to."""
        text = self.peek_text(name)
        return encode_key([text]) if text else None

    def find_ref(self, name: str) -> str | None:
        """Return the id of the imported row that a column refers to; reports a missing one."""
        self.used_columns.add(name)
        key = self.peek_key(name)
        if key is None:
            return None
        id = self._ids.get((self._refs[name], key))
        if id is None:
            self.keep(name, "refers to a missing row")
        return id

    def find_id(self, table: str, *key: str) -> str | None:
        """Return the id of an imported row by its key."""
        return self._ids.get((table, encode_key(key)))

    def create_id(self, prefix: str, at: int) -> str:
        """Return an id for the object of this row: its old id if it is restored."""
        if self._known_id is not None and self._known_id.startswith(f"{prefix}_"):
            return self._known_id
        return make_backdated_id(prefix, at)

    def copy_file(self, path: str, session_id: str) -> dict[str, Any]:
        """Copy a file from the folder of the source; see `FileCopier.copy`."""
        if self._files is None:
            return {"name": path, "path": None, "reason": "files are not copied here"}
        return self._files.copy(self.folder, path, session_id)


_INVALID = re.compile(r"[\s:/\x00-\x1f\x7f\ufffd]+")


def make_valid_name(text: str, default: str) -> str:
    """Return a valid name of an agent or group, as used in mailboxes."""
    name = _INVALID.sub("-", text).strip("-")[:80]
    return f"a-{name}" if name.startswith("agt_") else name or default


def to_json_value(value: Value) -> Any:
    """Convert a value to JSON without loss."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": repr(value)}
    if not isinstance(value, bytes):
        return value
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
    return {"base64": base64.b64encode(value).decode()} if "\0" in text else text


def _parse_number(value: Value) -> float | None:
    if isinstance(value, bytes):
        try:
            value = float(value) if b"." in value else int(value)
        except ValueError:
            return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def shorten_to_bytes(text: str, max_bytes: int) -> str:
    """Shorten a text to at most `max_bytes` bytes."""
    short = shorten(text, max_bytes)
    while len(short.encode()) > max_bytes:
        short = shorten(text, len(short) * 3 // 4)
    return short


def _format_type(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))
