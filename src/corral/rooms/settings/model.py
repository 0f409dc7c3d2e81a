"""A setting is a value with a name and a type; a secret is a reference to where its value is.

Every setting that exists stands in `KNOWN`, with the part of Corral that obeys it. A value may be
chosen for everything, for one project or for one agent; the nearest choice counts.
"""

from typing import Any

import msgspec

from corral.kernel.clock import DAY, HOUR, MINUTE, SECOND


class Known(msgspec.Struct, frozen=True):
    """A setting that exists."""

    type: Any
    default: Any
    low: int
    high: int
    """What a number in it may be: enough for every use, and nothing that stops what it steers."""
    help: str
    scopes: tuple[str, ...] = ("global", "project", "agent")
    """Where it can be chosen: nowhere that nobody would look."""


TEN_YEARS = 3650 * DAY
_LADDER = [5 * SECOND, 10 * SECOND, 20 * SECOND, 40 * SECOND, 80 * SECOND]

KNOWN: dict[str, Known] = {
    "mail.max_attempts": Known(
        int, 6, 1, 1_000, "Failed or silent attempts after which a letter is dead."
    ),
    "mail.backoff_ms": Known(
        list[int],
        _LADDER,
        0,
        TEN_YEARS,
        "Pause after the first failure, the second, and so on; the last one repeats.",
    ),
    "mail.keep_ms": Known(
        int, 30 * DAY, MINUTE, TEN_YEARS, "How long an ended letter is kept.", ("global",)
    ),
    "events.keep_ms": Known(
        int, 365 * DAY, MINUTE, TEN_YEARS, "How long the record is kept.", ("global",)
    ),
    "outputs.keep_ms": Known(
        int, 90 * DAY, MINUTE, TEN_YEARS, "How long a sealed output is kept.", ("global",)
    ),
    "schedules.keep_ms": Known(
        int, 90 * DAY, MINUTE, TEN_YEARS, "How long an ended schedule is kept.", ("global",)
    ),
    "sessions.keep_ms": Known(
        int, 365 * DAY, MINUTE, TEN_YEARS, "How long a closed session is kept.", ("global",)
    ),
    "nodes.keep_ms": Known(
        int, 90 * DAY, DAY, TEN_YEARS, "How long a node that is gone is kept.", ("global",)
    ),
    "nodes.lease_ms": Known(
        int,
        15 * SECOND,
        SECOND,
        HOUR,
        "How long a machine may be silent before it is lost, and others lead its loops.",
        ("global",),
    ),
    "schedules.misfire_grace_ms": Known(
        int,
        MINUTE,
        SECOND,
        DAY,
        "How late a moment may be put before the misfire policy treats it as missed.",
    ),
    "runs.max_at_once": Known(
        int, 200, 1, 10_000, "Runs that may go at once; others wait in line.", ("global",)
    ),
    "runs.lease_ms": Known(
        int,
        MINUTE,
        3 * SECOND,
        HOUR,
        "How long a run's keeper may be silent before other machines give the run up.",
        ("global",),
    ),
    "runs.keep_ms": Known(
        int, 90 * DAY, MINUTE, TEN_YEARS, "How long an ended run is kept.", ("global",)
    ),
    "charges.keep_ms": Known(
        int,
        365 * DAY,
        DAY,
        TEN_YEARS,
        "How long single charges are kept; what they add up to stays.",
        ("global",),
    ),
    "totals.keep_ms": Known(
        int,
        3 * 365 * DAY,
        DAY,
        TEN_YEARS,
        "How long the totals of a day, a run or a session are kept; those since ever stay.",
        ("global",),
    ),
    "imports.keep_ms": Known(
        int,
        3 * 365 * DAY,
        DAY,
        TEN_YEARS,
        "How long it is known which files were imported, from the last news in them on.",
        ("global",),
    ),
    "alerts.keep_ms": Known(
        int, 90 * DAY, MINUTE, TEN_YEARS, "How long a removed alert is kept.", ("global",)
    ),
    "locks.edit_ms": Known(
        int,
        0,
        0,
        DAY,
        "An edit locks its file for so long, where hooks are installed; 0: only locks are obeyed.",
    ),
    "locks.keep_ms": Known(
        int, 90 * DAY, MINUTE, TEN_YEARS, "How long a lock that has ended is kept.", ("global",)
    ),
    "touches.keep_ms": Known(
        int,
        365 * DAY,
        DAY,
        TEN_YEARS,
        "How long it is known who changed a file, from the last change on.",
        ("global",),
    ),
    "tokens.keep_ms": Known(
        int, 90 * DAY, MINUTE, TEN_YEARS, "How long a token that is over is kept.", ("global",)
    ),
    "answers.keep_ms": Known(
        int, DAY, MINUTE, TEN_YEARS, "How long a call can be repeated by its key.", ("global",)
    ),
    "otel.enabled": Known(
        bool, False, 0, 1, "Whether runs are told to an OpenTelemetry collector.", ("global",)
    ),
    "schedules.max_timers": Known(int, 20, 1, 20, "Timers that one mailbox may have pending."),
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
