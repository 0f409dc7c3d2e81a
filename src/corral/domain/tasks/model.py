"""A task is a node of a project's graph of work.

It is ready when everything that it needs is done or skipped. Whoever takes it holds it by a lease
with a fence; it is done when its doer has submitted evidence and somebody else, a check or the
project's policy has accepted that. Silence is never success.
"""

from enum import StrEnum
from typing import Any

import msgspec

from corral.kernel.errors import Invalid
from corral.kernel.states import Moves, move
from corral.kernel.text import convert


class TaskState(StrEnum):
    PENDING = "pending"  # waits for other tasks
    READY = "ready"  # all that it needs is there; may be taken
    RUNNING = "running"  # somebody does it, by a lease
    SUBMITTED = "submitted"  # its doer says that it is done, with evidence; not accepted yet
    DONE = "done"  # accepted
    FAILED = "failed"  # given up, with a reason; what needs it is blocked
    BLOCKED = "blocked"  # something that it needs, however far away, failed or was cancelled
    PAUSED = "paused"  # somebody does not want it to be taken
    SKIPPED = "skipped"  # not to be done; what needs it goes on without
    CANCELLED = "cancelled"  # not to be done; what needs it is blocked


S = TaskState
ENDED = (S.DONE, S.FAILED, S.SKIPPED, S.CANCELLED)
SATISFIED = (S.DONE, S.SKIPPED)
WAITING = (S.PENDING, S.READY, S.BLOCKED, S.PAUSED)
# What goes back to be done again is pending; in the same transaction it is promoted to ready, or
# blocked, as the tasks that it needs have it.
MOVES = Moves(
    "task",
    TaskState,
    begin="declare",
    initial=S.PENDING,
    imports=(S.PAUSED, S.DONE, S.FAILED, S.SKIPPED, S.CANCELLED),
    verbs={
        "promote": move(S.PENDING, to=S.READY),
        # One that it needs was reopened, or added.
        "wait": move(S.READY, to=S.PENDING),
        "block": move(S.PENDING, S.READY, to=S.BLOCKED),
        "unblock": move(S.BLOCKED, to=S.PENDING),
        "claim": move(S.READY, to=S.RUNNING),
        "submit": move(S.RUNNING, to=S.SUBMITTED),
        "accept": move(S.SUBMITTED, to=S.DONE),
        "reject": move(S.SUBMITTED, to=S.PENDING),
        # Its doer gives it back, or went silent, or its run ended without a submit.
        "release": move(S.RUNNING, to=S.PENDING),
        "fail": move(S.RUNNING, S.SUBMITTED, to=S.FAILED),
        "retry": move(S.FAILED, to=S.PENDING),
        "reopen": move(S.DONE, S.SKIPPED, S.CANCELLED, to=S.PENDING),
        "pause": move(S.PENDING, S.READY, to=S.PAUSED),
        "resume": move(S.PAUSED, to=S.PENDING),
        "reassign": move(S.RUNNING, S.SUBMITTED, to=S.PENDING),
        "skip": move(*WAITING, S.RUNNING, S.SUBMITTED, S.FAILED, S.CANCELLED, to=S.SKIPPED),
        "cancel": move(*WAITING, S.RUNNING, S.SUBMITTED, S.FAILED, to=S.CANCELLED),
    },
)


class Ran(msgspec.Struct, frozen=True):
    """A command that was run, and how it ended."""

    command: str
    exit_code: int
    output: str | None = None


class Evidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What shows that a task is done."""

    commits: list[str] = []
    commands: list[Ran] = []
    files: list[str] = []
    text: str | None = None
    checks: list[Ran] = []
    """What Corral itself ran."""

    @property
    def is_empty(self) -> bool:
        return not (self.commits or self.commands or self.files or self.text)

    @property
    def all_passed(self) -> bool:
        """Whether it names commands, and all of them ended well."""
        return bool(self.commands) and all(ran.exit_code == 0 for ran in self.commands)


class Task(msgspec.Struct, frozen=True):
    id: str
    project_id: str
    key: str
    state: TaskState
    role: str | None
    title: str
    description: str | None
    files: list[str]
    priority: int
    check_command: str | None
    lead: str | None
    assignee_id: str | None
    agent_id: str | None
    run_id: str | None
    dir: str | None
    fence: int
    lease_until: int | None
    attempts: int
    open_needs: int
    broken_needs: int
    held_by: str | None
    cause_id: str | None
    evidence: Evidence | None
    reason: str | None
    check_until: int | None
    created_at: int
    created_by: str
    ready_at: int | None
    started_at: int | None
    submitted_at: int | None
    ended_at: int | None
    archived_at: int | None
    depends_on: list[str] = []
    """The keys of the tasks that it needs."""

    @property
    def owner(self) -> str | None:
        """Whoever has it."""
        return self.agent_id

    @property
    def is_satisfied(self) -> bool:
        """Whether what needs it need not wait for it any more."""
        return self.state in SATISFIED

    @property
    def is_broken(self) -> bool:
        """Whether what needs it can never go on, as things are."""
        return _is_broken(self)


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A task as it is declared."""

    key: str
    title: str | None = None
    role: str | None = None
    description: str | None = None
    files: list[str] = []
    depends_on: list[str] = []
    priority: int = 0
    check: str | None = None
    agent: str | None = None
    """The only agent that may take it."""


class Need(msgspec.Struct, frozen=True):
    """One edge: a task and the key of one that it needs."""

    task_id: str
    key: str


class Busy(msgspec.Struct, frozen=True):
    """A running task, and the files that nobody else should touch meanwhile."""

    id: str
    files: list[str]


class Standing(msgspec.Struct, frozen=True):
    """What of a task decides whether it may go on."""

    id: str
    key: str
    state: TaskState
    open_needs: int
    broken_needs: int
    cause_id: str | None
    reason: str | None

    @property
    def is_broken(self) -> bool:
        """Whether what needs it can never go on, as things are."""
        return _is_broken(self)


def _is_broken(task: "Task | Standing") -> bool:
    return task.state in (S.FAILED, S.CANCELLED) or (
        task.state in WAITING and task.broken_needs > 0
    )


class Graph(msgspec.Struct, frozen=True):
    """A project's graph: tasks, edges by id, and the longest way through what is still open."""

    tasks: list[Task]
    edges: list[tuple[str, str]]
    """(task, what it needs)."""
    critical_path: list[str]
    counts: dict[str, int]


def read_wanted(given: Any) -> list[Wanted]:
    """A list of tasks as people, files and programs write it; Invalid names what is wrong."""
    if isinstance(given, dict) and list(given) == ["tasks"]:
        given = given["tasks"]
    if not isinstance(given, list):
        raise Invalid("Tasks are declared as a list of objects, each with a key and a title.")
    try:
        return convert(given, list[Wanted], from_attributes=True)
    except msgspec.ValidationError as error:
        names = ", ".join(Wanted.__struct_fields__)
        raise Invalid(f"These tasks cannot be: {error}. A task has {names}.") from None


def read_evidence(given: "Evidence | dict[str, Any] | str | None") -> Evidence:
    """Evidence as a record, an object or plain text; Invalid when it shows nothing."""
    if isinstance(given, str):
        given = {"text": given}
    try:
        evidence = convert(given or {}, Evidence, from_attributes=True)
    except msgspec.ValidationError as error:
        raise Invalid(
            f"This evidence cannot be: {error}. It has commits, commands (each with command and "
            "exit_code), files and text."
        ) from None
    if evidence.is_empty:
        raise Invalid(
            "Submit what shows that it is done: commits, commands with their exit codes, files or "
            "a text.",
            reason="evidence_missing",
        )
    return msgspec.structs.replace(evidence, checks=[])
