"""Tools by which agents share work: tasks, delegations, plans, and locks on files."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from corral.domain.tasks.model import Evidence, Ran, Task, Wanted
from corral.kernel.errors import Invalid, NotFound
from corral.mcp.call import Arguments, Call, Told, Writing

# Without a run nobody's heartbeat speaks for an agent that thinks for long.
UNATTENDED_MS = 30 * 60_000
MOST_LISTED = 50

TaskName = Annotated[str, Meta(description="A task's key or id.")]


class Line(msgspec.Struct, kw_only=True):
    """A task in a list."""

    key: str
    state: str
    title: str
    role: str | None
    depends_on: list[str]
    reason: str | None


class Whole(Line, kw_only=True):
    """A task with all that its doer needs to know."""

    id: str
    description: str | None
    files: list[str]
    priority: int
    check: str | None
    evidence: Evidence | None
    lease_until: int | None


def _line(task: Task) -> Line:
    return Line(
        key=task.key,
        state=task.state,
        title=task.title,
        role=task.role,
        depends_on=task.depends_on,
        reason=task.reason,
    )


def _whole(task: Task) -> Whole:
    return Whole(
        **msgspec.structs.asdict(_line(task)),
        id=task.id,
        description=task.description,
        files=task.files,
        priority=task.priority,
        check=task.check_command,
        evidence=task.evidence,
        lease_until=task.lease_until,
    )


def named_task(call: Call, task: str) -> Task:
    """A task of the caller's own project; of others it hears nothing."""
    project = call.caller.project
    found = call.store.tasks.get(task, project=project)
    if found.project_id != project:
        raise NotFound(
            f"There is no task {task!r} in your project; task_list shows all of them.",
            reason="unknown_task",
        )
    return found


# -- looking -----------------------------------------------------------------------------------


class TaskListAsked(Arguments, kw_only=True):
    state: Annotated[
        str | None,
        Meta(
            description="Only those that are pending, ready, running, submitted, done, failed, "
            "blocked, paused, skipped or cancelled."
        ),
    ] = None
    mine: Annotated[bool, Meta(description="Only those that you have or had.")] = False
    after: Annotated[str | None, Meta(description="Go on: the `more` of the last answer.")] = None
    limit: Annotated[int, Meta(ge=1, le=MOST_LISTED)] = 20


class Tasks(Told, kw_only=True):
    tasks: list[Line]
    more: str | None


def task_list(call: Call, asked: TaskListAsked) -> Tasks:
    """The tasks of your project, in the order in which they were declared, with their states and
    what they wait for."""
    page = call.store.tasks.list(
        project=call.caller.project,
        state=asked.state,
        agent=call.caller.name if asked.mine else None,
        after=asked.after,
        limit=asked.limit,
    )
    step = "Take one that is ready with task_claim; task_show tells all about one."
    if not page.items:
        step = "There is none like that; task_add declares new ones."
    return Tasks(next_step=step, tasks=[_line(task) for task in page.items], more=page.next)


class TaskNamed(Arguments, kw_only=True):
    task: TaskName


class TaskShown(Told, kw_only=True):
    task: Whole


def task_show(call: Call, asked: TaskNamed) -> TaskShown:
    """All about one task: what is to be done, which files, what was submitted, why it waits or was
    sent back."""
    task = named_task(call, asked.task)
    return TaskShown(next_step=_STEPS.get(task.state, "Nothing is to be done."), task=_whole(task))


_STEPS = {
    "pending": "It waits for what it depends on.",
    "ready": "task_claim takes it.",
    "running": "Whoever has it ends it with task_submit or task_fail.",
    "submitted": "Somebody other than its doer looks at the evidence, then calls task_judge.",
    "blocked": "Something that it depends on failed; see its reason.",
    "failed": "A lead or a person decides whether it is tried again.",
}


# -- declaring ---------------------------------------------------------------------------------


class TaskAdd(Writing, kw_only=True):
    tasks: Annotated[
        list[Wanted],
        Meta(
            min_length=1,
            max_length=500,
            description="Each with a short unique key, a title and a description that another "
            "agent can work from; perhaps role, files, depends_on (keys), priority, agent.",
        ),
    ]


class TasksAdded(Told, kw_only=True):
    tasks: list[Line]


def task_add(call: Call, asked: TaskAdd) -> TasksAdded | msgspec.Raw:
    """Declare tasks for your project, all or none, in any order. Split work so that each task can
    be done and judged by itself; say by depends_on what must come first. You are told by letter
    how they go."""

    def told(made: list[Task]) -> TasksAdded:
        return TasksAdded(
            next_step="Others take them with task_claim; so can you.",
            tasks=[_line(task) for task in made],
        )

    return call.do(
        "tasks.declare",
        asked,
        told,
        project=call.caller.project,
        tasks=asked.tasks,
        agent=call.caller.name,
    )


# -- doing -------------------------------------------------------------------------------------


class TaskClaim(Writing, kw_only=True):
    task: Annotated[
        str | None, Meta(description="The key of the one you want; without it, the next for you.")
    ] = None
    role: Annotated[str | None, Meta(description="Only a task for this role.")] = None


class TaskTaken(Told, kw_only=True):
    task: Whole | None


def task_claim(call: Call, asked: TaskClaim) -> TaskTaken | msgspec.Raw:
    """Take a task that is ready: nobody else can have it while you do it. Without a key you get the
    most important one that fits your role. Claim before you begin to work."""
    caller = call.caller

    def told(task: Task | None) -> TaskTaken:
        if task is None:
            step = "Nothing is ready for you; read inbox, or look again later (timer_set)."
            return TaskTaken(next_step=step, task=None)
        step = "Lock the files you will change, do it, then task_submit with evidence."
        if caller.run is None:
            step += " Call progress now and then: after half an hour of silence others get it."
        return TaskTaken(next_step=step, task=_whole(task))

    return call.do(
        "tasks.claim",
        asked,
        told,
        project=caller.project,
        agent=caller.name,
        key=named_task(call, asked.task).id if asked.task else None,
        role=asked.role,
        run=caller.run,
        lease_ms=None if caller.run else UNATTENDED_MS,
    )


