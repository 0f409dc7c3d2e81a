"""A setting is a named, typed value; a secret is a reference to where its value is stored.

`DEFINITIONS` lists every setting. A value can be set globally, for a project or for an agent; the
most specific one applies.
"""

from typing import Any, Literal

import msgspec

from corral.kernel.clock import DAY, HOUR, MINUTE, SECOND


class SettingDefinition(msgspec.Struct, frozen=True):
    """The type, default, range and scopes of a setting."""

    type: Any
    default: Any
    low: int
    high: int
    """The range of numbers: wide enough for every use, and never harmful."""
    help: str
    scopes: tuple[str, ...] = ("global", "project", "agent")
    """The scopes in which it is read."""


TEN_YEARS = 3650 * DAY
MEGABYTE = 1 << 20
_BACKOFF_MS = [5 * SECOND, 10 * SECOND, 20 * SECOND, 40 * SECOND, 80 * SECOND]

DEFINITIONS: dict[str, SettingDefinition] = {
    "mail.max_attempts": SettingDefinition(
        int,
        6,
        1,
        1_000,
        "Attempts without an acknowledgement after which a letter becomes a dead letter.",
    ),
    "mail.max_hops": SettingDefinition(
        int,
        20,
        1,
        1_000,
        "Maximum number of letters between agents in one chain (hop limit).",
        ("global", "agent"),
    ),
    "mail.backoff_ms": SettingDefinition(
        list[int],
        _BACKOFF_MS,
        0,
        TEN_YEARS,
        "Retry back-off after the first failure, the second, and so on; the last delay repeats.",
    ),
    "mail.stalled_ms": SettingDefinition(
        int,
        HOUR,
        MINUTE,
        TEN_YEARS,
        "How long a due letter may stay unclaimed before `corral doctor` reports its mailbox.",
        ("global",),
    ),
    "mail.retention_ms": SettingDefinition(
        int, 30 * DAY, MINUTE, TEN_YEARS, "How long ended letters are kept.", ("global", "project")
    ),
    "events.retention_ms": SettingDefinition(
        int, 365 * DAY, MINUTE, TEN_YEARS, "How long events are kept.", ("global", "project")
    ),
    "outputs.retention_ms": SettingDefinition(
        int, 90 * DAY, MINUTE, TEN_YEARS, "How long sealed outputs are kept.", ("global", "project")
    ),
    "schedules.retention_ms": SettingDefinition(
        int,
        90 * DAY,
        MINUTE,
        TEN_YEARS,
        "How long ended schedules and their occurrences are kept.",
        ("global", "project"),
    ),
    "schedules.script_timeout_ms": SettingDefinition(
        int, 30 * SECOND, SECOND, 10 * MINUTE, "Timeout of a schedule's script."
    ),
    "sessions.retention_ms": SettingDefinition(
        int,
        365 * DAY,
        MINUTE,
        TEN_YEARS,
        "How long closed sessions are kept.",
        ("global", "project"),
    ),
    "checkpoints.retention_ms": SettingDefinition(
        int,
        90 * DAY,
        MINUTE,
        TEN_YEARS,
        "How long the checkpoints of an inactive thread are kept.",
        ("global",),
    ),
    "nodes.retention_ms": SettingDefinition(
        int,
        90 * DAY,
        DAY,
        TEN_YEARS,
        "How long nodes that left or were lost are kept.",
        ("global",),
    ),
    "nodes.lease_ms": SettingDefinition(
        int,
        15 * SECOND,
        SECOND,
        HOUR,
        "Lease of a machine; when it expires, the machine is lost and others lead its loops.",
        ("global",),
    ),
    "schedules.misfire_grace_ms": SettingDefinition(
        int,
        MINUTE,
        SECOND,
        DAY,
        "How late a schedule may fire before the misfire policy treats the time as missed.",
    ),
    "runs.max_concurrent": SettingDefinition(
        int,
        200,
        1,
        10_000,
        "Maximum number of concurrent runs; further runs are queued.",
        ("global",),
    ),
    "runs.lease_ms": SettingDefinition(
        int,
        MINUTE,
        3 * SECOND,
        HOUR,
        "Lease of a supervisor; when it expires, other machines may recover its run.",
        ("global",),
    ),
    "runs.retention_ms": SettingDefinition(
        int, 90 * DAY, MINUTE, TEN_YEARS, "How long ended runs are kept.", ("global", "project")
    ),
    "charges.retention_ms": SettingDefinition(
        int,
        365 * DAY,
        DAY,
        TEN_YEARS,
        "How long charges are kept; their totals stay.",
        ("global", "project"),
    ),
    "budgets.unknown_prices": SettingDefinition(
        Literal["stop", "allow"],
        "stop",
        0,
        1,
        "Whether to stop or allow a run with a budget whose model has no known price.",
    ),
    "usage_totals.retention_ms": SettingDefinition(
        int,
        3 * 365 * DAY,
        DAY,
        TEN_YEARS,
        "How long totals per day, run and session are kept; all-time totals stay.",
        ("global",),
    ),
    "imports.retention_ms": SettingDefinition(
        int,
        3 * 365 * DAY,
        DAY,
        TEN_YEARS,
        "How long the record of an imported file is kept after its last change.",
        ("global",),
    ),
    "imports.apply_retention": SettingDefinition(
        bool,
        False,
        0,
        1,
        "Delete imported data by the same retention_ms settings as Corral's own data.",
        ("global",),
    ),
    "alerts.retention_ms": SettingDefinition(
        int, 90 * DAY, MINUTE, TEN_YEARS, "How long removed alerts are kept.", ("global", "project")
    ),
    "runs.allowed_operations": SettingDefinition(
        list[str],
        [],
        0,
        0,
        "Operations for people that processes inside runs may call, such as tokens.create.",
    ),
    "runs.mcp_tools": SettingDefinition(
        bool, False, 0, 1, "Give agents Corral's own tools (MCP) when they are started."
    ),
    "tasks.max_attempts": SettingDefinition(
        int,
        3,
        1,
        1_000,
        "Attempts without a result after which a task fails.",
        ("global", "project"),
    ),
    "tasks.lease_ms": SettingDefinition(
        int,
        5 * MINUTE,
        SECOND,
        DAY,
        "Lease of a claimed task; the heartbeats of its run renew it.",
        ("global", "project"),
    ),
    "tasks.check_timeout_ms": SettingDefinition(
        int,
        10 * MINUTE,
        SECOND,
        DAY // 2,
        "Timeout of a task's check command.",
        ("global", "project"),
    ),
    "tasks.auto_accept": SettingDefinition(
        bool,
        False,
        0,
        1,
        "Accept a submitted task automatically if all commands in its evidence exited with 0.",
        ("global", "project"),
    ),
    "tasks.allow_agent_checks": SettingDefinition(
        bool,
        False,
        0,
        1,
        "Whether agents may declare check commands, which Corral runs.",
        ("global", "project"),
    ),
    "tasks.auto_start": SettingDefinition(
        bool,
        False,
        0,
        1,
        "Start the agent of a ready task's role automatically, in its own worktree.",
        ("global", "project"),
    ),
    "tasks.max_started": SettingDefinition(
        int,
        4,
        1,
        1_000,
        "Maximum number of tasks of a project that are started automatically at once.",
        ("global", "project"),
    ),
    "tasks.retention_ms": SettingDefinition(
        int, 365 * DAY, MINUTE, TEN_YEARS, "How long ended tasks are kept.", ("global", "project")
    ),
    "delegations.retention_ms": SettingDefinition(
        int,
        90 * DAY,
        MINUTE,
        TEN_YEARS,
        "How long ended delegations are kept.",
        ("global", "project"),
    ),
    "plans.retention_ms": SettingDefinition(
        int,
        90 * DAY,
        MINUTE,
        TEN_YEARS,
        "How long plans and progress are kept.",
        ("global", "project"),
    ),
    "races.max_attempts": SettingDefinition(
        int, 4, 1, 1_000, "Maximum number of attempts in a round of a race.", ("global", "project")
    ),
    "races.max_concurrent_checks": SettingDefinition(
        int,
        2,
        1,
        100,
        "Maximum number of concurrent checks and set-up commands of a race.",
        ("global", "project"),
    ),
    "races.check_timeout_ms": SettingDefinition(
        int,
        10 * MINUTE,
        SECOND,
        DAY // 2,
        "Timeout of a check or set-up command of a race.",
        ("global", "project"),
    ),
    "races.retention_ms": SettingDefinition(
        int,
        365 * DAY,
        MINUTE,
        TEN_YEARS,
        "How long ended races are kept; races whose worktrees still exist stay.",
        ("global", "project"),
    ),
    "races.worktree_pool_size": SettingDefinition(
        int,
        4,
        0,
        100,
        "Maximum number of clean worktrees of a repository that are pooled for later attempts.",
        ("global", "project"),
    ),
    "races.worktree_retention_ms": SettingDefinition(
        int,
        30 * DAY,
        HOUR,
        TEN_YEARS,
        "How long an unused or pooled worktree is kept. A worktree with uncommitted work is never "
        "removed.",
        ("global",),
    ),
    "locks.edit_lease_ms": SettingDefinition(
        int,
        0,
        0,
        DAY,
        "How long an edit locks its file, where hooks are installed; 0: edits do not lock.",
    ),
    "locks.retention_ms": SettingDefinition(
        int,
        90 * DAY,
        MINUTE,
        TEN_YEARS,
        "How long ended locks are kept.",
        ("global", "project"),
    ),
    "file_touches.retention_ms": SettingDefinition(
        int,
        365 * DAY,
        DAY,
        TEN_YEARS,
        "How long the record of who changed a file is kept after the last change.",
        ("global", "project"),
    ),
    "tokens.retention_ms": SettingDefinition(
        int,
        90 * DAY,
        MINUTE,
        TEN_YEARS,
        "How long revoked and expired tokens are kept.",
        ("global",),
    ),
    "idempotency.retention_ms": SettingDefinition(
        int,
        DAY,
        MINUTE,
        TEN_YEARS,
        "How long the response to a call with an idempotency key is kept.",
        ("global",),
    ),
    "questions.deadline_ms": SettingDefinition(
        int, 7 * DAY, SECOND, 365 * DAY, "Default deadline of a question."
    ),
    "questions.max_open": SettingDefinition(
        int, 100, 1, 10_000, "Maximum number of open questions of one asker."
    ),
    "questions.retention_ms": SettingDefinition(
        int,
        90 * DAY,
        MINUTE,
        TEN_YEARS,
        "How long ended questions are kept.",
        ("global", "project"),
    ),
    "decisions.deadline_ms": SettingDefinition(
        int,
        DAY,
        SECOND,
        365 * DAY,
        "Default deadline for confirming a decision.",
    ),
    "decisions.max_proposed": SettingDefinition(
        int, 100, 1, 10_000, "Maximum number of unconfirmed decisions of one author."
    ),
    "decisions.retention_ms": SettingDefinition(
        int,
        2 * 365 * DAY,
        MINUTE,
        TEN_YEARS,
        "How long decided decisions are kept.",
        ("global", "project"),
    ),
    "groups.max_members": SettingDefinition(
        int,
        200,
        2,
        1_000,
        "Maximum number of members of a group; each post is a letter to each member.",
        ("global", "project"),
    ),
    "groups.retention_ms": SettingDefinition(
        int,
        365 * DAY,
        MINUTE,
        TEN_YEARS,
        "How long posts and archived groups are kept.",
        ("global", "project"),
    ),
    "notes.max_notes": SettingDefinition(
        int, 500, 1, 5_000, "Maximum number of notes of an agent, a project, or everyone."
    ),
    "notes.prompt_tokens": SettingDefinition(
        int,
        1_200,
        0,
        10_000,
        "Maximum tokens of notes in the prompt of a started agent; 0: none.",
    ),
    "notes.retention_ms": SettingDefinition(
        int,
        90 * DAY,
        MINUTE,
        TEN_YEARS,
        "How long superseded and expired notes are kept.",
        ("global", "project"),
    ),
    "chat.max_concurrent": SettingDefinition(
        int,
        5,
        1,
        1_000,
        "Maximum number of chat sessions that agents work on at once.",
        ("global",),
    ),
    "chat.approvals": SettingDefinition(
        int,
        1,
        1,
        20,
        "Number of owners and admins that must approve a host request; all of them if there are "
        "fewer.",
    ),
    "chat.max_file_bytes": SettingDefinition(
        int, 20 * MEGABYTE, 0, 1_000 * MEGABYTE, "Maximum size of an attached file.", ("global",)
    ),
    "chat.sandbox": SettingDefinition(
        Literal["off", "auto", "bubblewrap", "landlock", "none"],
        "off",
        0,
        0,
        "Sandbox of chat agents, without network and reached by two files. auto: the strongest "
        "one available here; none: the files without a sandbox; off: neither.",
    ),
    "chat.sandbox_read_paths": SettingDefinition(
        list[str],
        [],
        0,
        0,
        "Additional directories and files that a sandboxed agent may read.",
    ),
    "sandbox.read_paths": SettingDefinition(
        list[str],
        [],
        0,
        0,
        "Directories and files outside its worktree that a sandboxed run may read.",
        ("global", "project"),
    ),
    "sandbox.network": SettingDefinition(
        bool,
        True,
        0,
        1,
        "Whether a sandboxed run has network access, including loopback; models usually need it.",
        ("global", "project"),
    ),
    "sandbox.processes": SettingDefinition(
        int,
        512,
        1,
        100_000,
        "Maximum processes of a sandboxed run.",
        ("global", "project"),
    ),
    "sandbox.memory_bytes": SettingDefinition(
        int,
        8_192 * MEGABYTE,
        MEGABYTE,
        1_000_000 * MEGABYTE,
        "Maximum memory of all processes of a sandboxed run together.",
        ("global", "project"),
    ),
    "sandbox.disk_bytes": SettingDefinition(
        int,
        10_240 * MEGABYTE,
        MEGABYTE,
        1_000_000 * MEGABYTE,
        "Maximum disk space of a sandboxed run in addition to its worktree.",
        ("global", "project"),
    ),
    "messages.retention_ms": SettingDefinition(
        int, 90 * DAY, MINUTE, TEN_YEARS, "How long channel messages are kept.", ("global",)
    ),
    "otel.enabled": SettingDefinition(
        bool, False, 0, 1, "Whether runs are exported to an OpenTelemetry collector.", ("global",)
    ),
    "schedules.max_timers": SettingDefinition(
        int, 20, 1, 20, "Maximum number of pending timers of one mailbox."
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
