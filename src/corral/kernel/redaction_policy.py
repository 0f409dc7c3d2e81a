"""What redaction does with a text, a fast test for keys, and the messages about secrets.

Every text that a transaction stores is tested. `may_hold_key` needs a fraction of a microsecond to
exclude almost every text, so that only the few others are searched. The policy of each column is
declared in `db/column_policies.py`.
"""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from corral.kernel.errors import Invalid


class Policy(StrEnum):
    """What happens to a secret in a text that is about to be stored."""

    REDACTED = "redacted"
    """The secret is replaced."""
    REJECTED = "rejected"
    """The text is refused: `Invalid`."""
    EXEMPT = "exempt"
    """The text is stored as given."""


class StoredParameter(NamedTuple):
    """What redaction does with a parameter of a statement, and the column that stores it."""

    policy: Policy
    table: str
    column: str
    rows: "Mapping[str | int, StoredParameter] | None" = None
    """For rows as a JSON array: by the name of a value in a row, or by its index."""


_UNDERSCORED = re.compile("gh[pousr]_|github_pat_|crl_").search


def may_hold_key(text: str) -> bool:
    """Whether the text may contain a key; False is certain.

    Each condition tests first for the rarest character of a key format.
    """
    return (
        ("-" in text and ("sk-" in text or "xox" in text or "-----BEGIN" in text))
        or ("_" in text and _UNDERSCORED(text) is not None)
        or ("K" in text and "AKIA" in text)
        or ("z" in text and "AIza" in text)
        or (("z" in text or "Z" in text) and "uthorization" in text.lower())
        or ("J" in text and "eyJ" in text)
        or ("@" in text and ("://" in text or ":\\/\\/" in text))
    )


def secret_rejected(field: str) -> Invalid:
    """Return the error for a secret in a column whose policy is REJECTED."""
    return Invalid(
        f"The {field} contains what looks like a secret, so nothing was stored. Leave it out, or "
        "store it with `corral secret set` and refer to it by name.",
        field=field,
        reason="looks_like_a_secret",
    )


def redaction_notice(fields: Iterable[str]) -> str:
    """Return the message for a caller whose text contained a secret."""
    columns = ", ".join(dict.fromkeys(field.rpartition(".")[2] for field in fields))
    return (
        f"A secret was replaced by [redacted] before the text was stored ({columns}). Store "
        "secrets with `corral secret set` and refer to them by name."
    )
