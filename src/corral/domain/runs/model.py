"""A run is one process of an agent CLI, from queued to exit.

A keeper, a small process of its own, holds the run by a lease with a fence. Whatever is shown of a
run was said by its keeper (`seen_at` tells when), by the process that waited for the agent, or by a
recovery that proved it.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from corral.kernel.states import Moves, move
from corral.kernel.text import abridged


class RunState(StrEnum):
    QUEUED = "queued"  # asked for; starts when it is due and there is room
    STARTING = "starting"  # its process exists and is identified, and has not begun yet
    RUNNING = "running"  # its process was seen, or its keeper's lease has not run out
    STOPPING = "stopping"  # it was asked to end, and is given its time
    COMPLETED = "completed"  # ended by itself, and well
    FAILED = "failed"  # ended by itself with an exit code that is not 0, or could not be started
    CRASHED = "crashed"  # ended by a signal that nobody here sent, or vanished
    CANCELLED = "cancelled"  # ended because somebody stopped it, or its budget was spent
    TIMED_OUT = "timed_out"  # ended because its time was over
    INTERRUPTED = "interrupted"  # the machine went away under it


S = RunState
LIVE = (S.QUEUED, S.STARTING, S.RUNNING, S.STOPPING)
ACTIVE = (S.STARTING, S.RUNNING, S.STOPPING)
MOVES = Moves(
    "run",
    RunState,
    begin="queue",
    initial=S.QUEUED,
    imports=(S.COMPLETED, S.FAILED, S.CRASHED, S.CANCELLED, S.TIMED_OUT, S.INTERRUPTED),
    verbs={
        # A keeper takes it, with the identity of the process that will become the agent.
        "start": move(S.QUEUED, to=S.STARTING),
        "launch": move(S.STARTING, to=S.RUNNING),
        # A process that Corral did not start is taken into the record.
        "adopt": move(S.QUEUED, to=S.RUNNING),
        # Another attempt of the same run, by its restart policy.
        "restart": move(S.STARTING, S.RUNNING, to=S.STARTING),
        # It waits for its provider's quota, or for another keeper, and goes on later.
        "requeue": move(S.STARTING, S.RUNNING, to=S.QUEUED),
        "stop": move(S.STARTING, S.RUNNING, to=S.STOPPING),
        "complete": move(S.STARTING, S.RUNNING, to=S.COMPLETED),
        "fail": move(S.QUEUED, S.STARTING, S.RUNNING, to=S.FAILED),
        "crash": move(*ACTIVE, to=S.CRASHED),
        "cancel": move(*LIVE, to=S.CANCELLED),
        "time_out": move(*ACTIVE, to=S.TIMED_OUT),
        "interrupt": move(*ACTIVE, to=S.INTERRUPTED),
    },
)


class Mode(StrEnum):
    PIPE = "pipe"  # input and output are files or pipes
    PTY = "pty"  # it has a terminal of its own
    ACP = "acp"  # it speaks the Agent Client Protocol
    RECORDED = "recorded"  # Corral did not start it


class Stop(StrEnum):
    """Why a run is being stopped, as far as that decides how its end is called."""

    ASKED = "asked"  # somebody wants it, for whatever reason they give
    TIMED_OUT = "timed_out"  # its time was over
    INTERRUPTED = "interrupted"  # its keeper was told to end
    OVER_BUDGET = "over_budget"  # its budget was spent


class Attention(StrEnum):
    NEEDS_INPUT = "needs_input"  # it asks, and nobody has answered
    STUCK = "stuck"  # it says that it works, and nothing comes
    PARKED = "parked"  # it waits for its provider's quota


class Dialog(msgspec.Struct, frozen=True):
    """A question that a run asks at its terminal or by its protocol."""

    id: str
    """A hash of the question and its subject, so that an answer reaches no other dialog."""
    question: str
    options: list[str]
    """The possible answers; empty: it can only be answered at the terminal."""
    kind: str | None = None
    """The class or tool of the request: `edit`, `run`, `trust` …"""
    about: list[str] = []
    """The subject, line by line."""


MOST_OPTIONS = 12
MOST_ABOUT = 20  # lines
LONGEST_LINE = 200


def dialog_of(
    question: str,
    options: Sequence[str],
    *,
    kind: str | None = None,
    about: Sequence[str] = (),
    key: str = "",
) -> Dialog:
    """Create a dialog, shortened: an agent may have written any amount of text into it.

    `key` distinguishes two dialogs that look the same.
    """
    from hashlib import sha256  # loads OpenSSL: only the supervisor needs it

    digest = sha256("\0".join((key, question, *options, "", *about)).encode())
    return Dialog(
        digest.hexdigest()[:12],
        abridged(question, LONGEST_LINE),
        [abridged(option, LONGEST_LINE) for option in options[:MOST_OPTIONS]],
        None if kind is None else abridged(kind, LONGEST_LINE),
        [abridged(line, LONGEST_LINE) for line in about[:MOST_ABOUT]],
    )


TIMES = "\N{MULTIPLICATION SIGN}"


class Denial(msgspec.Struct, frozen=True):
    """How often a tool was denied in one attempt of a run."""

    attempt: int
    tool: str
    count: int


def count_denied(denials: "list[Denial] | None") -> dict[str, int]:
    """Count the denials of each tool, most frequent first."""
    counts: dict[str, int] = {}
    for denial in denials or ():
        counts[denial.tool] = counts.get(denial.tool, 0) + denial.count
    return dict(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])))


def describe_denied(denials: "list[Denial] | None") -> str | None:
    """How many calls were denied, and of which tools; None when none were."""
    counts = count_denied(denials)
    if not counts:
        return None
    tools = ", ".join(f"{tool} {TIMES}{n}" if n > 1 else tool for tool, n in counts.items())
    return f"{sum(counts.values())} denied ({tools})"


# Parts of tool names, by the approval that allows these tools.
_APPROVED_BY = {
    "edit": ("edit", "write", "create", "patch", "replace"),
    "run": ("bash", "shell", "exec", "command", "terminal"),
}


def approvals_for(tools: Iterable[str]) -> list[str]:
    """Return the classes to approve so that these tools are allowed."""
    wanted = set()
    for tool in tools:
        found = [
            name
            for name, parts in _APPROVED_BY.items()
            if any(part in tool.lower() for part in parts)
        ]
        wanted.add(found[0] if found else "all")
    return ["all"] if "all" in wanted else sorted(wanted)


def approval_options(tools: Iterable[str]) -> str:
    """Return the options of a command that approve these tools."""
    return " ".join(f"--yes {name}" for name in approvals_for(tools))


class Run(msgspec.Struct, frozen=True):
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
    mode: Mode
    command: str
    args: list[str]
    cwd: str
    owner: str | None
    fence: int
    lease_until: int | None
    seen_at: int | None
    node_id: str | None
    host: str | None
    boot_id: str | None
    pid: int | None
    start_token: str | None
    keeper_pid: int | None
    keeper_token: str | None
    attempts: int
    quick_failures: int
    due_at: int
    stop_kind: Stop | None
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
        """How often each tool was denied, over all attempts."""
        return count_denied(self.denials)

    @property
    def denied_text(self) -> str | None:
        """How many calls were denied, and of which tools; None when none were."""
        return describe_denied(self.denials)

    @property
    def retry_command(self) -> str | None:
        """The command that retries with the missing approvals."""
        if not self.denials or self.session_id is None or self.is_live:
            return None
        approvals = approval_options(self.denied)
        return f'corral resume {self.id} {approvals} "It is approved now; try again."'

    @property
    def what(self) -> str:
        """What it does, in a line: its title, or its command line."""
        return self.title or " ".join(filter(None, [self.command, *self.args]))

    @property
    def is_live(self) -> bool:
        return self.ended_at is None


class Launch(msgspec.Struct, frozen=True):
    """What a run was started with."""

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
    grace_ms: int
    restarts: int
    budget_micros: int | None
    output_cap: int
    sandbox: str | None
    environment: dict[str, Any]

    @property
    def is_boxed(self) -> bool:
        """Whether its agent is without network, and spoken to by the two files of its session."""
        return (self.sandbox or "").startswith("boxed:")


class Sample(msgspec.Struct, frozen=True):
    """What a run's whole process tree used at one moment."""

    at: int
    cpu_ms: int
    memory_bytes: int
    processes: int


class Found(msgspec.Struct, frozen=True):
    """What a recovery found out about one run."""

    run_id: str
    was: RunState
    state: RunState
    reason: str
