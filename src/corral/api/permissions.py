"""Permissions of a process inside a run: it acts as the run's agent, never as a person.

`corral.open` returns a `BoundStore` to such a process. Each call is checked where it enters the
library, so the same rules apply to the command line, the tools, hooks and an agent's own program:

* an operation that is declared with `people_only` raises Refused, unless the setting
  `runs.allowed_operations` grants it;
* an argument that names the actor (`actor`) must be the run's agent;
* an operation with a rule (`in_run`) may be called only for the run's own objects.

Tokens of agents over HTTP have stricter rules: `api/agent_rules.py`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property, update_wrapper
from typing import Any, NoReturn

from corral.api import Corral
from corral.api.internal import InternalStore
from corral.api.lazy_resource import LazyResource
from corral.api.operation import Operation, find_policy
from corral.api.policy import OperationPolicy, RunRule
from corral.db.tx import Tx
from corral.kernel.errors import Refused
from corral.kernel.identity import RunIdentity

GRANT_SETTING = "runs.allowed_operations"

Call = Callable[..., Any]


class BoundStore(Corral):
    """An open store for a process inside a run."""

    identity: RunIdentity

    def __init__(self, store: Corral, identity: RunIdentity) -> None:
        super().__init__(store._database)
        self.identity = identity
        self.__dict__ |= _checked_resources(Corral, self)

    @cached_property
    def internal(self) -> InternalStore:
        """The operations for supervisors and the daemon, with the same checks."""
        internal = InternalStore(self._database)
        internal.__dict__ |= _checked_resources(InternalStore, self)
        return internal

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
        return Corral(self._database)

    def _not_a_person(self, what: str) -> Refused:
        return Refused(f"{_name(self.identity)} cannot {what}.", run=self.identity.run)


class _CheckedResource:
    """The operations of one noun, each checked before it is called."""

    def __init__(self, unchecked: LazyResource[Any], store: BoundStore, attribute: str) -> None:
        self._unchecked = unchecked
        self._store = store
        self._attribute = attribute

    @cached_property
    def _resource(self) -> Any:
        return self._unchecked.create(self._store._database)

    def __getattr__(self, verb: str) -> Any:
        member = getattr(self._resource, verb)
        policy = find_policy(vars(self._unchecked.load_class()).get(verb))
        if policy is None:
            return member
        name = f"{self._attribute}.{verb}"
        call: Any = member
        if policy.people_only:
            call = _require_grant(self._store, name, member)
        elif policy.actor:
            names = _argument_names(self._resource, verb)
            call = _sign(self._store.identity, name, policy, member, names)
        if policy.in_run is not None:
            call = _RUN_RULES[policy.in_run](self._store, name, call)
        if call is not member:
            update_wrapper(call, member)
        self.__dict__[verb] = call
        return call


def _checked_resources(owner: type, store: BoundStore) -> dict[str, _CheckedResource]:
    """Return the checked resources of a store class, to be put into the `__dict__` of an instance.

    There they are found before the descriptors of the class, which would return unchecked ones.
    """
    return {
        name: _CheckedResource(member, store, name)
        for name, member in vars(owner).items()
        if isinstance(member, LazyResource)
    }


def _argument_names(resource: Any, verb: str) -> tuple[str, ...]:
    """Return the names of an operation's arguments, without `self` or the transaction."""
    member = next(vars(kind)[verb] for kind in type(resource).__mro__ if verb in vars(kind))
    function = member.function if isinstance(member, Operation) else member
    code = function.__code__
    names: tuple[str, ...] = code.co_varnames[1 : code.co_argcount]
    return names


