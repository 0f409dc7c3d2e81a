"""A setting is a named, typed value; a secret is a reference to where its value is stored.

`DEFINITIONS` lists every setting. A value can be set globally, for a project or for an agent; the
most specific one applies.
"""

from typing import Any, Literal

import msgspec

from corral.kernel.clock import DAY, HOUR, MINUTE, SECOND

GLOBAL = ("global",)
PROJECT = ("global", "project")
ALL_SCOPES = ("global", "project", "agent")


class SettingDefinition(msgspec.Struct, frozen=True):
    """The type, default, range and scopes of a setting."""

    help: str
    type: Any
    default: Any
    low: int = 0
    high: int = 0
    """The range of numbers: wide enough for every use, and never harmful. Texts have no range."""
    scopes: tuple[str, ...] = ALL_SCOPES
    """The scopes in which it is read."""


TEN_YEARS = 3650 * DAY
MEGABYTE = 1 << 20
_BACKOFF_MS = [5 * SECOND, 10 * SECOND, 20 * SECOND, 40 * SECOND, 80 * SECOND]


def _number(
    help: str, *, default: int, low: int, high: int, scopes: tuple[str, ...] = ALL_SCOPES
) -> SettingDefinition:
    return SettingDefinition(help, int, default, low, high, scopes)


def _duration(
    help: str,
    *,
    default: int,
    low: int = MINUTE,
    high: int = TEN_YEARS,
    scopes: tuple[str, ...] = ALL_SCOPES,
) -> SettingDefinition:
    """Define a time in milliseconds. Its name ends with `_ms`."""
    return SettingDefinition(help, int, default, low, high, scopes)


def _durations(help: str, *, default: list[int]) -> SettingDefinition:
    """Define a list of times in milliseconds. Its name ends with `_ms`."""
    return SettingDefinition(help, list[int], default, 0, TEN_YEARS)


def _flag(
    help: str, *, default: bool = False, scopes: tuple[str, ...] = ALL_SCOPES
) -> SettingDefinition:
    return SettingDefinition(help, bool, default, low=0, high=1, scopes=scopes)


def _choice(help: str, *, default: str, choices: Any) -> SettingDefinition:
    return SettingDefinition(help, choices, default)


def _texts(help: str, *, scopes: tuple[str, ...] = ALL_SCOPES) -> SettingDefinition:
    """Define a list of texts, which is empty by default."""
    return SettingDefinition(help, list[str], [], scopes=scopes)


