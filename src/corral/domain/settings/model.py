"""A setting is a value with a name and a type; a secret is a reference to where its value is.

Every setting that exists stands in `KNOWN`, with the part of Corral that obeys it. A value may be
chosen for everything, for one project or for one agent; the nearest choice counts.
"""

from typing import Any, Literal

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
MEGABYTE = 1 << 20
_LADDER = [5 * SECOND, 10 * SECOND, 20 * SECOND, 40 * SECOND, 80 * SECOND]

KNOWN: dict[str, Known] = {
    "mail.max_attempts": Known(
        int, 6, 1, 1_000, "Failed or silent attempts after which a letter is dead."
    ),
    "mail.max_hops": Known(
        int,
        20,
        1,
        1_000,
        "Letters between agents that may lead to one another.",
        ("global", "agent"),
    ),
    "mail.backoff_ms": Known(
        list[int],
        _LADDER,
        0,
        TEN_YEARS,
        "Pause after the first failure, the second, and so on; the last one repeats.",
    ),
    "mail.stalled_ms": Known(
        int,
        HOUR,
        MINUTE,
        TEN_YEARS,
        "How long a due letter may stay unclaimed before `corral doctor` reports its mailbox.",
        ("global",),
    ),
    "mail.keep_ms": Known(
        int, 30 * DAY, MINUTE, TEN_YEARS, "How long an ended letter is kept.", ("global", "project")
    ),
    "events.keep_ms": Known(
        int, 365 * DAY, MINUTE, TEN_YEARS, "How long the record is kept.", ("global", "project")
    ),
    "outputs.keep_ms": Known(
        int, 90 * DAY, MINUTE, TEN_YEARS, "How long a sealed output is kept.", ("global", "project")
    ),
    "schedules.keep_ms": Known(
        int,
        90 * DAY,
        MINUTE,
        TEN_YEARS,
        "How long an ended schedule is kept, and what became of each moment.",
        ("global", "project"),
    ),
    "schedules.script_ms": Known(
        int, 30 * SECOND, SECOND, 10 * MINUTE, "How long a schedule's script may run."
    ),
    "sessions.keep_ms": Known(
        int,
        365 * DAY,
        MINUTE,
        TEN_YEARS,
        "How long a closed session is kept.",
        ("global", "project"),
    ),
    "checkpoints.keep_ms": Known(
        int,
        90 * DAY,
        MINUTE,
        TEN_YEARS,
        "How long the checkpoints of a thread are kept that nobody goes on with.",
        ("global",),
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
        int, 90 * DAY, MINUTE, TEN_YEARS, "How long an ended run is kept.", ("global", "project")
    ),
    "charges.keep_ms": Known(
        int,
        365 * DAY,
        DAY,
        TEN_YEARS,
        "How long single charges are kept; what they add up to stays.",
        ("global", "project"),
    ),
    "budgets.unknown_prices": Known(
        Literal["stop", "allow"],
        "stop",
        0,
        1,
        "Whether to stop or allow a run with a budget whose model has no known price.",
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
    "imports.retention": Known(
        bool,
        False,
        0,
        1,
        "Delete imported data by the same keep_ms settings as Corral's own data.",
        ("global",),
    ),
    "alerts.keep_ms": Known(
        int, 90 * DAY, MINUTE, TEN_YEARS, "How long a removed alert is kept.", ("global", "project")
    ),
    "runs.may": Known(
        list[str],
        [],
        0,
        0,
        "Operations for people that processes inside runs may call, such as tokens.create.",
    ),
    "runs.tools": Known(
        bool, False, 0, 1, "Give agents Corral's own tools (MCP) when they are started."
    ),
    "tasks.max_attempts": Known(
        int, 3, 1, 1_000, "Silent attempts after which a task has failed.", ("global", "project")
    ),
    "tasks.lease_ms": Known(
        int,
        5 * MINUTE,
        SECOND,
        DAY,
        "How long whoever does a task may be silent; its run's heartbeat speaks for it.",
        ("global", "project"),
    ),
    "tasks.check_timeout_ms": Known(
        int,
        10 * MINUTE,
        SECOND,
        DAY // 2,
        "How long a task's check command may take.",
        ("global", "project"),
    ),
    "tasks.auto_accept": Known(
        bool,
        False,
        0,
        1,
        "Accept a task at once whose evidence has commands that all ended with 0.",
        ("global", "project"),
    ),
    "tasks.agent_checks": Known(
        bool,
        False,
        0,
        1,
        "Whether agents may declare check commands, which Corral itself runs.",
        ("global", "project"),
    ),
    "tasks.auto_start": Known(
        bool,
        False,
        0,
        1,
        "Start the agent of a ready task's role by itself, in a worktree of its own.",
        ("global", "project"),
    ),
    "tasks.max_started": Known(
        int,
        4,
        1,
        1_000,
        "Tasks of a project that run by themselves at once.",
        ("global", "project"),
    ),
    "tasks.keep_ms": Known(
        int, 365 * DAY, MINUTE, TEN_YEARS, "How long an ended task is kept.", ("global", "project")
    ),
    "delegations.keep_ms": Known(
        int,
        90 * DAY,
        MINUTE,
        TEN_YEARS,
        "How long an ended delegation is kept.",
        ("global", "project"),
    ),
    "plans.keep_ms": Known(
        int,
        90 * DAY,
        MINUTE,
        TEN_YEARS,
        "How long plans and progress are kept.",
        ("global", "project"),
    ),
    "races.max_attempts": Known(
        int, 4, 1, 1_000, "Attempts that a round of a race may have.", ("global", "project")
    ),
    "races.checks_at_once": Known(
        int,
        2,
        1,
        100,
        "Checks and set-up commands of a race that are run at once.",
        ("global", "project"),
    ),
    "races.check_timeout_ms": Known(
        int,
        10 * MINUTE,
        SECOND,
        DAY // 2,
        "How long a check or a set-up command of a race may take.",
        ("global", "project"),
    ),
    "races.keep_ms": Known(
        int,
        365 * DAY,
        MINUTE,
        TEN_YEARS,
        "How long a race that is over is kept; one whose worktrees are there stays.",
        ("global", "project"),
    ),
    "races.pool": Known(
        int,
        4,
        0,
        100,
        "How many cleared worktrees of a repository are kept for the next attempts, without what "
        "no commit has.",
        ("global", "project"),
    ),
    "races.unused_ms": Known(
        int,
        30 * DAY,
        HOUR,
        TEN_YEARS,
        "How long a worktree in which no attempt works, or one in the pool, stays untouched before "
        "it is removed; never one with work that is nowhere else.",
        ("global",),
    ),
    "locks.edit_ms": Known(
        int,
        0,
        0,
        DAY,
        "An edit locks its file for so long, where hooks are installed; 0: only locks are obeyed.",
    ),
    "locks.keep_ms": Known(
        int,
        90 * DAY,
        MINUTE,
        TEN_YEARS,
        "How long a lock that has ended is kept.",
        ("global", "project"),
    ),
    "touches.keep_ms": Known(
        int,
        365 * DAY,
        DAY,
        TEN_YEARS,
        "How long it is known who changed a file, from the last change on.",
        ("global", "project"),
    ),
    "tokens.keep_ms": Known(
        int, 90 * DAY, MINUTE, TEN_YEARS, "How long a token that is over is kept.", ("global",)
    ),
    "answers.keep_ms": Known(
        int, DAY, MINUTE, TEN_YEARS, "How long a call can be repeated by its key.", ("global",)
    ),
    "questions.deadline_ms": Known(
        int, 7 * DAY, SECOND, 365 * DAY, "How long an answer is waited for, if nothing is said."
    ),
    "questions.max_open": Known(
        int, 100, 1, 10_000, "Questions of one asker that may wait for an answer."
    ),
    "questions.keep_ms": Known(
        int,
        90 * DAY,
        MINUTE,
        TEN_YEARS,
        "How long an ended question is kept.",
        ("global", "project"),
    ),
    "decisions.deadline_ms": Known(
        int,
        DAY,
        SECOND,
        365 * DAY,
        "How long a decision waits to be confirmed, if nothing is said.",
    ),
    "decisions.max_proposed": Known(
        int, 100, 1, 10_000, "Decisions of one author that may wait to be confirmed."
    ),
    "decisions.keep_ms": Known(
        int,
        2 * 365 * DAY,
        MINUTE,
        TEN_YEARS,
        "How long a decision is kept that nobody waits for.",
        ("global", "project"),
    ),
    "groups.max_members": Known(
        int,
        200,
        2,
        1_000,
        "Members of a group; each post is a letter to each.",
        ("global", "project"),
    ),
    "groups.keep_ms": Known(
        int,
        365 * DAY,
        MINUTE,
        TEN_YEARS,
        "How long a post is kept, and a group that was archived.",
        ("global", "project"),
    ),
    "notes.max": Known(
        int, 500, 1, 5_000, "Notes that are remembered for an agent, a project, or everyone."
    ),
    "notes.tokens": Known(
        int,
        1_200,
        0,
        10_000,
        "Tokens of notes that an agent is given when it is started; 0: none.",
    ),
    "notes.keep_ms": Known(
        int,
        90 * DAY,
        MINUTE,
        TEN_YEARS,
        "How long a note is kept that was superseded or has expired.",
        ("global", "project"),
    ),
    "gateway.max_at_once": Known(
        int, 5, 1, 1_000, "Sessions with places that agents work on at once.", ("global",)
    ),
    "gateway.approvals": Known(
        int,
        1,
        1,
        20,
        "How many owners and admins must allow what an agent asks of the host; all of them, when "
        "there are fewer.",
    ),
    "gateway.max_file_bytes": Known(
        int, 20 * MEGABYTE, 0, 1_000 * MEGABYTE, "How large an attached file may be.", ("global",)
    ),
    "gateway.sandbox": Known(
        Literal["off", "auto", "bubblewrap", "landlock", "none"],
        "off",
        0,
        0,
        "Box agents that are talked to: a sandbox without network, reached by two files. auto "
        "takes the best that works here, none has the files and no sandbox.",
    ),
    "gateway.sandbox_reads": Known(
        list[str], [], 0, 0, "Folders and files that a boxed agent may read besides."
    ),
    "sandbox.reads": Known(
        list[str],
        [],
        0,
        0,
        "Folders and files outside its worktree that a sandboxed run may read.",
        ("global", "project"),
    ),
    "sandbox.network": Known(
        bool,
        True,
        0,
        1,
        "Whether a sandboxed run has network access, including loopback; models usually need it.",
        ("global", "project"),
    ),
    "sandbox.processes": Known(
        int,
        512,
        1,
        100_000,
        "Maximum processes of a sandboxed run.",
        ("global", "project"),
    ),
    "sandbox.memory_bytes": Known(
        int,
        8_192 * MEGABYTE,
        MEGABYTE,
        1_000_000 * MEGABYTE,
        "Maximum memory of all processes of a sandboxed run together.",
        ("global", "project"),
    ),
    "sandbox.disk_bytes": Known(
        int,
        10_240 * MEGABYTE,
        MEGABYTE,
        1_000_000 * MEGABYTE,
        "Maximum disk space of a sandboxed run in addition to its worktree.",
        ("global", "project"),
    ),
    "messages.keep_ms": Known(
        int, 90 * DAY, MINUTE, TEN_YEARS, "How long a message of a channel is kept.", ("global",)
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
