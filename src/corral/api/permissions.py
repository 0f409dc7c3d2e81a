"""Permissions of a process inside a run: it acts as the run's agent, never as a person.

`corral.open` returns a `RunStore` to such a process. Its executor checks each call, so the same
rules apply to the command line, the tools, hooks and an agent's own program:

* an operation that is declared with `people_only` raises Refused, unless the setting
  `runs.allowed_operations` grants it; so does a change by an internal or private operation, which
  checks nothing itself, unless `INTERNAL_CHANGES_IN_RUN` has it;
* an argument that names the actor (`actor`) must be the run's agent;
* an operation with a rule (`in_run`) may be called only for the run's own objects.

Tokens of agents over HTTP have stricter rules: `api/agent_rules.py`.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NoReturn, ParamSpec, TypeVar

import msgspec

from corral.api import Corral
from corral.api.executor import LocalExecutor
from corral.api.operation import Operation, Resource
from corral.api.policy import OperationPolicy, RunRule
from corral.db.tx import Tx
from corral.kernel.errors import Refused
from corral.kernel.identity import RunIdentity, identify_actor

P = ParamSpec("P")
R = TypeVar("R")

GRANT_SETTING = "runs.allowed_operations"

INTERNAL_CHANGES_IN_RUN = frozenset(
    {
        "internal.alerts.start_delivery",  # `corral run`, when the program could not be started
        "internal.chat.finish_turns",  # `corral chat`, as the two below
        "internal.chat.run_upkeep",
        "internal.chat.start_turns",
        "internal.mail.expire_due",  # `corral schedule fire`
    }
)
"""The internal operations that commands use inside a run. They choose themselves what they change,
so any process may call them at any time."""

CallArguments = dict[str, Any]
Check = Callable[[CallArguments], None]
"""Raises Refused, or returns; it may replace arguments."""


class RunStore(Corral):
    """An open store, as a process inside a run sees it."""

    identity: RunIdentity

    def __init__(self, store: Corral, identity: RunIdentity) -> None:
        super().__init__(RunExecutor(store, identity))
        self.identity = identity

    def as_actor(self, actor: str, run_id: str | None = None) -> NoReturn:
        raise self._not_a_person("act as another actor")

    def act_as(self, actor: str) -> NoReturn:
        raise self._not_a_person("act as another actor")

    def transaction(self) -> AbstractContextManager[Tx]:
        raise self._not_a_person("open a transaction")

    def redact_known_values_only(self) -> NoReturn:
        raise self._not_a_person("turn off the detection of secrets")

    def as_service(self, actor: str) -> Corral:
        """Return the store for Corral's own work, after the run's request was accepted."""
        self._database.actor, self._database.run_id = actor, None
        return Corral(LocalExecutor(self._database, identify_actor(actor)))

    def _not_a_person(self, what: str) -> Refused:
        return Refused(f"{_describe_process(self.identity)} cannot {what}.", run=self.identity.run)


class RunExecutor(LocalExecutor):
    """Checks each call of a process inside a run, and then performs it.

    A workflow gets an unchecked resource, so the operations that it calls are not checked again.
    """

    def __init__(self, store: Corral, identity: RunIdentity) -> None:
        """`store` is the same store without checks."""
        super().__init__(store._database, identity.caller)
        self.store = store
        self.identity = identity
        self.writable_sessions: defaultdict[str, set[str]] = defaultdict(set)
        """The sessions that the run may change, by operation: each is checked once."""

    def bind(self, resource: Resource, operation: Operation[P, R]) -> Callable[P, R]:
        method: Callable[..., R] = super().bind(self._without_checks(resource), operation)
        checks = self._find_checks(resource, operation)
        if not checks:
            return method

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return method(**_apply(checks, operation.bind_arguments(args, kwargs)))

        return operation.describe(call)

    def authorize(
        self, resource: Resource, operation: Operation[..., Any], arguments: Mapping[str, Any]
    ) -> tuple[Resource, CallArguments]:
        checks = self._find_checks(resource, operation)
        return self._without_checks(resource), _apply(checks, dict(arguments))

    def _without_checks(self, resource: Resource) -> Resource:
        return type(resource)(self.store._executor, resource._attribute)

    def _find_checks(self, resource: Resource, operation: Operation[..., Any]) -> list[Check]:
        policy = operation.policy
        is_internal = type(resource).__module__.startswith("corral.api.internal.")
        prefix = "internal." if is_internal else ""
        name = f"{prefix}{resource._attribute}.{operation.name}"
        checks: list[Check] = []
        if policy.in_run is not None:
            checks.append(partial(_RUN_RULES[policy.in_run], self, name))
        if policy.people_only or _is_closed_to_runs(name, operation):
            checks.append(partial(_require_grant, self, name))
        elif policy.actor:
            checks.append(partial(_act_as_agent, self.identity, name, policy))
        return checks


def _is_closed_to_runs(name: str, operation: Operation[..., Any]) -> bool:
    """Return whether an operation is a change that only Corral's own code may make."""
    is_internal = name.startswith("internal.") or operation.name.startswith("_")
    changes = operation.kind != "read" and not operation.policy.reads
    return is_internal and changes and name not in INTERNAL_CHANGES_IN_RUN


