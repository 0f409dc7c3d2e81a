"""Tools: task_list, task_show, task_add, task_claim, task_submit, task_fail, task_review."""

from typing import Annotated

import msgspec
from msgspec import Meta

from corral.domain.tasks.model import CommandResult, Evidence, Task, TaskSpec
from corral.kernel.errors import Invalid, NotFound
from corral.mcp.call import ToolArguments, ToolCall, ToolResult, WriteArguments

# Without a run there is no heartbeat that renews the lease while the agent thinks.
LEASE_WITHOUT_RUN_MS = 30 * 60_000
MAX_LISTED = 50

TaskName = Annotated[str, Meta(description="Key or id of a task.")]


class TaskSummary(msgspec.Struct, kw_only=True):
    """A task in a list."""

    key: str
    state: str
    title: str
    role: str | None
    depends_on: list[str]
    reason: str | None


class TaskDetail(TaskSummary, kw_only=True):
    """A task with everything that the agent doing it needs."""

    id: str
    description: str | None
    files: list[str]
    priority: int
    check: str | None
    evidence: Evidence | None
    lease_until: int | None


def _summary(task: Task) -> TaskSummary:
    return TaskSummary(
        key=task.key,
        state=task.state,
        title=task.title,
        role=task.role,
        depends_on=task.depends_on,
        reason=task.reason,
    )


def _detail(task: Task) -> TaskDetail:
    return TaskDetail(
        **msgspec.structs.asdict(_summary(task)),
        id=task.id,
        description=task.description,
        files=task.files,
        priority=task.priority,
        check=task.check_command,
        evidence=task.evidence,
        lease_until=task.lease_until,
    )


def find_task(call: ToolCall, name: str) -> Task:
    """Return a task of the caller's project; raises NotFound also for tasks of other projects."""
    project = call.caller.project
    task = call.store.tasks.get(name, project=project)
    if task.project_id != project:
        raise NotFound(
            f"No task {name!r} in your project. List its tasks with task_list.",
            reason="unknown_task",
        )
    return task


# -- read --------------------------------------------------------------------------------------


class TaskListArguments(ToolArguments, kw_only=True):
    state: Annotated[
        str | None,
        Meta(
            description="Only tasks in this state: pending, ready, running, submitted, done, "
            "failed, blocked, paused, skipped or cancelled."
        ),
    ] = None
    mine: Annotated[bool, Meta(description="Only tasks that you have or had.")] = False
    after: Annotated[
        str | None, Meta(description="Next page: the `more` of the previous result.")
    ] = None
    limit: Annotated[int, Meta(ge=1, le=MAX_LISTED)] = 20


class TaskListResult(ToolResult, kw_only=True):
    tasks: list[TaskSummary]
    more: str | None


def list_tasks(call: ToolCall, arguments: TaskListArguments) -> TaskListResult:
    """List the tasks of your project in the order of their declaration, with states and
    dependencies."""
    page = call.store.tasks.list(
        project=call.caller.project,
        state=arguments.state,
        agent=call.caller.name if arguments.mine else None,
        after=arguments.after,
        limit=arguments.limit,
    )
    step = "Claim a ready task with task_claim; read the details with task_show."
    if not page.items:
        step = "No matching tasks. Declare new ones with task_add."
    return TaskListResult(
        next_step=step, tasks=[_summary(task) for task in page.items], more=page.next
    )


class TaskShowArguments(ToolArguments, kw_only=True):
    task: TaskName


class TaskShowResult(ToolResult, kw_only=True):
    task: TaskDetail


def show_task(call: ToolCall, arguments: TaskShowArguments) -> TaskShowResult:
    """Show one task: description, files, submitted evidence, and why it waits or was rejected."""
    task = find_task(call, arguments.task)
    step = _NEXT_STEPS.get(task.state, "Nothing to do for this task.")
    return TaskShowResult(next_step=step, task=_detail(task))


_NEXT_STEPS = {
    "pending": "Waiting for its dependencies.",
    "ready": "Claim it with task_claim.",
    "running": "Its agent finishes it with task_submit or task_fail.",
    "submitted": "Another agent or a person reviews the evidence, then calls task_review.",
    "blocked": "A dependency failed; see reason.",
    "failed": "Its lead or a person decides whether to retry it.",
}


# -- declare -----------------------------------------------------------------------------------


class TaskAddArguments(WriteArguments, kw_only=True):
    tasks: Annotated[
        list[TaskSpec],
        Meta(
            min_length=1,
            max_length=500,
            description="Each with a short unique key, a title, and a description that another "
            "agent can work from; optional: role, files, depends_on (keys), priority, agent.",
        ),
    ]


class TaskAddResult(ToolResult, kw_only=True):
    tasks: list[TaskSummary]


def add_task(call: ToolCall, arguments: TaskAddArguments) -> TaskAddResult | msgspec.Raw:
    """Declare tasks of your project, all or none, in any order. Split work so that each task can be
    done and reviewed by itself; name prerequisites in depends_on. You get messages about their
    progress."""

    def to_result(tasks: list[Task]) -> TaskAddResult:
        return TaskAddResult(
            next_step="Declared. Any agent can claim them with task_claim, including you.",
            tasks=[_summary(task) for task in tasks],
        )

    return call.perform(
        "tasks.declare",
        arguments,
        to_result,
        project=call.caller.project,
        tasks=arguments.tasks,
        agent=call.caller.name,
    )


