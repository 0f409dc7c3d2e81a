"""Taking secrets out of records before they are stored: by their values and by their shapes."""

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

S = TypeVar("S", bound=msgspec.Struct)


def without_secrets(record: S, values: Sequence[str] = ()) -> S:
    """The record, with every text in it redacted, however deep it stands."""
    changed = {
        name: clean
        for name, value in msgspec.structs.asdict(record).items()
        if (clean := _clean(value, values)) != value
    }
    return msgspec.structs.replace(record, **changed) if changed else record


def _clean(value: Any, values: Sequence[str]) -> Any:
    if isinstance(value, str):
        from corral.adapters.output.redact import redact  # its patterns take long to be made

        data = value.encode("utf-8", "surrogatepass")
        return redact(data, values).decode("utf-8", "surrogatepass")
    if isinstance(value, dict):
        return {_clean(key, values): _clean(part, values) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(part, values) for part in value]
    return value
