"""Tasks: the nodes of a project's dependency graph.

A task is ready when every task it depends on is done or skipped. An agent claims it with a lease
and a fencing token. It is done when the agent has submitted evidence and another agent, a person,
the task's check or the project's policy has accepted that evidence. A run that ends, or a lease
that expires, without a submission never completes a task.
"""

from enum import StrEnum
from typing import Any

import msgspec

from corral.kernel.errors import Invalid
from corral.kernel.states import TransitionTable, allow
from corral.kernel.validation import convert

MAX_FILES = 1_000
MAX_PATH = 1_000
MAX_TITLE = 500


class TaskState(StrEnum):
    PENDING = "pending"  # waits for its dependencies
    READY = "ready"  # all dependencies are satisfied; can be claimed
    RUNNING = "running"  # claimed by an agent that holds the lease
    SUBMITTED = "submitted"  # submitted with evidence; waits for review
    DONE = "done"  # the evidence was accepted
    FAILED = "failed"  # given up with a reason; dependents are blocked
    BLOCKED = "blocked"  # a direct or indirect dependency failed or was cancelled
    PAUSED = "paused"  # cannot be claimed until it is resumed
    SKIPPED = "skipped"  # left out; dependents continue without it
    CANCELLED = "cancelled"  # given up; dependents are blocked


ENDED = (TaskState.DONE, TaskState.FAILED, TaskState.SKIPPED, TaskState.CANCELLED)
SATISFIED = (TaskState.DONE, TaskState.SKIPPED)
WAITING = (TaskState.PENDING, TaskState.READY, TaskState.BLOCKED, TaskState.PAUSED)
# A task that has to be done again becomes pending. The same transaction then promotes it to ready
# or blocks it, depending on its dependencies (see `propagation.apply_consequences`).
TRANSITIONS = TransitionTable(
    "task",
    TaskState,
    create_verb="declare",
    initial=TaskState.PENDING,
    import_states=(
        TaskState.PAUSED,
        TaskState.DONE,
        TaskState.FAILED,
        TaskState.SKIPPED,
        TaskState.CANCELLED,
    ),
    verbs={
        "promote": allow(TaskState.PENDING, to=TaskState.READY),
        # A dependency was added or reopened.
        "wait": allow(TaskState.READY, to=TaskState.PENDING),
        "block": allow(TaskState.PENDING, TaskState.READY, to=TaskState.BLOCKED),
        "unblock": allow(TaskState.BLOCKED, to=TaskState.PENDING),
        "claim": allow(TaskState.READY, to=TaskState.RUNNING),
        "submit": allow(TaskState.RUNNING, to=TaskState.SUBMITTED),
        "accept": allow(TaskState.SUBMITTED, to=TaskState.DONE),
        "reject": allow(TaskState.SUBMITTED, to=TaskState.PENDING),
        # The agent gave the task back, its lease expired, or its run ended without a submission.
        "release": allow(TaskState.RUNNING, to=TaskState.PENDING),
        "fail": allow(TaskState.RUNNING, TaskState.SUBMITTED, to=TaskState.FAILED),
        "retry": allow(TaskState.FAILED, to=TaskState.PENDING),
        "reopen": allow(
            TaskState.DONE, TaskState.SKIPPED, TaskState.CANCELLED, to=TaskState.PENDING
        ),
        "pause": allow(TaskState.PENDING, TaskState.READY, to=TaskState.PAUSED),
        "resume": allow(TaskState.PAUSED, to=TaskState.PENDING),
        "reassign": allow(TaskState.RUNNING, TaskState.SUBMITTED, to=TaskState.PENDING),
        "skip": allow(
            *WAITING,
            TaskState.RUNNING,
            TaskState.SUBMITTED,
            TaskState.FAILED,
            TaskState.CANCELLED,
            to=TaskState.SKIPPED,
        ),
        "cancel": allow(
            *WAITING,
            TaskState.RUNNING,
            TaskState.SUBMITTED,
            TaskState.FAILED,
            to=TaskState.CANCELLED,
        ),
    },
)


class CommandResult(msgspec.Struct, frozen=True):
    """A command and its exit code."""

    command: str
    exit_code: int
    output: str | None = None


class Evidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Proof that a task is done."""

    commits: list[str] = []
    commands: list[CommandResult] = []
    files: list[str] = []
    text: str | None = None
    checks: list[CommandResult] = []
    """Checks that Corral ran. Ignored in what an agent submits."""

    @property
    def is_empty(self) -> bool:
        return not (self.commits or self.commands or self.files or self.text)

    @property
    def all_passed(self) -> bool:
        """Whether there are commands and all of them exited with 0."""
        return bool(self.commands) and all(command.exit_code == 0 for command in self.commands)


class Task(msgspec.Struct, frozen=True):
    """A node of a project's task graph."""

    id: str
    project_id: str
    key: str
    """Its name in the graph, unique among the tasks of the project that are not archived."""
    state: TaskState
    role: str | None
    """The role of the agents that get it as their next task; None: any role."""
    title: str
    description: str | None
    """The instructions for the agent."""
    files: list[str]
    """Paths that it will change, relative to the project's directory. Tasks that share a path do
    not run at the same time."""
    priority: int
    """Tasks with a higher priority are claimed first."""
    check_command: str | None
    """The command that accepts or rejects a submission by its exit code; None: it is reviewed."""
    lead: str | None
    """The mailbox that is notified about the task and may manage it."""
    assignee_id: str | None
    """The only agent that may claim it; None: any agent."""
    agent_id: str | None
    """The agent that claimed it last; None after a release, reassignment, retry or reopening."""
    run_id: str | None
    """The run of that claim: its heartbeats renew the lease, and its end takes the task back."""
    dir: str | None
    """The working directory of the last claim, in which the check runs; None: the project's
    directory."""
    fence: int
    """The fencing token. Each claim and each reassignment increments it."""
    lease_until: int | None
    """End of the claimant's lease while it is running."""
    attempts: int
    """Number of claims since it was declared, submitted, retried, reopened or reassigned. A claim
    that was given back voluntarily does not count."""
    open_dependencies: int
    """Number of dependencies that are neither done nor skipped."""
    failed_dependencies: int
    """Number of dependencies that failed, were cancelled or are blocked themselves."""
    conflicts_with_id: str | None
    """The running task that shares files with it. It is held back until that one stops running."""
    blocked_by_id: str | None
    """The failed or cancelled task that blocks it, directly or indirectly."""
    evidence: Evidence | None
    """The evidence of the last submission, with the results of Corral's own checks."""
    reason: str | None
    """Why it is in this state: the reason of a rejection, a failure or a block, or the reviewer's
    note."""
    check_lease_until: int | None
    """End of the lease of the process that runs the check. An expired one means that it crashed."""
    created_at: int
    created_by: str
    """The actor that declared it."""
    ready_at: int | None
    """When it became ready. It orders claims of equal priority, and a returned task keeps it."""
    started_at: int | None
    """When it was claimed last."""
    submitted_at: int | None
    """When it was submitted last."""
    ended_at: int | None
    archived_at: int | None
    """When it was removed from the lists; None: it is listed."""
    depends_on: list[str] = []
    """Keys of the tasks it depends on."""

    @property
    def owner(self) -> str | None:
        """Id of the agent that claimed the task."""
        return self.agent_id

    @property
    def is_satisfied(self) -> bool:
        """Whether dependents no longer have to wait for this task."""
        return self.state in SATISFIED

    @property
    def is_blocking(self) -> bool:
        """Whether dependents cannot proceed unless a person or agent intervenes."""
        return _is_blocking(self)


class TaskSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The declaration of a task."""

    key: str
    title: str | None = None
    role: str | None = None
    description: str | None = None
    files: list[str] = []
    depends_on: list[str] = []
    priority: int = 0
    check: str | None = None
    agent: str | None = None
    """The only agent that may claim the task."""


class Dependency(msgspec.Struct, frozen=True):
    """An edge of the graph: a task, and the key of a task it depends on."""

    task_id: str
    key: str


class RunningTask(msgspec.Struct, frozen=True):
    """A running task and the files it reserves."""

    id: str
    files: list[str]


class LocatedTask(msgspec.Struct, frozen=True):
    """A task, and the directory of its work on the machine that has it."""

    id: str
    fence: int
    dir: str


class TaskStatus(msgspec.Struct, frozen=True):
    """The columns of a task that decide whether its dependents may proceed."""

    id: str
    key: str
    state: TaskState
    open_dependencies: int
    failed_dependencies: int
    blocked_by_id: str | None
    reason: str | None

    @property
    def is_blocking(self) -> bool:
        """Whether dependents cannot proceed unless a person or agent intervenes."""
        return _is_blocking(self)


def _is_blocking(task: "Task | TaskStatus") -> bool:
    return task.state in (TaskState.FAILED, TaskState.CANCELLED) or (
        task.state in WAITING and task.failed_dependencies > 0
    )


class TaskGraph(msgspec.Struct, frozen=True):
    """A project's tasks, the edges between them, and the critical path of the open tasks."""

    tasks: list[Task]
    edges: list[tuple[str, str]]
    """Pairs of ids: the task, and the task it depends on."""
    critical_path: list[str]
    counts: dict[str, int]


def parse_tasks(data: Any) -> list[TaskSpec]:
    """Convert a list of objects, or `{"tasks": [...]}`, to task declarations.

    Raises Invalid and names the offending field.
    """
    if isinstance(data, dict) and list(data) == ["tasks"]:
        data = data["tasks"]
    if not isinstance(data, list):
        raise Invalid("Invalid tasks: expected a list of objects, each with a key and a title.")
    try:
        return convert(data, list[TaskSpec], from_attributes=True)
    except msgspec.ValidationError as error:
        fields = ", ".join(TaskSpec.__struct_fields__)
        raise Invalid(f"Invalid tasks: {error}. A task has the fields {fields}.") from None


def parse_evidence(data: "Evidence | dict[str, Any] | str | None") -> Evidence:
    """Convert a record, an object or plain text to evidence.

    Raises Invalid when the evidence is empty. `checks` is dropped: only Corral fills it.
    """
    if isinstance(data, str):
        data = {"text": data}
    try:
        evidence = convert(data or {}, Evidence, from_attributes=True)
    except msgspec.ValidationError as error:
        raise Invalid(
            f"Invalid evidence: {error}. Evidence has commits, commands (each with command and "
            "exit_code), files and text."
        ) from None
    if evidence.is_empty:
        raise Invalid(
            "The evidence is empty. Submit commits, commands with their exit statuses, files or a "
            "text.",
            reason="evidence_missing",
        )
    return msgspec.structs.replace(evidence, checks=[])
