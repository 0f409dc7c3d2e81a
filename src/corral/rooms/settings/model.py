"""A setting is a value with a name and a type; a secret is a reference to where its value is.

Every setting that exists stands in `KNOWN`, with the part of Corral that obeys it. A value may be
chosen for everything, for one project or for one agent; the nearest choice counts.
"""

from typing import Any

import msgspec

from corral.kernel.clock import DAY, MINUTE, SECOND


class Known(msgspec.Struct, frozen=True):
    """A setting that exists."""

    type: Any
    default: Any
    help: str


KNOWN: dict[str, Known] = {
    "mail.max_attempts": Known(int, 6, "Failed or silent attempts after which a letter is dead."),
    "mail.backoff_ms": Known(
        list[int],
        [5 * SECOND, 10 * SECOND, 20 * SECOND, 40 * SECOND, 80 * SECOND],
        "Pause after the first failure, the second, and so on; the last one repeats.",
    ),
    "mail.keep_ms": Known(int, 30 * DAY, "How long a letter that has ended is kept."),
    "events.keep_ms": Known(int, 365 * DAY, "How long the record of changes is kept."),
    "schedules.keep_ms": Known(int, 90 * DAY, "How long a schedule that has ended is kept."),
    "schedules.misfire_grace_ms": Known(
        int, MINUTE, "How late a moment may be put before the misfire policy treats it as missed."
    ),
    "schedules.max_timers": Known(int, 20, "Timers that one mailbox may have pending."),
}

# What a number may be: enough for every use, and nothing that stops the mechanism it steers.
BOUNDS: dict[str, tuple[int, int]] = {
    "mail.max_attempts": (1, 1_000),
    "mail.keep_ms": (MINUTE, 3650 * DAY),
    "events.keep_ms": (MINUTE, 3650 * DAY),
    "schedules.keep_ms": (MINUTE, 3650 * DAY),
    "schedules.misfire_grace_ms": (SECOND, DAY),
    "schedules.max_timers": (1, 20),
}


class Setting(msgspec.Struct, frozen=True):
    name: str
    value: Any
    scope: str
    """Where the value comes from: agent:…, project:…, global, or default."""
    updated_at: int | None
    updated_by: str | None
    help: str = ""


class Secret(msgspec.Struct, frozen=True):
    name: str
    reference: str
    updated_at: int
    updated_by: str