def _apply(checks: list[Check], arguments: CallArguments) -> CallArguments:
    for check in checks:
        check(arguments)
    return arguments


def _require_grant(executor: RunExecutor, name: str, arguments: CallArguments) -> None:
    """Allow an operation only if the setting grants it to the agent, its project or all runs."""
    if name not in _list_granted_operations(executor):
        identity = executor.identity
        scope = f" --agent {identity.agent}" if identity.agent else ""
        raise Refused(
            f"{_describe_process(identity)} may not call {name}, which is for people. Ask a person "
            f"to call it, or to grant it with `corral setting set {GRANT_SETTING} "
            f"'[\"{name}\"]'{scope}`.",
            call=name,
            run=identity.run,
        )


def _list_granted_operations(executor: RunExecutor) -> list[str]:
    from corral.domain.settings import ops as settings

    identity = executor.identity
    names: list[str] = executor.database.read(
        lambda tx: settings.get_value(
            tx, GRANT_SETTING, agent=identity.agent, project=identity.project_id
        )
    )
    return names


def _act_as_agent(
    identity: RunIdentity, name: str, policy: OperationPolicy, arguments: CallArguments
) -> None:
    """Make an operation act as the run's agent; refuse any other actor."""
    if policy.decision and identity.agent is None:
        raise Refused(
            f"{_describe_process(identity)} may not call {name}: only an agent or a person may, "
            "and this run has no agent.",
            call=name,
            run=identity.run,
        )
    for argument in policy.actor:
        own = _default_actor(identity, argument)
        named = arguments.get(argument)
        if named is not None and named not in _names_of(identity):
            raise Refused(
                f"{_describe_process(identity)} cannot act as {named}. Omit {argument}.",
                call=name,
                run=identity.run,
            )
        if named is None and own is not None:
            arguments[argument] = own


def _default_actor(identity: RunIdentity, argument: str) -> str | None:
    """Return the default of an argument that names the actor."""
    return identity.agent if argument == "agent" else identity.mailbox


def _names_of(identity: RunIdentity) -> set[str | None]:
    """Return every text that names the run, its agent or its session."""
    return {
        identity.agent,
        identity.agent_id,
        identity.actor,
        identity.owner,
        identity.mailbox,
        f"session:{identity.session}",
        f"run:{identity.run}",
    }


def _restrict_send(executor: RunExecutor, name: str, arguments: CallArguments) -> None:
    """Restrict `runs.send`: only a person answers a run that asks something."""
    if "id" not in arguments:
        return  # the call raises TypeError
    run = executor.store.runs.get(arguments["id"])
    is_own = run.id == executor.identity.run
    if (is_own or run.attention) and name not in _list_granted_operations(executor):
        reason = "is its own run" if is_own else "waits for a person"
        raise Refused(
            f"{_describe_process(executor.identity)} cannot type into {run.id}, which {reason}. "
            "Write to its agent with `corral mail write` instead.",
            id=run.id,
            run=executor.identity.run,
        )
    arguments["id"] = run.id


def _restrict_edit(executor: RunExecutor, name: str, arguments: CallArguments) -> None:
    """Restrict `schedules.edit` to own schedules.

    An agent that reads a schedule's letter trusts it to be from the creator of the schedule.
    """
    if "id" not in arguments:
        return  # the call raises TypeError
    schedule = executor.store.schedules.get(arguments["id"])
    identity = executor.identity
    names = _names_of(identity)
    is_own = schedule.sender in names or schedule.mailbox in names
    if not is_own and schedule.mailbox.startswith("session:"):
        is_own = _is_own_session(executor, schedule.mailbox.removeprefix("session:"))
    if not is_own and name not in _list_granted_operations(executor):
        raise Refused(
            f"{_describe_process(identity)} cannot edit {schedule.id}, which is not its own. Ask a "
            "person to edit it, or create a schedule.",
            id=schedule.id,
            run=identity.run,
        )
    arguments["id"] = schedule.id


