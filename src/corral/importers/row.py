"""A row of another program: its values, each judged by what it should be.

What is not as it should be is taken as far as it can be, kept as it was (`rest`), and told
(`troubles`). Nothing is dropped without a word.
"""

import base64
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from corral.domain.charges.ops import MOST_TOKENS
from corral.importers.attached_files import FileCopies
from corral.importers.source.database import Found, Value, key_of
from corral.importers.source.times import moment_of
from corral.kernel.clock import DAY
from corral.kernel.errors import CorralError
from corral.kernel.ids import past_id
from corral.kernel.text import MAX_NAME, MAX_TEXT, abridged, encode_json

T = TypeVar("T")
_MOST = 1 << 53


class Row:
    """One row, as a mapping sees it."""

    __slots__ = (
        "_files",
        "_ids",
        "_known_id",
        "_refs",
        "_values",
        "around",
        "folder",
        "home",
        "inside",
        "key",
        "memo",
        "now",
        "read",
        "rest",
        "troubles",
    )

    def __init__(
        self,
        found: Found,
        refs: Mapping[str, str],
        ids: Mapping[tuple[str, str], str],
        *,
        now: int,
        folder: str,
        inside: str = "",
        around: Mapping[str, str] | None = None,
        home: Callable[[], str] = str,
        memo: dict[tuple[str, str], Any] | None = None,
        known_id: str | None = None,
        files: FileCopies | None = None,
    ) -> None:
        self.key = found.key
        self._values = found.values
        self._refs = refs
        self._ids = ids
        self.now = now
        self.folder = folder
        """Where the source is: what it names by a relative path is there."""
        self.inside = inside
        """What the database that it is in belongs to, where a source has several."""
        self.home = home
        """The id of the project that stands for the folder of the source: of what has no other."""
        self.memo = {} if memo is None else memo
        """What rows before it have told of others, within one database of a source."""
        self.around = {} if around is None else around
        """What is known of what the database belongs to."""
        self._known_id = known_id
        self._files = files
        self.rest: dict[str, Any] = {}
        self.troubles: list[str] = []
        self.read: set[str] = set()

    def keep(self, name: str, why: str = "") -> None:
        """Keep a value as it was, because it has no place elsewhere or did not fit there."""
        self.read.add(name)
        value = self._values.get(name)
        if value is not None:
            self.rest[name] = plain(value)
            if why:
                self.troubles.append(f"{name} {why}")

    def explain(self, why: str) -> None:
        """Report why a row is not imported, unless a reason is recorded already."""
        if not self.troubles:
            self.troubles.append(why)

    def keep_all(self) -> None:
        for name in self._values:
            self.keep(name)

    def keep_columns(self, names: Iterable[str]) -> None:
        for name in sorted(names):
            self.keep(name)

    def keep_unread(self, hidden: set[str]) -> None:
        """Keep what no mapping has looked at: columns that are new, or of no use here."""
        for name in self._values.keys() - self.read - hidden:
            self.keep(name)

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def text(self, name: str, *, most: int = MAX_TEXT) -> str | None:
        """Text that both engines keep; None where there is none, or it is empty."""
        self.read.add(name)
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
            self.keep(name, "holds NUL bytes")
            text = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
        if len(value) > most:
            self.keep(name, f"is longer than the {most:,} bytes that fit; it is kept whole beside")
            text = abridged_bytes(text, most)
        return text or None

    def plain_text(self, name: str) -> str:
        """The text of a column as it is, to compare it with others; nothing is said of it."""
        value = self._values.get(name)
        if isinstance(value, bytes):
            return value.decode("utf-8", "backslashreplace").replace("\0", "\\0")
        return "" if value is None else str(value)

    def quiet_text(self, name: str) -> str:
        """Return the text of a column without reporting problems; another pass reports them."""
        return self.plain_text(name).replace("\\0", "\N{REPLACEMENT CHARACTER}")

    def quiet_moment(self, name: str) -> int:
        """Return a moment without reporting problems, which another pass does; now if unknown."""
        value = self._values.get(name)
        at = moment_of(value.decode("utf-8", "replace") if isinstance(value, bytes) else value)
        return self.now if at is None or at > self.now + DAY else at

    def words(self, name: str, otherwise: str, *, most: int = MAX_TEXT) -> str:
        """Text, or other words where there is none."""
        return self.text(name, most=most) or otherwise

    def line(self, name: str, *, most: int = MAX_NAME) -> str | None:
        """A name: text of one line."""
        text = self.text(name, most=most)
        line = " ".join(text.split()) if text else None
        if line != text:
            self.keep(name, "has line breaks or further blanks; it became one line")
        return line or None

    def name(self, name: str, otherwise: str, *, most: int = MAX_TEXT) -> str:
        """Return a valid name of an agent or group; keeps the original if it had to change."""
        text = self.text(name, most=most) or ""
        made = valid_name(text, otherwise)
        if text and made != text:
            self.keep(name, "has characters that a name here cannot have, or is too long")
        return made

    def whole(self, name: str, *, least: int = -_MOST, most: int = _MOST) -> int | None:
        """A whole number within bounds."""
        self.read.add(name)
        value = self._values.get(name)
        number = _number(value)
        if number is None or number != int(number) or not least <= number <= most:
            if value not in (None, b""):
                self.keep(name, "is no number that can be")
            return None
        return int(number)

    def whole_or(self, name: str, otherwise: int, *, least: int) -> int:
        """Return a whole number, or `otherwise` with a report."""
        number = self.whole(name, least=least)
        if number is None:
            self.troubles.append(f"{name} is missing or wrong; {otherwise} is assumed")
            return otherwise
        return number

    def tokens(self, name: str) -> int:
        """A number of tokens that can be charged; 0 where none is told."""
        return self.whole(name, least=0, most=MOST_TOKENS) or 0

    def flag(self, name: str) -> bool:
        self.read.add(name)
        value = self._values.get(name)
        if isinstance(value, bytes):
            value = {b"1": 1, b"true": 1, b"yes": 1, b"0": 0, b"false": 0, b"no": 0, b"": 0}.get(
                value.strip().lower(), value
            )
        if value not in (None, 0, 1):
            self.keep(name, "is neither yes nor no")
        return bool(value) and not isinstance(value, bytes)

    def micros(self, name: str) -> int | None:
        """Dollars as micro-dollars; nothing, which is these tools' default, is not known."""
        self.read.add(name)
        value = self._values.get(name)
        dollars = _number(value)
        if dollars is None or not math.isfinite(dollars) or not 0 <= dollars <= 1_000_000:
            if value is not None:
                self.keep(name, "is no amount that can be")
            return None
        return round(dollars * 1_000_000) or None

    def moment(self, name: str) -> int | None:
        """A moment, whether in seconds, milliseconds or as text; None where there is none."""
        self.read.add(name)
        value = self._values.get(name)
        if value in (None, b""):
            return None
        given = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        at = moment_of(given)
        if at is None:
            self.keep(name, "is no moment")
            return None
        if at > self.now + DAY:
            self.keep(name, "is in the future")
            return self.now
        return at

    def end(self, name: str, start: int) -> int | None:
        """Return the end, which is not before `start`."""
        at = self.moment(name)
        if at is not None and at < start:
            self.keep(name, "is before its start; the start counts as its end")
            return start
        return at

    def born(self, name: str) -> int:
        """When it was made; now, where nobody knows."""
        return self.moment(name) or self.now

    def json(self, name: str, kind: type[T], otherwise: T) -> T:
        """A JSON value of a kind, from text."""
        self.read.add(name)
        value = self._values.get(name)
        if value in (None, b""):
            return otherwise
        raw = value if isinstance(value, bytes) else str(value).encode()
        try:
            found = msgspec.json.decode(raw, type=kind)
            encode_json(found, name)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self.keep(name, f"is no JSON of the kind that it should be ({_named(kind)})")
            return otherwise
        except CorralError:
            self.keep(name, "is JSON that cannot be stored")
            return otherwise
        if kind is not object and msgspec.to_builtins(found) != msgspec.json.decode(raw):
            self.keep(name, "has parts that have no place here; it is kept whole beside")
        return found

    def choice(self, name: str, known: Mapping[str, str], otherwise: str) -> str:
        """What a word of theirs means here."""
        word = self.text(name)
        meant = known.get(word.strip().lower()) if word else None
        if meant is None:
            if word:
                self.keep(name, "has a value that nobody knows")
            elif otherwise:
                self.troubles.append(f"{name} is missing; {otherwise} is assumed")
            return otherwise
        if meant != word:
            self.keep(name)
        return meant

    def key_of(self, *names: str) -> str:
        """The key of the row that several columns name together."""
        self.read.update(names)
        return key_of([self.plain_text(name) for name in names])

    def quiet_list(self, name: str) -> list[str]:
        """A list of texts; nothing where it is none, and nothing is said of it."""
        try:
            return msgspec.json.decode(self.plain_text(name) or "[]", type=list[str])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return []

    def names(self, name: str) -> str | None:
        """The key of the row that a column names."""
        text = self.plain_text(name)
        return key_of([text]) if text else None

    def ref(self, name: str) -> str | None:
        """The id here of the row that a column names."""
        self.read.add(name)
        key = self.names(name)
        if key is None:
            return None
        found = self._ids.get((self._refs[name], key))
        if found is None:
            self.keep(name, "names a row that is not there")
        return found

    def id_of(self, table: str, *key: str) -> str | None:
        """The id here of another row, by its key."""
        return self._ids.get((table, key_of(key)))

    def new_id(self, prefix: str, at: int) -> str:
        """Return an id for the object of this row: the old one if it is restored."""
        if self._known_id is not None and self._known_id.startswith(f"{prefix}_"):
            return self._known_id
        return past_id(prefix, at)

    def copy_file(self, given: str, session_id: str) -> dict[str, Any]:
        """Copy a file beside the source, and describe it; see `FileCopies.copy`."""
        if self._files is None:
            return {"name": given, "path": None, "reason": "files are not copied here"}
        return self._files.copy(self.folder, given, session_id)


_UNFIT = re.compile(r"[\s:/\x00-\x1f\x7f\ufffd]+")


def valid_name(text: str, otherwise: str) -> str:
    """Return a valid name of an agent, as used in mailboxes."""
    name = _UNFIT.sub("-", text).strip("-")[:80]
    return f"a-{name}" if name.startswith("agt_") else name or otherwise


def plain(value: Value) -> Any:
    """A value as JSON can hold it, from which it can be made again."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": repr(value)}
    if not isinstance(value, bytes):
        return value
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
    return {"base64": base64.b64encode(value).decode()} if "\0" in text else text


def _number(value: Value) -> float | None:
    if isinstance(value, bytes):
        try:
            value = float(value) if b"." in value else int(value)
        except ValueError:
            return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def abridged_bytes(text: str, most: int) -> str:
    """Shorten a text to at most `most` bytes."""
    short = abridged(text, most)
    while len(short.encode()) > most:
        short = abridged(text, len(short) * 3 // 4)
    return short


def _named(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))
