"""The Python API: `corral.open(url)` returns a store with one attribute per noun.

    with corral.open() as store:
        run = store.runs.start(prompt="Fix the tests", project="/srv/shop")
        store.runs.start_queued()
        print(store.runs.wait(run.id).state)

The command line, the HTTP API, the MCP server, the dashboard and the daemon call these operations
and never the database. A few also import types and helpers of `corral.services`, such as the
renderer of transcripts. A store may be shared between threads. Modules are imported when an
attribute is first used. Errors are subclasses of `CorralError`.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from corral import config
from corral.adapters.redaction import Redaction
from corral.api.executor import LocalExecutor
from corral.api.lazy_resource import LazyResource
from corral.db import connect as connect_database
from corral.db.database import RedactionCallback
from corral.db.migrations import ensure_schema
from corral.db.tx import Tx
from corral.db.types import Listener
from corral.kernel.clock import Clock
from corral.kernel.errors import Invalid, StoreUnavailable
from corral.kernel.identity import CallerIdentity, identify_actor
from corral.kernel.validation import MAX_NAME, check_text

if TYPE_CHECKING:
    from corral.adapters.processes.process_ancestry import Ancestor
    from corral.api.agents import Agents
    from corral.api.alerts import Alerts
    from corral.api.charges import Budgets, Charges
    from corral.api.chat import (
        Channels,
        Chat,
        Destinations,
        Messages,
        People,
        Places,
        Senders,
        Wirings,
    )
    from corral.api.checkpoints import Checkpoints
    from corral.api.decisions import Decisions
    from corral.api.events import Events
    from corral.api.groups import Groups
    from corral.api.guard import Guard
    from corral.api.host_requests import HostRequests
    from corral.api.imports import Imports
    from corral.api.insights import Insights
    from corral.api.internal import InternalStore
    from corral.api.locks import Locks
    from corral.api.mail import Mail
    from corral.api.nodes import Nodes
    from corral.api.notes import Notes
    from corral.api.outputs import Outputs
    from corral.api.plans import Plans, Progress
    from corral.api.projects import Projects
    from corral.api.questions import Questions
    from corral.api.races import Races
    from corral.api.remote import RemoteCorral
    from corral.api.runs import Runs
    from corral.api.schedules import Schedules, Timers
    from corral.api.search import Search
    from corral.api.sessions import Sessions
    from corral.api.settings import Secrets, Settings
    from corral.api.store import Store
    from corral.api.tasks import Delegations, Tasks
    from corral.api.teams import Teams
    from corral.api.tokens import Tokens
    from corral.db.types import Probe
    from corral.kernel.identity import RunIdentity


T = TypeVar("T")

MAX_REDIRECTS = 5
"""Moves of a store that `open` follows."""


def open(
    url: str | Path | None = None,
    *,
    actor: str | None = None,
    clock: Clock | None = None,
    create: bool = True,
    check_schema: bool = True,
    probe: "Probe | None" = None,
    token: str | None = None,
) -> "Corral":
    """Open a store by its URL, or by the path of a SQLite file; default: the user's own store.

    Creates the store if it does not exist, unless `create` is False. Follows a store that was
    moved. Applies pending migrations and checks the schema version, unless `check_schema` is False:
    then call `db.migrate()`. Raises StoreUnavailable, with a reason, when the store is missing,
    damaged or not reachable.

    With the URL of a daemon (`http://…`), every call is a request to it, authenticated by `token`
    (default: `$CORRAL_TOKEN`), and the arguments of a local store raise Invalid. `connect` does the
    same.

    `actor` is the author of changes in the event log. A process inside a run of the store always
    acts as the agent of that run, and operations for people raise Refused; see
    `api/permissions.py`. `clock` and `probe` are for tests; `probe` is called with "before commit"
    and "after commit".
    """
    text = f"sqlite:///{url.absolute()}" if isinstance(url, Path) else config.store_url(url)
    if config.is_remote(text):
        local = {
            "actor": actor,
            "clock": clock,
            "check_schema": None if check_schema else False,
            "probe": probe,
        }
        if given := [name for name, value in local.items() if value is not None]:
            raise Invalid(
                f"{', '.join(given)} cannot be set for a store that is opened over HTTP. The token "
                "determines the actor, and the daemon the rest.",
                reason="local_only",
            )
        return connect(text, token=token)
    store = _open(
        text,
        config.identify_caller(os.environ),
        actor=actor,
        clock=clock,
        create=create,
        check_schema=check_schema,
        probe=probe,
    )
    return _identify(store, os.environ, check_schema=check_schema)


def open_for_caller(url: str | None, environment: Mapping[str, str]) -> "Corral":
    """Open a store for another process, which this one is a child of, by its variables."""
    text = config.store_url(url)
    if config.is_remote(text):
        return connect(text)
    return _identify(_open(text, config.identify_caller(environment)), environment)


def _identify(
    store: "Corral", environment: Mapping[str, str], *, check_schema: bool = True
) -> "Corral":
    """Return the store as this process sees it: with checks, if it is inside a run."""
    try:
        from corral.services.identity import find_identity, find_identity_before_migration

        find = find_identity if check_schema else find_identity_before_migration
        identity = find(store._database, environment)
    except BaseException:
        store.close()
        raise
    if identity is None:
        return store
    from corral.api.permissions import RunStore

    database = store._database
    database.actor, database.run_id = identity.actor, identity.run
    return RunStore(store, identity)


def connect(url: str, *, token: str | None = None) -> "RemoteCorral":
    """Open the store that a daemon serves at a URL (`http://…`).

    Every call is a request, authenticated by `token` (default: `$CORRAL_TOKEN`). Operations and
    methods that need the machine of the store raise Refused.
    """
    from corral.api.remote import RemoteCorral

    return RemoteCorral(url, token or config.token())


def open_service(url: str | None, *, actor: str) -> "Corral":
    """Open a store for a supervisor or the daemon. Not for other programs.

    It acts as `actor` even if a process inside a run started it.
    """
    return _open(config.store_url(url), identify_actor(actor))


def _open(
    text: str,
    caller: CallerIdentity,
    *,
    actor: str | None = None,
    clock: Clock | None = None,
    create: bool = True,
    check_schema: bool = True,
    probe: "Probe | None" = None,
) -> "Corral":
    author = check_text(actor or caller.actor, "The actor", max_bytes=MAX_NAME)
    moved_from: str | None = None
    for hop in range(MAX_REDIRECTS):
        # Never create a moved store at its new location: it would be empty.
        may_create = create and hop == 0
        try:
            database = connect_database(
                text, actor=author, clock=clock, create=may_create, probe=probe
            )
        except StoreUnavailable as error:
            if error.reason == "missing" and moved_from is not None and error.details.get("path"):
                raise _lost_after_move(moved_from, error.details["path"]) from None
            raise
        try:
            if check_schema:
                ensure_schema(database, change=may_create)
                database.refuses_moved = True
            database.redaction = Redaction(_initial_secret_values)
            return Corral(LocalExecutor(database, caller))
        except StoreUnavailable as error:
            database.close()
            if error.reason != "moved" or hop == MAX_REDIRECTS - 1:
                raise
            moved_from, text = database.url, error.details["to"]
        except BaseException:
            database.close()
            raise
    raise AssertionError


def _lost_after_move(old: str, new: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"The store {old} was moved to {new}, which does not exist. Restore that file, or restore "
        "a backup into another store with `corral db restore`. Nothing was created.",
        reason="missing",
        path=new,
        moved_from=old,
    )


def _initial_secret_values() -> list[str]:
    from corral.services.secrets import list_initial_secret_values

    return list_initial_secret_values()


class Corral:
    """An open store. Close it with `close()`, or use it as a context manager."""

    identity: "RunIdentity | None" = None
    """The run that this process is inside of; None for people and for Corral's own processes."""

    events: LazyResource["Events"] = LazyResource("events", "Events")
    settings: LazyResource["Settings"] = LazyResource("settings", "Settings")
    secrets: LazyResource["Secrets"] = LazyResource("settings", "Secrets")
    projects: LazyResource["Projects"] = LazyResource("projects", "Projects")
    nodes: LazyResource["Nodes"] = LazyResource("nodes", "Nodes")
    outputs: LazyResource["Outputs"] = LazyResource("outputs", "Outputs")
    mail: LazyResource["Mail"] = LazyResource("mail", "Mail")
    locks: LazyResource["Locks"] = LazyResource("locks", "Locks")
    guard: LazyResource["Guard"] = LazyResource("guard", "Guard")
    schedules: LazyResource["Schedules"] = LazyResource("schedules", "Schedules")
    timers: LazyResource["Timers"] = LazyResource("schedules", "Timers")
    runs: LazyResource["Runs"] = LazyResource("runs", "Runs")
    charges: LazyResource["Charges"] = LazyResource("charges", "Charges")
    budgets: LazyResource["Budgets"] = LazyResource("charges", "Budgets")
    alerts: LazyResource["Alerts"] = LazyResource("alerts", "Alerts")
    insights: LazyResource["Insights"] = LazyResource("insights", "Insights")
    agents: LazyResource["Agents"] = LazyResource("agents", "Agents")
    sessions: LazyResource["Sessions"] = LazyResource("sessions", "Sessions")
    checkpoints: LazyResource["Checkpoints"] = LazyResource("checkpoints", "Checkpoints")
    decisions: LazyResource["Decisions"] = LazyResource("decisions", "Decisions")
    groups: LazyResource["Groups"] = LazyResource("groups", "Groups")
    notes: LazyResource["Notes"] = LazyResource("notes", "Notes")
    questions: LazyResource["Questions"] = LazyResource("questions", "Questions")
    races: LazyResource["Races"] = LazyResource("races", "Races")
    search: LazyResource["Search"] = LazyResource("search", "Search")
    tasks: LazyResource["Tasks"] = LazyResource("tasks", "Tasks")
    delegations: LazyResource["Delegations"] = LazyResource("tasks", "Delegations")
    plans: LazyResource["Plans"] = LazyResource("plans", "Plans")
    progress: LazyResource["Progress"] = LazyResource("plans", "Progress")
    imports: LazyResource["Imports"] = LazyResource("imports", "Imports")
    teams: LazyResource["Teams"] = LazyResource("teams", "Teams")
    tokens: LazyResource["Tokens"] = LazyResource("tokens", "Tokens")
    channels: LazyResource["Channels"] = LazyResource("chat", "Channels")
    places: LazyResource["Places"] = LazyResource("chat", "Places")
    senders: LazyResource["Senders"] = LazyResource("chat", "Senders")
    people: LazyResource["People"] = LazyResource("chat", "People")
    wirings: LazyResource["Wirings"] = LazyResource("chat", "Wirings")
    destinations: LazyResource["Destinations"] = LazyResource("chat", "Destinations")
    host_requests: LazyResource["HostRequests"] = LazyResource("host_requests", "HostRequests")
    messages: LazyResource["Messages"] = LazyResource("chat", "Messages")
    chat: LazyResource["Chat"] = LazyResource("chat", "Chat")
    db: LazyResource["Store"] = LazyResource("store", "Store")

    def __init__(self, executor: LocalExecutor) -> None:
        self._executor = executor
        self._database = executor.database

    @property
    def caller(self) -> CallerIdentity:
        """Whom this process acts as: the agent of its run, else what its environment names."""
        return self._executor.caller

    @cached_property
    def internal(self) -> "InternalStore":
        """The operations for supervisors and the daemon. Not for other programs."""
        from corral.api.internal import InternalStore

        return InternalStore(self._executor)

    def as_actor(self, actor: str, run_id: str | None = None) -> "Corral":
        """Return a view of this store that acts as another actor.

        Events record the actor and `run_id`, the run of its process. The view need not be closed.
        """
        author = check_text(actor, "The actor", max_bytes=MAX_NAME)
        caller = identify_actor(author, run_id)
        return Corral(LocalExecutor(self._database.as_actor(author, run_id), caller))

    def transaction(self) -> AbstractContextManager[Tx]:
        """Open a transaction for functions of `corral.domain`; commits at the end of the block."""
        return self._database.transaction()

    def listening(self) -> AbstractContextManager[Listener]:
        """Return a listener whose `wait` returns after a commit of any process."""
        return self._database.listener()

    def stop_waiting(self) -> None:
        """Stop waiting for a server that is away, because this process is about to exit."""
        self._database.stop_waiting()

    def release_connections_early(self) -> None:
        """Release server connections after each use.

        For processes that are numerous and use the store rarely.
        """
        self._database.release_connections_early()

    def server_timeout(self, seconds: float) -> AbstractContextManager[None]:
        """Limit how long this thread waits for a server that is away, within the block.

        An outer limit still applies.
        """
        return self._database.server_timeout(seconds)

    def write_timeout(self, seconds: float) -> AbstractContextManager[None]:
        """Limit how long writes of this thread wait for other writers, within the block."""
        return self._database.write_timeout(seconds)

    def try_write_before_read(
        self, name: str, work: Callable[[], T], *, seconds: float = 1.0
    ) -> T | None:
        """Run a write before a read and return its result.

        Returns None when the store is not writable, or the write takes too long.
        """
        from corral.services.store.write_before_read import try_write_before_read

        return try_write_before_read(self._database, name, work, seconds=seconds)

    def run_of_peer(self, client: tuple[str, int], port: int) -> "RunIdentity | None":
        """Return the run of the local process that connected to `port` from `client`.

        Returns None for a process outside all runs and checks, or on another machine. The result
        has no run for a process of a check, and for a process that cannot be identified: it may be
        inside a run.
        """
        from corral.services.identity import find_run_of_peer

        return find_run_of_peer(self._database, client, port)

    def run_of_process(self, above: "list[Ancestor]") -> "RunIdentity | None":
        """Return the run of a process by its ancestors, itself first; None outside all runs."""
        from corral.services.identity import find_run_of_process

        return find_run_of_process(self._database, above)

    @property
    def address(self) -> str:
        """The URL with which another process can open the same store; may contain a password."""
        return self._database.address

    def act_as(self, actor: str) -> None:
        """Record `actor` as the author of all further changes."""
        self._database.actor = actor

    def as_service(self, actor: str) -> "Corral":
        """Return this store for Corral's own work, acting as `actor`."""
        self.act_as(actor)
        return self

    @contextmanager
    def report_redactions(self, callback: RedactionCallback) -> Iterator[None]:
        """Call `callback` with each column that was redacted (`letters.body`), within the block.

        Applies to the writes of this thread.
        """
        working = self._database.thread
        previous, working.on_redaction = working.on_redaction, callback
        try:
            yield
        finally:
            working.on_redaction = previous

    def clean(self, text: str) -> str:
        """Return a text as the store would write it, with secrets redacted; for logs."""
        redaction = self._database.redaction
        return (
            text
            if redaction is None or not redaction.may_contain_secret(text)
            else redaction.clean(text)
        )

    def redact_known_values_only(self) -> None:
        """Stop redacting text that only looks like a secret.

        Known secret values are still redacted.
        """
        if self._database.redaction is not None:
            self._database.redaction.redact_known_values_only()

    def now(self) -> int:
        """Return the time of the store in milliseconds since 1970.

        On PostgreSQL this is the time of the server, so that all machines agree.
        """
        return self._database.clock.now()

    def close(self) -> None:
        """Close all connections. Waits for writes that are in progress."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