def _restrict_session(executor: RunExecutor, name: str, arguments: CallArguments) -> None:
    """Restrict changes of a conversation to the sessions of the run and its agent.

    Sessions that no run uses, such as a program's own, may be changed too.
    """
    if "session" not in arguments:
        return  # the call raises TypeError
    session = arguments["session"]
    id = session if isinstance(session, str) else session.id
    allowed = executor.writable_sessions[name]
    if id not in allowed:
        if not _is_own_session(executor, id) and name not in _list_granted_operations(executor):
            raise Refused(
                f"{_describe_process(executor.identity)} cannot change the conversation {id} of "
                "another agent. Write to the agent with `corral mail write` instead.",
                call=name,
                id=id,
                run=executor.identity.run,
            )
        allowed.add(id)


def _restrict_mailbox(executor: RunExecutor, name: str, arguments: CallArguments) -> None:
    """Restrict claims and changes of letters to own mailboxes and to queues."""
    mailbox = arguments.get("mailbox")
    if mailbox is None:
        letter = arguments.get("letter", arguments.get("id"))
        if letter is None:
            return  # the call raises TypeError
        # The row decides: a caller could give a Letter with another mailbox.
        id = letter if isinstance(letter, str) else letter.id
        mailbox = executor.store.mail.get(id).mailbox
    kind, _, owner = mailbox.partition(":")
    is_own = kind == "queue" or mailbox in _names_of(executor.identity)
    if not is_own and kind == "session":
        is_own = _is_own_session(executor, owner)
    if not is_own and name not in _list_granted_operations(executor):
        raise Refused(
            f"{_describe_process(executor.identity)} cannot change the mailbox {mailbox}, which is "
            "not its own.",
            call=name,
            mailbox=mailbox,
            run=executor.identity.run,
        )


def _charge_own_run(executor: RunExecutor, name: str, arguments: CallArguments) -> None:
    """Charge the caller's own run, with counters of its own: those of others have known names."""
    from corral.domain.charges.ops import COST_COUNTER_PREFIX

    identity = executor.identity
    if identity.run is None:
        raise Refused("A check cannot record usage. Record it in a run.", call=name)
    arguments |= {
        "run_id": identity.run,
        "session_id": identity.session,
        "project_id": identity.project_id,
        "agent_id": identity.agent_id,
    }
    report = arguments.get("report")
    if report is not None and report.counter is not None:
        is_cost = report.counter.startswith(COST_COUNTER_PREFIX)
        counter = f"{COST_COUNTER_PREFIX if is_cost else ''}{identity.run}:{report.counter}"
        arguments["report"] = msgspec.structs.replace(report, counter=counter)


def _require_own_run(executor: RunExecutor, name: str, arguments: CallArguments) -> None:
    """Restrict an operation that speaks for a run to the caller's own run."""
    run, own = arguments.get("run"), executor.identity.run
    if "run" in arguments and run != own:
        raise Refused(
            f"{_describe_process(executor.identity)} may call {name} only for its own run.",
            call=name,
            run=own,
        )


def _name_own_run(executor: RunExecutor, name: str, arguments: CallArguments) -> None:
    """Record the caller's own run: the hops of its letters and questions count from there."""
    arguments["run"] = executor.identity.run


_RUN_RULES: dict[RunRule, Callable[[RunExecutor, str, CallArguments], None]] = {
    "send_input": _restrict_send,
    "edit_schedule": _restrict_edit,
    "change_session": _restrict_session,
    "change_mailbox": _restrict_mailbox,
    "charge_own_run": _charge_own_run,
    "own_run": _require_own_run,
    "as_own_run": _name_own_run,
}


def _is_own_session(executor: RunExecutor, id: str) -> bool:
    session, identity = executor.store.sessions.get(id), executor.identity
    if session.id == identity.session:
        return True
    if session.agent_id is not None:
        return session.agent_id == identity.agent_id
    return not executor.store.runs.list(session=session.id, limit=1).items


def _describe_process(identity: RunIdentity) -> str:
    if identity.run is None:
        return "A check"
    name = f"agent {identity.agent}" if identity.agent else "a program"
    return f"This process ({name} in {identity.run})"
