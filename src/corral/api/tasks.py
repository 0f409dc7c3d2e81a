"""Operations of `store.tasks` and `store.delegations`."""

import builtins
from typing import TYPE_CHECKING

from corral.api import agent_rules as rules
from corral.api.operation import Resource, operation, read, write
from corral.api.policy import USES_FILES
from corral.domain.delegations import ops as delegations
from corral.domain.tasks import declare as tasks_declare
from corral.domain.tasks import delegation, lifecycle, management, queries, retention, review
from corral.domain.tasks.model import Task

if TYPE_CHECKING:
    from corral.services.tasks.cleanup import TaskLeftover


class Tasks(Resource):
    """Tasks: the dependency graph of work in each project.

    An agent claims a ready task under a lease, submits evidence, and a person, a lead or a check
    accepts it.
    """

    noun = "task"
    subjects = ("task",)

    declare = write(tasks_declare.declare, actor=("agent", "lead"), agent=rules.as_lead)
    add = write(tasks_declare.add_task, actor=("agent", "lead"), agent=rules.as_lead)
    apply = write(tasks_declare.apply_template, actor=("agent", "lead"), agent=rules.as_lead)
    templates = read(tasks_declare.list_templates)
    get = read(queries.get, agent=rules.allow)
    list = read(queries.list_tasks, agent=rules.allow)
    graph = read(queries.get_graph, agent=rules.allow)
    counts = read(queries.count_by_state, agent=rules.allow)

    claim = write(lifecycle.claim, actor=("agent",), agent=rules.as_agent, objects={"run": "runs"})
    renew = write(lifecycle.renew, repeatable=True, actor=("agent",), agent=rules.as_agent)
    submit = write(lifecycle.submit, repeatable=True, actor=("agent",), agent=rules.as_agent)
    fail = write(lifecycle.fail, actor=("agent",), agent=rules.as_agent)
    release = write(lifecycle.release, actor=("agent",), agent=rules.as_agent)
    accept = write(
        review.accept, repeatable=True, actor=("agent",), decision=True, agent=rules.as_agent
    )
    reject = write(review.reject, actor=("agent",), decision=True, agent=rules.as_agent)

    retry = write(management.retry, actor=("agent",), agent=rules.as_agent)
    reopen = write(management.reopen, actor=("agent",), agent=rules.as_agent)
    pause = write(management.pause, actor=("agent",), agent=rules.as_agent)
    resume = write(management.resume, actor=("agent",), agent=rules.as_agent)
    skip = write(management.skip, actor=("agent",), agent=rules.as_agent)
    cancel = write(management.cancel, actor=("agent",), agent=rules.as_agent)
    reassign = write(management.reassign, actor=("agent",), agent=rules.as_agent)
    depend = write(
        management.depend,
        repeatable=True,
        actor=("agent",),
        agent=rules.as_agent,
        objects={"on": "tasks"},
    )
    undepend = write(
        management.undepend,
        repeatable=True,
        actor=("agent",),
        agent=rules.as_agent,
        objects={"on": "tasks"},
    )
    edit = write(management.edit, repeatable=True, actor=("agent",), agent=rules.as_agent)
    archive = write(retention.archive, repeatable=True, actor=("agent",))
    archive_ended = write(retention.archive_ended, repeatable=True)
    delegate = write(
        delegation.delegate,
        actor=("agent",),
        agent=rules.as_agent,
        objects={"parent": "delegations"},
    )

    next_lease_end = read(lifecycle.next_lease_end, mode="one")
    _release_due = write(lifecycle.release_due)

    @operation()
    def release_due(self) -> "builtins.list[Task]":
        """Release the tasks whose lease has expired, and notify their leads once. Idempotent."""
        released: builtins.list[Task] = []
        while batch := self._release_due():
            released += batch
        return released

    @operation(local=USES_FILES)
    def clean(self, project: str, *, confirm: bool = False) -> "builtins.list[TaskLeftover]":
        """List the worktrees of a project's tasks on this machine, and remove unused ones.

        Removes only worktrees of ended tasks that contain nothing unmerged or uncommitted, with
        their branches. Without `confirm`, removes nothing and returns what would be done.
        """
        from corral.services.tasks import cleanup

        return cleanup.clean(self._database, project, confirm=confirm)

    @operation()
    def check(self, task: str) -> Task:
        """Run the check command of a submitted task, and accept or reject the task by its result.

        Raises Refused when the directory of the task is not on this machine.
        """
        from corral.services.tasks import checks

        return checks.check(self._database, task)

    @operation()
    def check_next(self) -> Task | None:
        """Run the oldest pending check of this machine; returns None when there is none.

        A check whose directory is not on this machine is left to the other machines.
        """
        from corral.services.tasks import checks

        return checks.check_next(self._database)


class Delegations(Resource):
    """Delegations: a task or a text that one agent handed to another, with its result."""

    noun = "delegation"
    subjects = ("delegation",)

    delegate = write(
        delegations.delegate,
        actor=("agent", "sender"),
        agent=rules.as_delegator,
        objects={"parent": "delegations"},
    )
    finish = write(delegations.finish, repeatable=True, actor=("agent",), agent=rules.as_agent)
    fail = write(delegations.fail, actor=("agent",), agent=rules.as_agent)
    cancel = write(delegation.cancel_delegation, actor=("agent",), agent=rules.as_agent)
    get = read(delegations.get, agent=rules.allow)
    list = read(
        delegations.list_delegations, agent=rules.as_recipient, objects={"parent": "delegations"}
    )
    expire_due = write(delegation.expire_delegations)
    next_deadline = read(delegations.next_deadline, mode="one")
