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
    """A name for commands, unique among live runs."""
    title: str | None
    """One line about the run: the start of its prompt, unless the caller gave a title."""
    state: RunState
    project_id: str | None
    session_id: str | None
    """The session to which its turns belong; None: it is not part of a session."""
    agent_id: str | None
    """None: a plain command, or an agent CLI without an agent record."""
    agent_version: int | None
    """The version of the agent's definition that it was started with."""
    parent_id: str | None
    """The run whose process requested this one."""
    provider: str
    """The agent CLI: claude, codex, …; plain for any other command."""
    provider_version: str | None
    """The version that the agent CLI reported."""
    model: str | None
    """The model that the agent CLI reported."""
    mode: RunMode
    """How input and output are connected."""
    command: str
    """The program; `args` has its arguments."""
    args: list[str]
    cwd: str
    owner: str | None
    """The supervisor that holds the lease, or held it last."""
    fence: int
    """The fencing token. Each start, restart, take-over, requeue and end increments it."""
    lease_until: int | None
    """End of the supervisor's lease; while queued, end of a dispatcher's claim. None: nothing holds
    it."""
    seen_at: int | None
    """When the supervisor last reported."""
    node_id: str | None
    """The node that runs it or has claimed it, if a daemon serves that machine."""
    host: str | None
    """The machine that runs it; while queued, the machine that it is pinned to. None: any
    machine."""
    boot_id: str | None
    """The boot of that machine. After a reboot, the recorded processes are known to be gone."""
    pid: int | None
    """The agent's process, or while starting the process that will execute the agent."""
    start_token: str | None
    """The kernel's start time of that process, which tells it from a later process with the same
    pid."""
    supervisor_pid: int | None
    supervisor_token: str | None
    """The kernel's start time of the supervisor."""
    attempts: int
    """How often its program was started."""
    quick_failures: int
    """How many attempts in a row failed within seconds. It sets the back-off and ends the
    restarts."""
    due_at: int
    """The earliest start: the requested time, the end of a back-off, or the reset of a quota."""
    stop_kind: StopKind | None
    """Why it is being stopped; None: no stop was requested. It decides the final state."""
    stop_reason: str | None
    """The reason of the stop, for people."""
    exit_code: int | None
    """The agent's exit code; None: not known, or ended by a signal."""
    signal: int | None
    """The signal that ended the agent."""
    reason: str | None
    """Why it is in this state: how it ended, or why it was requeued, parked or deferred."""
    attention: Attention | None
    """Why it needs a person; None: it does not."""
    attention_at: int | None
    """When `attention` was last set."""
    dialog: Dialog | None
    """The question that it asks now."""
    screen_rows: int | None
    """The size of its terminal, with `screen_columns`; None: it has no terminal."""
    screen_columns: int | None
    tokens: int | None
    """Tokens used so far, over all attempts; None: not known."""
    cost_micros: int | None
    """Cost so far in millionths of a dollar, over all attempts; None: not known."""
    output_bytes: int
    """Size of the output at the last heartbeat, or at the end."""
    cpu_ms: int | None
    """CPU time of its process tree; None: not measured."""
    peak_bytes: int | None
    """Peak memory of its process tree; None: not measured."""
    created_at: int
    """When it was requested."""
    started_at: int | None
    """When its program was first started."""
    ended_at: int | None
    denials: list[Denial] | None
    """The denied tool calls, by attempt and tool."""

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
    def description(self) -> str:
        """A one-line description: the title, or the command line."""
        return describe_run(self.title, self.command, self.args)

    @property
    def is_live(self) -> bool:
        return self.ended_at is None


def describe_run(title: str | None, command: str, args: Sequence[str]) -> str:
    """Describe a run in one line: its title, or its command line without empty arguments."""
    return title or " ".join(filter(None, [command, *args]))


SESSION_SANDBOX_PREFIX = "session:"


class Launch(msgspec.Struct, frozen=True):
    """The parameters with which a run is started."""

    run_id: str
    host: str | None
    """The machine that must run it; None: any."""
    labels: list[str]
    """Labels that the node must offer."""
    prompt: str | None
    resume_session: str | None
    """The provider's id of the conversation to resume."""
    env: dict[str, str]
    """Environment variables that were given by value."""
    secrets: dict[str, str]
    """Names of environment variables, with references to secrets; never the values."""
    approvals: list[str]
    """Classes of permission prompts that are approved in advance; see `runs/spec.py`."""
    raw: bool
    """Whether the command line is used as given, without options for the agent CLI."""
    interactive: bool
    """Whether it is a conversation at a terminal instead of one prompt."""
    timeout_ms: int | None
    """The time limit of the run."""
    idle_ms: int | None
    """The run is ended after this time without activity."""
    grace_period_ms: int
    """The time between SIGTERM and SIGKILL."""
    max_restarts: int
    budget_micros: int | None
    """The spending limit of this run, in millionths of a dollar."""
    max_output_bytes: int
    """Maximum size of the stored output; the middle is dropped."""
    sandbox: str | None
    """The kind of the sandbox; see `runs/spec.py`."""
    environment: dict[str, Any]
    """The recorded environment of the start: commit, branch, versions, variables."""

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
