"""Words that are kept, and the keys that may be in them.

What somebody wrote is looked at on its way into the store. `may_hold_key` tells in a fraction of a
microsecond that almost no text holds a key, so that only the few others are searched. And some of
what is kept are no words: what Corral must find again or do exactly as it was told.
"""

import re
from collections.abc import Iterable

from corral.kernel.errors import Invalid

# What stays as it was given: a command, a path or a reference with a part of it replaced would be
# another one. The rest are numbers, times and hashes of Corral's own.
EXACT = frozenset(
    {
        "actor",
        "actor_",
        "after",
        "args",
        "at",
        "attempts",
        "at_",
        "base_commit",
        "before",
        "boot_id",
        "branch",
        "by",
        "check_command",
        "checked_tree",
        "checksum",
        "command",
        "commit_id",
        "cursor",
        "cwd",
        "digest",
        "dir",
        "environment",
        "fence",
        "files",
        "fingerprint",
        "folder",
        "guard_",
        "hash",
        "host",
        "id",
        "keeper_token",
        "key_",
        "keys_",
        "kind",
        "merged_commit",
        "mode",
        "now",
        "number",
        "path",
        "pattern",
        "platform_ids",
        "priority",
        "prompt_hash",
        "provider_session",
        "provider_version",
        "rank",
        "raw",
        "read_by",
        "reference",
        "repository",
        "resume_session",
        "row_id",
        "sandbox",
        "script",
        "secrets",
        "seq",
        "slots",
        "start_token",
        "state",
        "stream",
        "subject",
        "thread",
        "time_zone",
        "until",
        "url",
        "verb",
        "verb_",
        "version",
        "winner_commit",
        "workspace",
        "worktree",
    }
)
_EXACT_ENDS = ("_id", "_at", "_ms", "_micros", "_bytes")

# What is kept whole or not at all: two names that differed would be one without their secrets, and
# what is set up with [redacted] in it would not work. A secret in one of these is refused.
WHOLE = frozenset(
    {
        "caller",
        "config",
        "env",
        "from_mailbox",
        "key",
        "mailbox",
        "member",
        "name",
        "owner",
        "reply_to",
        "role",
        "scope",
        "sender",
        "target",
        "to_mailbox",
    }
)


def is_word(column: str, table: str = "") -> bool:
    """Whether a column of this name may hold what somebody wrote; a project is called as its
    directory is."""
    if column in EXACT or column.endswith(_EXACT_ENDS):
        return False
    return (table, column) != ("projects", "name")


_UNDERSCORED = re.compile("gh[pousr]_|github_pat_|crl_").search


def may_hold_key(text: str) -> bool:
    """False when nothing in the text looks like a key; each sign is the rarest of its shape's."""
    return (
        ("-" in text and ("sk-" in text or "xox" in text or "-----BEGIN" in text))
        or ("_" in text and _UNDERSCORED(text) is not None)
        or ("K" in text and "AKIA" in text)
        or ("z" in text and ("AIza" in text or "uthorization" in text))
        or ("J" in text and "eyJ" in text)
        or ("@" in text and ("://" in text or ":\\/\\/" in text))
    )


def no_place(field: str) -> Invalid:
    """What is said of a secret where none can be taken out."""
    return Invalid(
        f"The {field} holds what looks like a secret, so nothing was kept; leave it out. "
        "`corral secret set` keeps a secret, or says where it is, and gives it a name.",
        field=field,
        reason="looks_like_a_secret",
    )


def taken_out(fields: Iterable[str]) -> str:
    """What is said to whoever wrote a secret into words that are kept."""
    places = ", ".join(dict.fromkeys(field.rpartition(".")[2] for field in fields))
    return (
        f"A secret was taken out of what was kept ({places}); [redacted] stands in its place. "
        "`corral secret set` keeps a secret, or says where it is."
    )
