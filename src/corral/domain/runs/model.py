"""A run is one command or agent CLI, over all its attempts, from queued to exit.

A supervisor, a separate process, holds the run by a lease with a fence. Everything a row says was
reported by the supervisor (at `seen_at`), by the process that waited for the agent, or was proven
by a recovery.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from corral.domain.runs.denials import (
    Denial,
    count_denied,
    describe_denied,
    format_retry_command,
)
from corral.kernel.display_text import shorten
from corral.kernel.states import TransitionTable, allow


class RunState(StrEnum):
    QUEUED = "queued"  # waits until it is due and a slot is free
    STARTING = "starting"  # its process exists and is identified, the agent is not executed yet
    RUNNING = "running"  # its process was identified, or the supervisor's lease has not expired
    STOPPING = "stopping"  # was asked to exit; its grace period runs
    COMPLETED = "completed"  # exited successfully
    FAILED = "failed"  # exited with a non-zero exit status, or could not be started
    CRASHED = "crashed"  # ended by a signal that Corral did not send, or vanished
    CANCELLED = "cancelled"  # stopped on request, or its budget was spent
    TIMED_OUT = "timed_out"  # stopped because its time limit was reached
    INTERRUPTED = "interrupted"  # its machine or supervisor went down


LIVE = (RunState.QUEUED, RunState.STARTING, RunState.RUNNING, RunState.STOPPING)
ACTIVE = (RunState.STARTING, RunState.RUNNING, RunState.STOPPING)
TRANSITIONS = TransitionTable(
    "run",
    RunState,
    create_verb="queue",
    initial=RunState.QUEUED,
    import_states=(
        RunState.COMPLETED,
        RunState.FAILED,
        RunState.CRASHED,
        RunState.CANCELLED,
        RunState.TIMED_OUT,
        RunState.INTERRUPTED,
    ),
    verbs={
        # A supervisor takes it, with the identity of the process that will execute the agent.
        "start": allow(RunState.QUEUED, to=RunState.STARTING),
        "launch": allow(RunState.STARTING, to=RunState.RUNNING),
        # A process that Corral did not start is recorded.
        "adopt": allow(RunState.QUEUED, to=RunState.RUNNING),
        # Another attempt of the same run, by its restart policy.
        "restart": allow(RunState.STARTING, RunState.RUNNING, to=RunState.STARTING),
        # It waits for its provider's quota, or for another supervisor, and continues later.
        "requeue": allow(RunState.STARTING, RunState.RUNNING, to=RunState.QUEUED),
        "stop": allow(RunState.STARTING, RunState.RUNNING, to=RunState.STOPPING),
        "complete": allow(RunState.STARTING, RunState.RUNNING, to=RunState.COMPLETED),
        "fail": allow(RunState.QUEUED, RunState.STARTING, RunState.RUNNING, to=RunState.FAILED),
        "crash": allow(*ACTIVE, to=RunState.CRASHED),
        "cancel": allow(*LIVE, to=RunState.CANCELLED),
        "time_out": allow(*ACTIVE, to=RunState.TIMED_OUT),
        "interrupt": allow(*ACTIVE, to=RunState.INTERRUPTED),
    },
)


class RunMode(StrEnum):
    """How Corral communicates with the process."""

    PIPE = "pipe"  # input and output are files or pipes
    PTY = "pty"  # a pseudo-terminal
    ACP = "acp"  # the Agent Client Protocol
    RECORDED = "recorded"  # not at all: Corral did not start it


class StopKind(StrEnum):
    """Why a run is being stopped, as far as that decides its final state."""

    REQUESTED = "requested"  # on request
    TIMED_OUT = "timed_out"  # its time limit was reached
    INTERRUPTED = "interrupted"  # its supervisor was asked to exit
    OVER_BUDGET = "over_budget"  # its budget was spent


class Attention(StrEnum):
    """Why a run needs a person."""

    NEEDS_INPUT = "needs_input"  # it asks a question that is not answered
    STUCK = "stuck"  # it claims to work but makes no progress
    PARKED = "parked"  # it waits for its provider's quota


class Dialog(msgspec.Struct, frozen=True):
    """A question that a run asks at its terminal or through its protocol."""

    id: str
    """A hash of the question and its subject, so that an answer cannot reach another dialog."""
    question: str
    options: list[str]
    """The possible answers; empty: only the terminal can answer."""
    kind: str | None = None
    """The class or tool of the request, such as `edit`, `run` or `trust`."""
    about: list[str] = []
    """The subject, line by line."""


MAX_DIALOG_OPTIONS = 12
MAX_DIALOG_LINES = 20
MAX_DIALOG_LINE = 200


def build_dialog(
    question: str,
    options: Sequence[str],
    *,
    kind: str | None = None,
    about: Sequence[str] = (),
    key: str = "",
) -> Dialog:
    """Build a dialog with bounded texts: they come from an agent and may have any length.

    `key` distinguishes two dialogs that look the same.
    """
    from hashlib import sha256  # imports OpenSSL, which only the supervisor needs

    digest = sha256("\0".join((key, question, *options, "", *about)).encode())
    return Dialog(
        digest.hexdigest()[:12],
        shorten(question, MAX_DIALOG_LINE),
        [shorten(option, MAX_DIALOG_LINE) for option in options[:MAX_DIALOG_OPTIONS]],
        None if kind is None else shorten(kind, MAX_DIALOG_LINE),
        [shorten(line, MAX_DIALOG_LINE) for line in about[:MAX_DIALOG_LINES]],
    )


class Run(msgspec.Struct, frozen=True):
    """A run as the store knows it."""

    id: str
    name: str | None
    title: str | None
    state: RunState
    project_id: str | None
    session_id: str | None
    agent_id: str | None
    agent_version: int | None
    parent_id: str | None
    provider: str
    provider_version: str | None
    model: str | None
    mode: RunMode
    command: str
    args: list[str]
    cwd: str
    owner: str | None
    fence: int
    lease_until: int | None
    seen_at: int | None
    """When the supervisor last reported."""
    node_id: str | None
    host: str | None
    boot_id: str | None
    pid: int | None
    start_token: str | None
    supervisor_pid: int | None
    supervisor_token: str | None
    attempts: int
    quick_failures: int
    due_at: int
    stop_kind: StopKind | None
    stop_reason: str | None
    exit_code: int | None
    signal: int | None
    reason: str | None
    attention: Attention | None
    attention_at: int | None
    dialog: Dialog | None
    screen_rows: int | None
    screen_columns: int | None
    tokens: int | None
    cost_micros: int | None
    output_bytes: int
    cpu_ms: int | None
    peak_bytes: int | None
    created_at: int
    started_at: int | None
    ended_at: int | None
    denials: list[Denial] | None

    @property
    def denied(self) -> dict[str, int]:
        """The number of denials of each tool, over all attempts."""
        return count_denied(self.denials)

    @property
    def denied_text(self) -> str | None:
        """A description of the denied calls; None when none were denied."""
        return describe_denied(self.denials)

    @property
    def retry_command(self) -> str | None:
        """The command that retries with the missing approvals."""
        if not self.denials or self.session_id is None or self.is_live:
            return None
        return format_retry_command(self.id, self.denied)

    @property
    def what(self) -> str:
        """A one-line description: the title, or the command line."""
        return self.title or " ".join(filter(None, [self.command, *self.args]))

    @property
    def is_live(self) -> bool:
        return self.ended_at is None


SESSION_SANDBOX_PREFIX = "session:"


class Launch(msgspec.Struct, frozen=True):
    """The parameters with which a run is started."""

    run_id: str
    host: str | None
    labels: list[str]
    prompt: str | None
    resume_session: str | None
    env: dict[str, str]
    secrets: dict[str, str]
    approvals: list[str]
    raw: bool
    interactive: bool
    timeout_ms: int | None
    idle_ms: int | None
    grace_period_ms: int
    max_restarts: int
    budget_micros: int | None
    max_output_bytes: int
    sandbox: str | None
    environment: dict[str, Any]

    @property
    def has_session_sandbox(self) -> bool:
        """Whether the agent has a session sandbox; see `runs/spec.py`."""
        return (self.sandbox or "").startswith(SESSION_SANDBOX_PREFIX)

    @property
    def has_worktree_sandbox(self) -> bool:
        """Whether the agent has a worktree sandbox; see `runs/spec.py`."""
        return self.sandbox not in (None, "none") and not self.has_session_sandbox


class ResourceSample(msgspec.Struct, frozen=True):
    """The resource usage of a run's process tree at one time."""

    at: int
    cpu_ms: int
    memory_bytes: int
    processes: int


class Diagnosis(NamedTuple):
    """The transition that a recovery chose for a run whose agent is gone, with its reason."""

    verb: str
    reason: str

    @property
    def may_leave_processes(self) -> bool:
        """Whether processes of the run may still exist; a reboot has ended all of them."""
        return self.verb != "interrupt"


class RecoveryResult(msgspec.Struct, frozen=True):
    """The result of a recovery for one run."""

    run_id: str
    was: RunState
    state: RunState
    reason: str