def _require_grant(store: BoundStore, name: str, member: Call) -> Call:
    """Allow an operation only if the setting grants it to the agent, its project or all runs."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if name not in _grants(store):
            identity = store.identity
            scope = f" --agent {identity.agent}" if identity.agent else ""
            raise Refused(
                f"{_name(identity)} may not call {name}, which is for people. Ask a person to call "
                f"it, or to grant it with `corral setting set {GRANT_SETTING} "
                f"'[\"{name}\"]'{scope}`.",
                call=name,
                run=identity.run,
            )
        return member(*args, **kwargs)

    return call


def _grants(store: BoundStore) -> list[str]:
    from corral.domain.settings import ops as settings

    identity = store.identity
    names: list[str] = store._database.read(
        lambda tx: settings.get_value(
            tx, GRANT_SETTING, agent=identity.agent, project=identity.project_id
        )
    )
    return names


def _sign(
    identity: RunIdentity, name: str, policy: OperationPolicy, member: Call, names: tuple[str, ...]
) -> Call:
    """Make an operation act as the run's agent."""

    def call(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False))
        if len(args) > len(given):
            return member(*args, **kwargs)  # raises TypeError
        given |= kwargs
        if policy.decision and identity.agent is None:
            raise Refused(
                f"{_name(identity)} may not call {name}: only an agent or a person may, and this "
                "run has no agent.",
                call=name,
                run=identity.run,
            )
        for argument in policy.actor:
            own = _default_actor(identity, argument)
            named = given.get(argument)
            if named is not None and named not in _names_of(identity):
                raise Refused(
                    f"{_name(identity)} cannot act as {named}. Omit {argument}.",
                    call=name,
                    run=identity.run,
                )
            if named is None and own is not None:
                given[argument] = own
        return member(**given)

    return call


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


def _restrict_send(store: BoundStore, name: str, member: Call) -> Call:
    """Restrict `runs.send`: only a person answers a run that asks something."""

    def call(id: str, text: str, *, enter: bool = True, dialog: str | None = None) -> Any:
        run = store.runs.get(id)
        if (run.id == store.identity.run or run.attention) and name not in _grants(store):
            reason = "is its own run" if run.id == store.identity.run else "waits for a person"
            raise Refused(
                f"{_name(store.identity)} cannot type into {run.id}, which {reason}. Write to its "
                "agent with `corral mail write` instead.",
                id=run.id,
                run=store.identity.run,
            )
        return member(run.id, text, enter=enter, dialog=dialog)

    return call


def _restrict_edit(store: BoundStore, name: str, member: Call) -> Call:
    """Restrict `schedules.edit` to own schedules.

    An agent that reads a schedule's letter trusts it to be from the creator of the schedule.
    """

    def call(id: str, **changes: Any) -> Any:
        schedule = store.schedules.get(id)
        identity = store.identity
        names = _names_of(identity)
        own = schedule.sender in names or schedule.mailbox in names
        if not own and schedule.mailbox.startswith("session:"):
            own = _is_own_session(store, schedule.mailbox.removeprefix("session:"))
        if not own and name not in _grants(store):
            raise Refused(
                f"{_name(identity)} cannot edit {schedule.id}, which is not its own. Ask a "
                "person to edit it, or create a schedule.",
                id=schedule.id,
                run=identity.run,
            )
        return member(schedule.id, **changes)

    return call


def _restrict_session(store: BoundStore, name: str, member: Call) -> Call:
    """Restrict changes of a conversation to the sessions of the run and its agent.

    Sessions that no run uses, such as a program's own, may be changed too.
    """
    allowed: set[str] = set()

    def call(session: Any, *args: Any, **kwargs: Any) -> Any:
        id = session if isinstance(session, str) else session.id
        if id not in allowed:
            if not _is_own_session(store, id) and name not in _grants(store):
                raise Refused(
                    f"{_name(store.identity)} cannot change the conversation {id} of another "
                    "agent. Write to the agent with `corral mail write` instead.",
                    call=name,
                    id=id,
                    run=store.identity.run,
                )
            allowed.add(id)
        return member(session, *args, **kwargs)

    return call


_RUN_RULES: dict[RunRule, Callable[[BoundStore, str, Call], Call]] = {
    "send_input": _restrict_send,
    "edit_schedule": _restrict_edit,
    "change_session": _restrict_session,
}


def _is_own_session(store: BoundStore, id: str) -> bool:
    session, identity = store.sessions.get(id), store.identity
    if session.id == identity.session:
        return True
    if session.agent_id is not None:
        return session.agent_id == identity.agent_id
    return not store.runs.list(session=session.id, limit=1).items


def _name(identity: RunIdentity) -> str:
    if identity.run is None:
        return "A check"
    name = f"agent {identity.agent}" if identity.agent else "a program"
    return f"This process ({name} in {identity.run})"