# -- do ----------------------------------------------------------------------------------------


class TaskClaimArguments(WriteArguments, kw_only=True):
    task: Annotated[
        str | None, Meta(description="Key of the task. Omit it to get the next one for you.")
    ] = None
    role: Annotated[str | None, Meta(description="Only a task for this role.")] = None


class TaskClaimResult(ToolResult, kw_only=True):
    task: TaskDetail | None


def claim_task(call: ToolCall, arguments: TaskClaimArguments) -> TaskClaimResult | msgspec.Raw:
    """Claim a ready task before you work on it: no other agent can claim it meanwhile. Without a
    key you get the task with the highest priority for your role."""
    caller = call.caller

    def to_result(task: Task | None) -> TaskClaimResult:
        if task is None:
            step = "No task is ready for you. Read inbox, or check again later (timer_set)."
            return TaskClaimResult(next_step=step, task=None)
        step = "Lock the files you will change, do the work, then task_submit with evidence."
        if caller.run is None:
            step += " Call progress at least every 30 minutes, or the claim expires."
        return TaskClaimResult(next_step=step, task=_detail(task))

    return call.perform(
        "tasks.claim",
        arguments,
        to_result,
        project=caller.project,
        agent=caller.name,
        key=find_task(call, arguments.task).id if arguments.task else None,
        role=arguments.role,
        run=caller.run,
        lease_ms=None if caller.run else LEASE_WITHOUT_RUN_MS,
    )


class TaskSubmitArguments(WriteArguments, kw_only=True):
    task: TaskName
    text: Annotated[str | None, Meta(description="What you did, for the reviewer.")] = None
    commits: Annotated[list[str], Meta(description="Hashes of your commits.")] = msgspec.field(
        default_factory=list
    )
    commands: Annotated[
        list[CommandResult],
        Meta(description="Commands that prove it, with exit statuses; above all tests."),
    ] = msgspec.field(default_factory=list)
    files: list[str] = msgspec.field(default_factory=list)


class TaskStateResult(ToolResult, kw_only=True):
    key: str
    state: str
    reason: str | None


def submit_task(call: ToolCall, arguments: TaskSubmitArguments) -> TaskStateResult | msgspec.Raw:
    """Submit your finished task with evidence: commits, commands with exit statuses, files, a text.
    The task is done once a reviewer, a check or the project's rules accept it."""
    evidence = Evidence(arguments.commits, arguments.commands, arguments.files, arguments.text)

    def to_result(task: Task) -> TaskStateResult:
        step = "Accepted. Release your locks, then claim the next task with task_claim."
        if task.state != "done":
            step = (
                "Waiting for review; you get a message if it is rejected. Release your locks and "
                "claim the next task with task_claim."
            )
        return _state_result(task, step)

    return call.perform(
        "tasks.submit",
        arguments,
        to_result,
        task=find_task(call, arguments.task).id,
        evidence=evidence,
        agent=call.caller.name,
    )


def _state_result(task: Task, step: str) -> TaskStateResult:
    return TaskStateResult(next_step=step, key=task.key, state=task.state, reason=task.reason)


class TaskFailArguments(WriteArguments, kw_only=True):
    task: TaskName
    reason: Annotated[str, Meta(min_length=1)]
    release: Annotated[
        bool, Meta(description="true: another agent may try it. false: it cannot be done at all.")
    ] = False


def fail_task(call: ToolCall, arguments: TaskFailArguments) -> TaskStateResult | msgspec.Raw:
    """Report that you cannot do your task, and why. Tasks that depend on it are blocked, and its
    lead is notified. With release it becomes ready for another agent instead."""
    step = "Release your locks, then claim another task with task_claim."
    return call.perform(
        "tasks.release" if arguments.release else "tasks.fail",
        arguments,
        lambda task: _state_result(task, step),
        task=find_task(call, arguments.task).id,
        reason=arguments.reason,
        agent=call.caller.name,
    )


# -- review ------------------------------------------------------------------------------------


class TaskReviewArguments(WriteArguments, kw_only=True):
    task: TaskName
    accept: bool
    comment: Annotated[
        str | None, Meta(description="A comment. When rejecting: what must be improved.")
    ] = None


def review_task(call: ToolCall, arguments: TaskReviewArguments) -> TaskStateResult | msgspec.Raw:
    """Accept a task that another agent submitted, or reject it with a reason. Review the evidence
    (task_show) and the work itself first. You cannot review your own task."""
    parameters = {"task": find_task(call, arguments.task).id, "agent": call.caller.name}
    if arguments.accept:
        step = "Accepted. Tasks that depend on it can start."
        return call.perform(
            "tasks.accept",
            arguments,
            lambda task: _state_result(task, step),
            note=arguments.comment,
            **parameters,
        )
    if not arguments.comment:
        raise Invalid(
            "To reject a task, state in `comment` what must be improved.", reason="feedback_missing"
        )
    step = "Rejected. Its agent was notified, and the task can be claimed again."
    return call.perform(
        "tasks.reject",
        arguments,
        lambda task: _state_result(task, step),
        reason=arguments.comment,
        **parameters,
    )
