"""Permissions of a process inside a run: it acts as the run's agent, never as a person.

`corral.open` returns a `BoundStore` to such a process. Each call is checked where it enters the
library, so the same rules apply to the command line, the tools, hooks and an agent's own program:

* an operation of `FOR_PEOPLE` raises Refused, unless the setting `runs.allowed_operations` grants
  it;
* an argument that names the actor (`ACTOR_ARGUMENTS`) must be the run's agent.

Tokens of agents over HTTP have stricter rules: `http/agent_permissions.py`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, NoReturn

from corral.api import Corral
from corral.api.lazy_resource import LazyResource
from corral.api.operation import Operation
from corral.db.tx import Tx
from corral.kernel.errors import Refused
from corral.kernel.identity import RunIdentity

GRANT_SETTING = "runs.allowed_operations"

# Operations that change permissions, decide in a person's place, or replace or delete shared data.
FOR_PEOPLE = frozenset(
    {
        *("agents.create", "agents.edit", "agents.grant", "agents.revoke"),
        *("agents.retire", "agents.restore", "teams.start"),
        *("alerts.add", "alerts.remove", "alerts.test"),
        *("budgets.set", "budgets.remove"),
        *("channels.add", "channels.remove", "channels.open", "channels.test"),
        *("channels.save_cursor", "channels.save_health"),
        *("db.durability", "db.migrate", "db.move", "db.prune", "db.restore", "db.cancel_move"),
        *("destinations.grant", "destinations.revoke"),
        *("chat.receive_webhook", "chat.deliver", "chat.poll"),
        *("imports.import_transcripts", "imports.import_database"),
        *("locks.install", "locks.uninstall", "locks.revoke"),
        *("messages.receive", "messages.receive_all", "messages.send_as_system"),
        *("outputs.delete", "projects.delete", "runs.delete", "runs.delete_all"),
        # For the supervisor of a run: its outcome, its processes, its usage.
        *("runs.end", "runs.end_orphaned", "runs.park", "runs.restart", "runs.take_over"),
        *("runs.add_sample", "runs.record_denials", "runs.record_environment"),
        *("charges.release", "charges.set_prices"),
        *("people.set", "senders.approve", "senders.block"),
        *("places.block", "places.register", "places.set_policy", "places.unblock"),
        "host_requests.complete_secret_requests",
        *(
            "secrets.delete",
            "secrets.save_value",
            "secrets.resolve",
            "secrets.set",
            "secrets.resolve_reference",
        ),
        *("settings.set", "settings.unset"),
        *("tokens.create", "tokens.ensure_file", "tokens.revoke"),
        *("wirings.add", "wirings.change", "wirings.remove"),
    }
)

# Without a named agent, these mean a decision by a person; a run without an agent is refused.
DECISIONS = frozenset(
    {
        *("decisions.confirm", "decisions.dismiss", "decisions.review_many", "decisions.reject"),
        *("questions.answer", "tasks.accept", "tasks.reject"),
    }
)

# Change the conversation of a session, which enters the prompt of its agent.
CONVERSATION = frozenset(
    {
        *("sessions.append", "sessions.append_many", "sessions.clear", "sessions.handoff"),
        *("sessions.set_provider_session", "sessions.undo"),
    }
)

_AGENT = ("agent",)
ACTOR_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "decisions.confirm": ("by",),
    "decisions.dismiss": ("by",),
    "decisions.review_many": ("by",),
    "decisions.record": ("author",),
    "decisions.reject": ("by",),
    "delegations.cancel": _AGENT,
    "delegations.delegate": ("agent", "sender"),
    "delegations.fail": _AGENT,
    "delegations.finish": _AGENT,
    "groups.broadcast": ("author",),
    "groups.create": ("by",),
    "groups.leave": ("member",),
    "groups.mark": ("member",),
    "groups.post": ("author",),
    "groups.react": ("member",),
    "groups.read": ("member",),
    "groups.send": ("author",),
    "groups.unread": ("member",),
    "locks.acquire": _AGENT,
    "locks.commit": _AGENT,
    "locks.release": _AGENT,
    "locks.renew": _AGENT,
    "locks.request": _AGENT,
    "locks.touch": _AGENT,
    "mail.put": ("sender",),
    "mail.write": _AGENT,
    "messages.send": _AGENT,
    "messages.send_files": _AGENT,
    "notes.add": ("source",),
    "notes.supersede": ("source",),
    "plans.set": _AGENT,
    "progress.report": _AGENT,
    "questions.answer": ("by",),
    "questions.ask": ("asker",),
    "questions.withdraw": ("by",),
    "host_requests.ask": _AGENT,
    "schedules.create": ("sender",),
    "schedules.task": _AGENT,
    "sessions.append": _AGENT,
    "tasks.accept": _AGENT,
    "tasks.add": ("agent", "lead"),
    "tasks.apply": ("agent", "lead"),
    "tasks.archive": _AGENT,
    "tasks.cancel": _AGENT,
    "tasks.claim": _AGENT,
    "tasks.declare": ("agent", "lead"),
    "tasks.delegate": _AGENT,
    "tasks.depend": _AGENT,
    "tasks.edit": _AGENT,
    "tasks.fail": _AGENT,
    "tasks.pause": _AGENT,
    "tasks.reassign": _AGENT,
    "tasks.reject": _AGENT,
    "tasks.release": _AGENT,
    "tasks.renew": _AGENT,
    "tasks.reopen": _AGENT,
    "tasks.resume": _AGENT,
    "tasks.retry": _AGENT,
    "tasks.skip": _AGENT,
    "tasks.submit": _AGENT,
    "tasks.undepend": _AGENT,
    "timers.set": ("sender",),
}
"""The arguments that name the actor. `agent` is a name or a mailbox, all others are mailboxes."""

Call = Callable[..., Any]


class BoundStore(Corral):
    """An open store for a process inside a run."""

    identity: RunIdentity

    def __init__(self, store: Corral, identity: RunIdentity) -> None:
        super().__init__(store._database)
        self.identity = identity
        for name, member in vars(Corral).items():
            if isinstance(member, LazyResource):
                # Found before the descriptor of that name, which would return the unchecked one.
                self.__dict__[name] = _CheckedResource(member, self, name)

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
        name = f"{self._attribute}.{verb}"
        call: Any = member
        if name in FOR_PEOPLE:
            call = _require_grant(self._store, name, member)
        elif name == "runs.send":
            call = _restrict_send(self._store, member)
        elif name == "schedules.edit":
            call = _restrict_edit(self._store, member)
        elif name in ACTOR_ARGUMENTS:
            call = _sign(self._store.identity, name, member, _argument_names(self._resource, verb))
        if name in CONVERSATION:
            call = _restrict_session(self._store, name, call)
        self.__dict__[verb] = call
        return call


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


def _sign(identity: RunIdentity, name: str, member: Call, names: tuple[str, ...]) -> Call:
    """Make an operation act as the run's agent."""
    actor_arguments = ACTOR_ARGUMENTS[name]

    def call(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False))
        if len(args) > len(given):
            return member(*args, **kwargs)  # raises TypeError
        given |= kwargs
        if name in DECISIONS and identity.agent is None:
            raise Refused(
                f"{_name(identity)} may not call {name}: only an agent or a person may, and this "
                "run has no agent.",
                call=name,
                run=identity.run,
            )
        for argument in actor_arguments:
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


def _restrict_send(store: BoundStore, member: Call) -> Call:
    """Restrict `runs.send`: only a person answers a run that asks something."""

    def call(id: str, text: str, *, enter: bool = True, dialog: str | None = None) -> Any:
        run = store.runs.get(id)
        if (run.id == store.identity.run or run.attention) and "runs.send" not in _grants(store):
            reason = "is its own run" if run.id == store.identity.run else "waits for a person"
            raise Refused(
                f"{_name(store.identity)} cannot type into {run.id}, which {reason}. Write to its "
                "agent with `corral mail write` instead.",
                id=run.id,
                run=store.identity.run,
            )
        return member(run.id, text, enter=enter, dialog=dialog)

    return call


def _restrict_edit(store: BoundStore, member: Call) -> Call:
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
        if not own and "schedules.edit" not in _grants(store):
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
