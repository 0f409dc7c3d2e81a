"""Redaction of secrets in records before they are stored.

It finds known values, and text that looks like a key.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from corral.kernel.redaction_policy import Policy, StoredParameter, may_hold_key, secret_rejected
from corral.kernel.validation import is_too_deep

# Shorter values are too often ordinary words, and a record must stay readable. The output of a run
# is redacted from a shorter length on (`MIN_SECRET_BYTES` in `output/redact.py`).
MIN_KNOWN_LENGTH = 8

# A line break, plain or escaped as in JSON.
_LINE_BREAK = re.compile(r"(?:\r?\n|(?:\\r)?\\n)[ \t]{0,16}")

S = TypeVar("S", bound=msgspec.Struct)


def redact_record(record: S, values: Sequence[str] = ()) -> S:
    """Return the record with all text redacted, at any depth."""
    changed = {
        name: clean
        for name, value in msgspec.structs.asdict(record).items()
        if (clean := redact_value(value, values)) != value
    }
    return msgspec.structs.replace(record, **changed) if changed else record


def redact_value(value: Any, values: Sequence[str] = (), *, shapes: bool = True) -> Any:
    """Redact a text, or all texts in a nested list or dictionary."""

    def clean(node: Any) -> Any:
        if isinstance(node, str):
            if not values and not may_hold_key(node):
                return node
            data = node.encode("utf-8", "surrogatepass")
            return redact(data, values, shapes=shapes).decode("utf-8", "surrogatepass")
        if isinstance(node, dict):
            result: dict[Any, Any] = {}
            for key, item in node.items():
                result[_make_unique_key(clean(key), result)] = behind(key, item)
            return result
        if isinstance(node, list | tuple):
            items = [clean(item) for item in node]
            return [items[0], behind(*node)] if len(node) == 2 else items
        return node

    def behind(name: Any, value: Any) -> Any:
        """Redact the value of a named field.

        The value of an Authorization header is always a secret.
        """
        cleaned = clean(value)
        is_header = str(name).lower().endswith("uthorization")
        if cleaned != value or not isinstance(value, str) or not is_header:
            return cleaned
        before = f"{name}: "
        return clean(before + value)[len(before) :]

    from corral.adapters.output.redact import (
        redact,  # imported late: compiling its patterns is slow
    )

    return clean(value)


def _make_unique_key(name: Any, taken: dict[Any, Any]) -> Any:
    """Return a unique key.

    Two keys that differ only in their secrets must not collapse into one.
    """
    number, unique = 1, name
    while unique in taken:
        number += 1
        unique = f"{name} ({number})"
    return unique


class Redaction:
    """Redacts what a store keeps: secrets with known values, and text that looks like a key.

    `values` returns the initially known secrets; it is called before the first use.
    """

    def __init__(self, values: Callable[[], Iterable[str]] = tuple) -> None:
        self._load_values = values
        self._values: list[str] | None = None
        self._forms: tuple[str, ...] = ()
        self._encoded: tuple[str, ...] = ()
        """The subset of `_forms` that programs break into lines."""
        self._literal = False
        self.may_contain_secret: Callable[[str], bool] = self._load_values_and_check

    def add_known_values(self, *values: str) -> None:
        """Add known secret values."""
        known = self._list_known_values()
        for value in values:
            if len(value) >= MIN_KNOWN_LENGTH and value not in known:
                known.append(value)
        self._rebuild_forms()

    def redact_known_values_only(self) -> None:
        """Stop redacting text that only looks like a key. Known values are still redacted."""
        self._literal = True
        self._list_known_values()
        self._rebuild_forms()

    def clean(self, text: str) -> str:
        """Return the text without secrets; valid JSON stays valid.

        JSON is redacted string by string, and also as raw text: of a duplicate key, the parser
        returns only the last value.
        """
        plain: str = self._redact(text)
        decoded = _decode_json(text)
        if decoded is None:
            return plain
        clean = self._redact(decoded)
        return plain if _decode_json(plain) == clean else msgspec.json.encode(clean).decode()

    def clean_rows(self, text: str, values: Mapping[str | int, StoredParameter]) -> str:
        """Redact these fields of rows given as JSON.

        Raises Invalid when a field that must not contain secrets does.
        """
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
        clean = self.clean(value) if isinstance(value, str) else self._redact(value)
        if clean != value and stored.policy is Policy.REJECTED:
            raise secret_rejected(stored.column)
        row[key] = clean

    def _redact(self, value: Any) -> Any:
        return redact_value(value, self._list_known_values(), shapes=not self._literal)

    def _list_known_values(self) -> list[str]:
        if self._values is None:
            self._values = []
            self.add_known_values(*self._load_values())
        return self._values

    def _rebuild_forms(self) -> None:
        """Rebuild the search forms of the known values."""
        from corral.adapters.output.redact import encoded_forms, secret_forms

        forms = {form for value in self._list_known_values() for form in secret_forms(value)}
        self._forms = tuple(form.decode("utf-8", "surrogateescape") for form in sorted(forms))
        encoded = {form for value in self._list_known_values() for form in encoded_forms(value)}
        self._encoded = tuple(form.decode() for form in sorted(encoded))
        self.may_contain_secret = (
            self._may_contain_value_or_key if forms or self._literal else may_hold_key
        )

    def _load_values_and_check(self, text: str) -> bool:
        if self._list_known_values():
            return self.may_contain_secret(text)
        if not self._literal:
            self.may_contain_secret = may_hold_key
        return self.may_contain_secret(text)

    def _may_contain_value_or_key(self, text: str) -> bool:
        if not self._literal and may_hold_key(text):
            return True
        if any(form in text for form in self._forms):
            return True
        if "\n" not in text and "\\n" not in text:
            return False
        joined = _LINE_BREAK.sub("", text)
        return any(form in joined for form in self._encoded)


def _decode_json(text: str) -> Any:
    """Decode JSON; None for other text, for plain words, and for JSON that is nested too deeply."""
    if text[:1] not in ("{", "[", '"') or is_too_deep(text.encode("utf-8", "surrogatepass")):
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None