class TaskSubmit(Writing, kw_only=True):
    task: TaskName
    text: Annotated[str | None, Meta(description="What you did, for whoever judges it.")] = None
    commits: Annotated[list[str], Meta(description="Hashes of your commits.")] = msgspec.field(
        default_factory=list
    )
    commands: Annotated[
        list[Ran],
        Meta(description="Commands that show it, with their exit codes; tests above all."),
    ] = msgspec.field(default_factory=list)
    files: list[str] = msgspec.field(default_factory=list)


class TaskMoved(Told, kw_only=True):
    key: str
    state: str
    reason: str | None


def task_submit(call: Call, asked: TaskSubmit) -> TaskMoved | msgspec.Raw:
    """Say that your task is done, with evidence: commits, commands with exit codes, files, a text.
    It counts as done when somebody else, a check or the project's rules have accepted it."""
    evidence = Evidence(asked.commits, asked.commands, asked.files, asked.text)

    def told(task: Task) -> TaskMoved:
        step = "It is accepted. Release your locks, then take the next with task_claim."
        if task.state != "done":
            step = (
                "It waits to be judged; you get a letter if it is sent back. Release your locks "
                "and take the next with task_claim."
            )
        return _moved(task, step)

    return call.do(
        "tasks.submit",
        asked,
        told,
        task=named_task(call, asked.task).id,
        evidence=evidence,
        agent=call.caller.name,
    )


def _moved(task: Task, step: str) -> TaskMoved:
    return TaskMoved(next_step=step, key=task.key, state=task.state, reason=task.reason)


class TaskFail(Writing, kw_only=True):
    task: TaskName
    reason: Annotated[str, Meta(min_length=1)]
    give_back: Annotated[
        bool, Meta(description="True: others may try it. False: it cannot be done at all.")
    ] = False


def task_fail(call: Call, asked: TaskFail) -> TaskMoved | msgspec.Raw:
    """Say that you cannot do your task, and why. What depends on it is blocked, and its lead is
    told; with give_back it is free for another agent instead."""
    step = "Release your locks; take another with task_claim."
    return call.do(
        "tasks.release" if asked.give_back else "tasks.fail",
        asked,
        lambda task: _moved(task, step),
        task=named_task(call, asked.task).id,
        reason=asked.reason,
        agent=call.caller.name,
    )


class TaskJudge(Writing, kw_only=True):
    task: TaskName
    accept: bool
    words: Annotated[
        str | None, Meta(description="A note; when you send it back, what is to be done better.")
    ] = None


def task_judge(call: Call, asked: TaskJudge) -> TaskMoved | msgspec.Raw:
    """Accept what another agent submitted, or send it back with a reason. Look at the evidence
    first (task_show), and at the work itself. You cannot judge your own."""
    who = {"task": named_task(call, asked.task).id, "agent": call.caller.name}
    if asked.accept:
        step = "It is done; what waited for it may go on."
        return call.do("tasks.accept", asked, lambda t: _moved(t, step), note=asked.words, **who)
    if not asked.words:
        raise Invalid(
            "Say in `words` what is to be done better, so that its doer can.",
            reason="feedback_missing",
        )
    step = "Its doer was told, and it can be taken again."
    return call.do("tasks.reject", asked, lambda t: _moved(t, step), reason=asked.words, **who)


class ProgressSaid(Writing, kw_only=True):
    summary: Annotated[str, Meta(min_length=1, description="One or two sentences.")]
    percent: Annotated[int, Meta(ge=0, le=100)] | None = None
    task: Annotated[str | None, Meta(description="The key of the task it is about.")] = None


class ProgressKept(Told, kw_only=True):
    summary: str
    percent: int | None


def progress(call: Call, asked: ProgressSaid) -> ProgressKept | msgspec.Raw:
    """Say how far you are, for those who wait for you. It also keeps your task yours for longer.
    It is no evidence: a task is done by task_submit."""
    task = named_task(call, asked.task) if asked.task else None
    if task is not None and task.state == "running":
        lease_ms = None if call.caller.run else UNATTENDED_MS
        call.store.tasks.renew(task.id, agent=call.caller.name, lease_ms=lease_ms)

    def told(said: Any) -> ProgressKept:
        return ProgressKept(next_step="Go on.", summary=said.summary, percent=said.percent)

    return call.do(
        "progress.report",
        asked,
        told,
        summary=asked.summary,
        agent=call.caller.name,
        percent=asked.percent,
        task=task.id if task else None,
        run=call.caller.run,
        project=call.caller.project_id,
    )


class StepSaid(msgspec.Struct, forbid_unknown_fields=True):
    content: str
    status: Literal["pending", "in_progress", "completed"] = "pending"


class PlanSaid(Writing, kw_only=True):
    steps: Annotated[list[StepSaid], Meta(min_length=1, max_length=200)]


class PlanKept(Told, kw_only=True):
    steps: int


def plan(call: Call, asked: PlanSaid) -> PlanKept | msgspec.Raw:
    """Publish what you are going to do, step by step, in place of your last plan; others and your
    next run can see it."""
    return call.do(
        "plans.set",
        asked,
        lambda kept: PlanKept(next_step="Go on with it.", steps=len(kept.entries)),
        steps=asked.steps,
        agent=call.caller.name,
        run=call.caller.run,
        project_id=call.caller.project_id,
    )
