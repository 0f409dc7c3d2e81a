"""Taking secrets out of records before they are stored: by their values and by their shapes."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from corral.kernel.redaction_policy import Policy, StoredParameter, may_hold_key, no_place
from corral.kernel.text import is_too_deep

# Shorter values are ordinary words too often to be taken out of everything that anybody writes.
SHORTEST_KNOWN = 8

# A line break, plain or escaped as in JSON.
_LINE_BREAK = re.compile(r"(?:\r?\n|(?:\\r)?\\n)[ \t]{0,16}")

S = TypeVar("S", bound=msgspec.Struct)


def without_secrets(record: S, values: Sequence[str] = ()) -> S:
    """The record, with every text in it redacted, however deep it stands."""
    changed = {
        name: clean
        for name, value in msgspec.structs.asdict(record).items()
        if (clean := clean_of_secrets(value, values)) != value
    }
    return msgspec.structs.replace(record, **changed) if changed else record


def clean_of_secrets(value: Any, values: Sequence[str] = (), *, shapes: bool = True) -> Any:
    """A text, or what holds texts, with every one of them redacted."""

    def clean(part: Any) -> Any:
        if isinstance(part, str):
            if not values and not may_hold_key(part):
                return part
            data = part.encode("utf-8", "surrogatepass")
            return redact(data, values, shapes=shapes).decode("utf-8", "surrogatepass")
        if isinstance(part, dict):
            found: dict[Any, Any] = {}
            for key, each in part.items():
                found[_own_name(clean(key), found)] = behind(key, each)
            return found
        if isinstance(part, list | tuple):
            whole = [clean(each) for each in part]
            return [whole[0], behind(*part)] if len(part) == 2 else whole
        return part

    def behind(name: Any, value: Any) -> Any:
        """What stands behind a name, as the value of a header does, is one by its name."""
        clear = clean(value)
        if clear != value or not isinstance(value, str) or not str(name).endswith("uthorization"):
            return clear
        before = f"{name}: "
        return clean(before + value)[len(before) :]

    from corral.adapters.output.redact import redact  # its patterns take long to be made

    return clean(value)


def _own_name(name: Any, taken: dict[Any, Any]) -> Any:
    """Two names that differ only in their secrets stay two."""
    number, own = 1, name
    while own in taken:
        number += 1
        own = f"{name} ({number})"
    return own


class Redaction:
    """Takes secrets out of what a store keeps: those that this process knows by their values, and
    whatever looks like a key.

    `values` gives what is known from the beginning; it is asked when first something is kept.
    """

    def __init__(self, values: Callable[[], Iterable[str]] = tuple) -> None:
        self._given = values
        self._values: list[str] | None = None
        self._forms: tuple[str, ...] = ()
        self._encoded: tuple[str, ...] = ()
        """The subset of `_forms` that programs break into lines."""
        self._literal = False
        self.suspects: Callable[[str], bool] = self._first

    def know(self, *values: str) -> None:
        """Take these out too from now on."""
        known = self._known()
        for value in values:
            if len(value) >= SHORTEST_KNOWN and value not in known:
                known.append(value)
        self._settle()

    def keep_shapes(self) -> None:
        """Leave in what only looks like a key: somebody says that it is none."""
        self._literal = True
        self._known()
        self._settle()

    def clean(self, text: str) -> str:
        """The text without secrets. In JSON they are looked for in its texts, so that it stays
        JSON whatever they are; and in the whole of it, because a name that is there twice has two
        values, of which JSON tells the last."""
        plain: str = self._cleaned(text)
        told = _decoded(text)
        if told is None:
            return plain
        clean = self._cleaned(told)
        return plain if _decoded(plain) == clean else msgspec.json.encode(clean).decode()

    def clean_rows(self, text: str, values: Mapping[str | int, StoredParameter]) -> str:
        """Redact rows as JSON, in these values of each row; Invalid if one is rejected."""
        rows = msgspec.json.decode(text)
        for row in rows:
            for key, stored in values.items():
                if isinstance(row, dict) if isinstance(key, str) else isinstance(row, list):
                    self._clean_value(row, key, stored)
        return msgspec.json.encode(rows).decode()

    def _clean_value(self, row: Any, key: str | int, stored: StoredParameter) -> None:
        try:
            value = row[key]
        except LookupError:
            return
        clean = self.clean(value) if isinstance(value, str) else self._cleaned(value)
        if clean != value and stored.policy is Policy.REJECTED:
            raise no_place(stored.column)
        row[key] = clean

    def _cleaned(self, value: Any) -> Any:
        return clean_of_secrets(value, self._known(), shapes=not self._literal)

    def _known(self) -> list[str]:
        if self._values is None:
            self._values = []
            self.know(*self._given())
        return self._values

    def _settle(self) -> None:
        """How a text is looked at from now on."""
        from corral.adapters.output.redact import encoded_forms, secret_forms

        forms = {form for value in self._known() for form in secret_forms(value)}
        self._forms = tuple(form.decode("utf-8", "surrogateescape") for form in sorted(forms))
        encoded = {form for value in self._known() for form in encoded_forms(value)}
        self._encoded = tuple(form.decode() for form in sorted(encoded))
        self.suspects = self._by_value if forms or self._literal else may_hold_key

    def _first(self, text: str) -> bool:
        if self._known():
            return self.suspects(text)
        if not self._literal:
            self.suspects = may_hold_key
        return self.suspects(text)

    def _by_value(self, text: str) -> bool:
        if not self._literal and may_hold_key(text):
            return True
        if any(form in text for form in self._forms):
            return True
        if "\n" not in text and "\\n" not in text:
            return False
        joined = _LINE_BREAK.sub("", text)
        return any(form in joined for form in self._encoded)


def _decoded(text: str) -> Any:
    """What JSON says; None when it is none, no more than a word, or too deep to be kept as JSON."""
    if text[:1] not in ("{", "[", '"') or is_too_deep(text.encode("utf-8", "surrogatepass")):
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None