DEFINITIONS: dict[str, SettingDefinition] = {
    "mail.max_attempts": _number(
        "Attempts without an acknowledgement after which a letter becomes a dead letter.",
        default=6,
        low=1,
        high=1_000,
    ),
    "mail.max_hops": _number(
        "Maximum number of letters between agents in one chain (hop limit).",
        default=20,
        low=1,
        high=1_000,
        scopes=("global", "agent"),
    ),
    "mail.backoff_ms": _durations(
        "Retry back-off after the first failure, the second, and so on; the last delay repeats.",
        default=_BACKOFF_MS,
    ),
    "mail.stalled_ms": _duration(
        "How long a due letter may stay unclaimed before `corral doctor` reports its mailbox.",
        default=HOUR,
        scopes=GLOBAL,
    ),
    "mail.retention_ms": _duration(
        "How long ended letters are kept.", default=30 * DAY, scopes=PROJECT
    ),
    "events.retention_ms": _duration(
        "How long events are kept.", default=365 * DAY, scopes=PROJECT
    ),
    "outputs.retention_ms": _duration(
        "How long sealed outputs are kept.", default=90 * DAY, scopes=PROJECT
    ),
    "schedules.retention_ms": _duration(
        "How long ended schedules and their occurrences are kept.", default=90 * DAY, scopes=PROJECT
    ),
    "schedules.script_timeout_ms": _duration(
        "Timeout of a schedule's script.", default=30 * SECOND, low=SECOND, high=10 * MINUTE
    ),
    "sessions.retention_ms": _duration(
        "How long closed sessions are kept.", default=365 * DAY, scopes=PROJECT
    ),
    "checkpoints.retention_ms": _duration(
        "How long the checkpoints of an inactive thread are kept.", default=90 * DAY, scopes=GLOBAL
    ),
    "nodes.retention_ms": _duration(
        "How long nodes that left or were lost are kept.", default=90 * DAY, low=DAY, scopes=GLOBAL
    ),
    "nodes.lease_ms": _duration(
        "Lease of a machine; when it expires, the machine is lost and others lead its loops.",
        default=15 * SECOND,
        low=SECOND,
        high=HOUR,
        scopes=GLOBAL,
    ),
    "schedules.misfire_grace_ms": _duration(
        "How late a schedule may fire before the misfire policy treats the time as missed.",
        default=MINUTE,
        low=SECOND,
        high=DAY,
    ),
    "runs.max_concurrent": _number(
        "Maximum number of concurrent runs; further runs are queued.",
        default=200,
        low=1,
        high=10_000,
        scopes=GLOBAL,
    ),
    "runs.lease_ms": _duration(
        "Lease of a supervisor; when it expires, other machines may recover its run.",
        default=MINUTE,
        low=3 * SECOND,
        high=HOUR,
        scopes=GLOBAL,
    ),
    "runs.retention_ms": _duration(
        "How long ended runs are kept.", default=90 * DAY, scopes=PROJECT
    ),
    "charges.retention_ms": _duration(
        "How long charges are kept; their totals stay.", default=365 * DAY, low=DAY, scopes=PROJECT
    ),
    "budgets.unknown_prices": _choice(
        "Whether to stop or allow a run with a budget whose model has no known price.",
        default="stop",
        choices=Literal["stop", "allow"],
    ),
    "usage_totals.retention_ms": _duration(
        "How long totals per day, run and session are kept; all-time totals stay.",
        default=3 * 365 * DAY,
        low=DAY,
        scopes=GLOBAL,
    ),
    "imports.retention_ms": _duration(
        "How long the record of an imported file is kept after its last change.",
        default=3 * 365 * DAY,
        low=DAY,
        scopes=GLOBAL,
    ),
    "imports.apply_retention": _flag(
        "Delete imported data by the same retention_ms settings as Corral's own data.",
        scopes=GLOBAL,
    ),
    "alerts.retention_ms": _duration(
        "How long removed alerts are kept.", default=90 * DAY, scopes=PROJECT
    ),
    "runs.allowed_operations": _texts(
        "Operations for people that processes inside runs may call, such as tokens.create."
    ),
    "runs.mcp_tools": _flag("Give agents Corral's own tools (MCP) when they are started."),
    "tasks.max_attempts": _number(
        "Attempts without a result after which a task fails.",
        default=3,
        low=1,
        high=1_000,
        scopes=PROJECT,
    ),
    "tasks.lease_ms": _duration(
        "Lease of a claimed task; the heartbeats of its run renew it.",
        default=5 * MINUTE,
        low=SECOND,
        high=DAY,
        scopes=PROJECT,
    ),
    "tasks.check_timeout_ms": _duration(
        "Timeout of a task's check command.",
        default=10 * MINUTE,
        low=SECOND,
        high=DAY // 2,
        scopes=PROJECT,
    ),
    "tasks.auto_accept": _flag(
        "Accept a submitted task automatically if all commands in its evidence exited with 0.",
        scopes=PROJECT,
    ),
    "tasks.allow_agent_checks": _flag(
        "Whether agents may declare check commands, which Corral runs.", scopes=PROJECT
    ),
    "tasks.auto_start": _flag(
        "Start the agent of a ready task's role automatically, in its own worktree.", scopes=PROJECT
    ),
    "tasks.max_started": _number(
        "Maximum number of tasks of a project that are started automatically at once.",
        default=4,
        low=1,
        high=1_000,
        scopes=PROJECT,
    ),
    "tasks.retention_ms": _duration(
        "How long ended tasks are kept.", default=365 * DAY, scopes=PROJECT
    ),
    "delegations.retention_ms": _duration(
        "How long ended delegations are kept.", default=90 * DAY, scopes=PROJECT
    ),
    "plans.retention_ms": _duration(
        "How long plans and progress are kept.", default=90 * DAY, scopes=PROJECT
    ),
    "races.max_attempts": _number(
        "Maximum number of attempts in a round of a race.",
        default=4,
        low=1,
        high=1_000,
        scopes=PROJECT,
    ),
    "races.max_concurrent_checks": _number(
        "Maximum number of concurrent checks and set-up commands of a race.",
        default=2,
        low=1,
        high=100,
        scopes=PROJECT,
    ),
    "races.check_timeout_ms": _duration(
        "Timeout of a check or set-up command of a race.",
        default=10 * MINUTE,
        low=SECOND,
        high=DAY // 2,
        scopes=PROJECT,
    ),
    "races.retention_ms": _duration(
        "How long ended races are kept; races whose worktrees still exist stay.",
        default=365 * DAY,
        scopes=PROJECT,
    ),
    "races.worktree_pool_size": _number(
        "Maximum number of clean worktrees of a repository that are pooled for later attempts.",
        default=4,
        low=0,
        high=100,
        scopes=PROJECT,
    ),
    "races.worktree_retention_ms": _duration(
        "How long an unused or pooled worktree is kept. A worktree with uncommitted work is never "
        "removed.",
        default=30 * DAY,
        low=HOUR,
        scopes=GLOBAL,
    ),
    "locks.edit_lease_ms": _duration(
        "How long an edit locks its file, where hooks are installed; 0: edits do not lock.",
        default=0,
        low=0,
        high=DAY,
    ),
    "locks.retention_ms": _duration(
        "How long ended locks are kept.", default=90 * DAY, scopes=PROJECT
    ),
    "file_touches.retention_ms": _duration(
        "How long the record of who changed a file is kept after the last change.",
        default=365 * DAY,
        low=DAY,
        scopes=PROJECT,
    ),
    "tokens.retention_ms": _duration(
        "How long revoked and expired tokens are kept.", default=90 * DAY, scopes=GLOBAL
    ),
    "idempotency.retention_ms": _duration(
        "How long the response to a call with an idempotency key is kept.",
        default=DAY,
        scopes=GLOBAL,
    ),
    "questions.deadline_ms": _duration(
        "Default deadline of a question.", default=7 * DAY, low=SECOND, high=365 * DAY
    ),
    "questions.max_open": _number(
        "Maximum number of open questions of one asker.", default=100, low=1, high=10_000
    ),
    "questions.retention_ms": _duration(
        "How long ended questions are kept.", default=90 * DAY, scopes=PROJECT
    ),
    "decisions.deadline_ms": _duration(
        "Default deadline for confirming a decision.", default=DAY, low=SECOND, high=365 * DAY
    ),
    "decisions.max_proposed": _number(
        "Maximum number of unconfirmed decisions of one author.", default=100, low=1, high=10_000
    ),
    "decisions.retention_ms": _duration(
        "How long decided decisions are kept.", default=2 * 365 * DAY, scopes=PROJECT
    ),
    "groups.max_members": _number(
        "Maximum number of members of a group; each post is a letter to each member.",
        default=200,
        low=2,
        high=1_000,
        scopes=PROJECT,
    ),
    "groups.retention_ms": _duration(
        "How long posts and archived groups are kept.", default=365 * DAY, scopes=PROJECT
    ),
    "notes.max_notes": _number(
        "Maximum number of notes of an agent, a project, or everyone.",
        default=500,
        low=1,
        high=5_000,
    ),
    "notes.prompt_tokens": _number(
        "Maximum tokens of notes in the prompt of a started agent; 0: none.",
        default=1_200,
        low=0,
        high=10_000,
    ),
    "notes.retention_ms": _duration(
        "How long superseded and expired notes are kept.", default=90 * DAY, scopes=PROJECT
    ),
    "chat.max_concurrent": _number(
        "Maximum number of chat sessions that agents work on at once.",
        default=5,
        low=1,
        high=1_000,
        scopes=GLOBAL,
    ),
    "chat.approvals": _number(
        "Number of owners and admins that must approve a host request; all of them if there are "
        "fewer.",
        default=1,
        low=1,
        high=20,
    ),
    "chat.max_file_bytes": _number(
        "Maximum size of an attached file.",
        default=20 * MEGABYTE,
        low=0,
        high=1_000 * MEGABYTE,
        scopes=GLOBAL,
    ),
    "chat.sandbox": _choice(
        "Sandbox of chat agents, without network and reached by two files. auto: the strongest "
        "one available here; none: the files without a sandbox; off: neither.",
        default="off",
        choices=Literal["off", "auto", "bubblewrap", "landlock", "none"],
    ),
    "chat.sandbox_read_paths": _texts(
        "Additional directories and files that a sandboxed agent may read."
    ),
    "sandbox.read_paths": _texts(
        "Directories and files outside its worktree that a sandboxed run may read.", scopes=PROJECT
    ),
    "sandbox.network": _flag(
        "Whether a sandboxed run has network access, including loopback; models usually need it.",
        default=True,
        scopes=PROJECT,
    ),
    "sandbox.processes": _number(
        "Maximum processes of a sandboxed run.", default=512, low=1, high=100_000, scopes=PROJECT
    ),
    "sandbox.memory_bytes": _number(
        "Maximum memory of all processes of a sandboxed run together.",
        default=8_192 * MEGABYTE,
        low=MEGABYTE,
        high=1_000_000 * MEGABYTE,
        scopes=PROJECT,
    ),
    "sandbox.disk_bytes": _number(
        "Maximum disk space of a sandboxed run in addition to its worktree.",
        default=10_240 * MEGABYTE,
        low=MEGABYTE,
        high=1_000_000 * MEGABYTE,
        scopes=PROJECT,
    ),
    "messages.retention_ms": _duration(
        "How long channel messages are kept.", default=90 * DAY, scopes=GLOBAL
    ),
    "otel.enabled": _flag(
        "Whether runs are exported to an OpenTelemetry collector.", scopes=GLOBAL
    ),
    "schedules.max_timers": _number(
        "Maximum number of pending timers of one mailbox.", default=20, low=1, high=20
    ),
}


class Setting(msgspec.Struct, frozen=True):
    """A setting with the value that applies."""

    name: str
    value: Any
    scope: str
    """The scope of the value: agent:…, project:…, global, or default."""
    updated_at: int | None
    updated_by: str | None
    help: str = ""


class Secret(msgspec.Struct, frozen=True):
    """A named reference to a secret value."""

    name: str
    reference: str
    updated_at: int
    updated_by: str
