"""The library: `corral.open(url)` gives a store, with one attribute for each room.

CLI, HTTP, MCP, web and daemon call this and nothing else, so all have the same powers. A store may
be shared between threads. Rooms are loaded when they are first used.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from corral import config
from corral.adapters.redaction import Redaction
from corral.db import connect
from corral.db.database import Database, Listener, Tell
from corral.db.migrate import open_schema
from corral.db.tx import Tx
from corral.kernel.clock import Clock
from corral.kernel.errors import StoreUnavailable
from corral.kernel.text import MAX_NAME, clean_text

if TYPE_CHECKING:
    from corral.adapters.ancestry import Ancestor
    from corral.api.agents import Agents
    from corral.api.alerts import Alerts
    from corral.api.charges import Budgets, Charges
    from corral.api.chat import (
        Channels,
        Destinations,
        Gateway,
        Messages,
        People,
        Places,
        Requests,
        Senders,
        Wirings,
    )
    from corral.api.checkpoints import Checkpoints
    from corral.api.decisions import Decisions
    from corral.api.events import Events
    from corral.api.groups import Groups
    from corral.api.guard import Guard
    from corral.api.imports import Imports
    from corral.api.insights import Insights
    from corral.api.locks import Locks
    from corral.api.mail import Mail
    from corral.api.nodes import Nodes
    from corral.api.notes import Notes
    from corral.api.outputs import Outputs
    from corral.api.plans import Plans, Progress
    from corral.api.projects import Projects
    from corral.api.questions import Questions
    from corral.api.races import Races
    from corral.api.runs import Runs
    from corral.api.schedules import Schedules, Timers
    from corral.api.search import Search
    from corral.api.sessions import Sessions
    from corral.api.settings import Secrets, Settings
    from corral.api.store import Store
    from corral.api.tasks import Delegations, Tasks
    from corral.api.teams import Teams
    from corral.api.tokens import Tokens
    from corral.db.database import Probe
    from corral.kernel.identity import RunIdentity


T = TypeVar("T")

MOST_HOPS = 5
"""How often a store may have been moved on from where it was looked for."""


def open(
    url: str | Path | None = None,
    *,
    actor: str | None = None,
    clock: Clock | None = None,
    create: bool = True,
    upgrade: bool = False,
    probe: "Probe | None" = None,
    token: str | None = None,
) -> "Corral":
    """Open a store: a URL, the path of a SQLite file, or nothing for the user's own.

    A process inside a run of the store acts as that run's agent, whatever `actor` and its variables
    are. Operations for people are refused to it; see `api/permissions.py`.

    With the URL of a daemon (`http://…`) every call is a request to it; `token`, else
    `$CORRAL_TOKEN`, says who calls.

    `actor` stands in the record of changes as the one who made them. `upgrade` leaves an older
    schema to `db.migrate()`. `clock` and `probe` are for tests: the time, and a function that is
    told "before commit" and "after commit".
    """
    text = f"sqlite:///{url.absolute()}" if isinstance(url, Path) else config.store_url(url)
    if config.is_afar(text):
        from corral.api.remote import Remote

        return Remote(text, token or config.token())
    store = _open(text, actor=actor, clock=clock, create=create, upgrade=upgrade, probe=probe)
    if upgrade:
        return store  # its tables may be too old for the queries below
    try:
        from corral.services.identity import find_identity

        identity = find_identity(store._database)
    except BaseException:
        store.close()
        raise
    config.adopt(identity)
    if identity is None:
        return store
    from corral.api.permissions import BoundStore

    database = store._database
    database.actor, database.origin = identity.actor, identity.run
    return BoundStore(store, identity)


def open_service(url: str | None, *, actor: str) -> "Corral":
    """Open a store for a part of Corral itself: a supervisor or the daemon. It acts in its own name
    even if a process inside a run started it. Not for other programs."""
    return _open(config.store_url(url), actor=actor)


def _open(
    text: str,
    *,
    actor: str | None,
    clock: Clock | None = None,
    create: bool = True,
    upgrade: bool = False,
    probe: "Probe | None" = None,
) -> "Corral":
    who = clean_text(actor or config.actor(), "The actor", most=MAX_NAME)
    before: str | None = None  # the last place that the store was moved from
    for hop in range(MOST_HOPS):
        # Never create a moved store at its new place: its content would be missing.
        may_create = create and hop == 0
        try:
            database = connect(text, actor=who, clock=clock, create=may_create, probe=probe)
        except StoreUnavailable as error:
            if error.reason == "missing" and before is not None and error.details.get("path"):
                raise _lost_after_move(before, error.details["path"]) from None
            raise
        try:
            if not upgrade:
                open_schema(database, change=may_create)
                database.refuses_moved = True
            database.redaction = Redaction(_known_here)
            return Corral(database)
        except StoreUnavailable as error:
            database.close()
            if error.reason != "moved" or hop == MOST_HOPS - 1:
                raise
            before, text = database.url, error.details["to"]
        except BaseException:
            database.close()
            raise
    raise AssertionError


def _lost_after_move(old: str, new: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"The store {old} was moved to {new}, where there is none now. Put the file back, or "
        "restore a back-up with `corral db restore` into another store. Nothing was created.",
        reason="missing",
        path=new,
        moved_from=old,
    )


def _known_here() -> list[str]:
    from corral.api.settings import known_here

    return known_here()


class Corral:
    """An open store."""

    identity: "RunIdentity | None" = None
    """The run that this process belongs to; None for people and for Corral's own processes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @cached_property
    def events(self) -> "Events":
        from corral.api.events import Events

        return Events(self._database)

    @cached_property
    def settings(self) -> "Settings":
        from corral.api.settings import Settings

        return Settings(self._database)

    @cached_property
    def secrets(self) -> "Secrets":
        from corral.api.settings import Secrets

        return Secrets(self._database)

    @cached_property
    def projects(self) -> "Projects":
        from corral.api.projects import Projects

        return Projects(self._database)

    @cached_property
    def nodes(self) -> "Nodes":
        from corral.api.nodes import Nodes

        return Nodes(self._database)

    @cached_property
    def outputs(self) -> "Outputs":
        from corral.api.outputs import Outputs

        return Outputs(self._database)

    @cached_property
    def mail(self) -> "Mail":
        from corral.api.mail import AgentMail, Mail

        database = self._database
        is_agent = database.origin is not None or database.actor.startswith("agent:")
        return AgentMail(database) if is_agent else Mail(database)

    @cached_property
    def locks(self) -> "Locks":
        from corral.api.locks import Locks

        return Locks(self._database)

    @cached_property
    def guard(self) -> "Guard":
        from corral.api.guard import Guard

        return Guard(self._database)

    @cached_property
    def schedules(self) -> "Schedules":
        from corral.api.schedules import Schedules

        return Schedules(self._database)

    @cached_property
    def timers(self) -> "Timers":
        from corral.api.schedules import Timers

        return Timers(self._database)

    @cached_property
    def runs(self) -> "Runs":
        from corral.api.runs import Runs

        return Runs(self._database)

    @cached_property
    def charges(self) -> "Charges":
        from corral.api.charges import Charges

        return Charges(self._database)

    @cached_property
    def budgets(self) -> "Budgets":
        from corral.api.charges import Budgets

        return Budgets(self._database)

    @cached_property
    def alerts(self) -> "Alerts":
        from corral.api.alerts import Alerts

        return Alerts(self._database)

    @cached_property
    def insights(self) -> "Insights":
        from corral.api.insights import Insights

        return Insights(self._database)

    @cached_property
    def agents(self) -> "Agents":
        from corral.api.agents import Agents

        return Agents(self._database)

    @cached_property
    def sessions(self) -> "Sessions":
        from corral.api.sessions import Sessions

        return Sessions(self._database)

    @cached_property
    def checkpoints(self) -> "Checkpoints":
        from corral.api.checkpoints import Checkpoints

        return Checkpoints(self._database)

    @cached_property
    def decisions(self) -> "Decisions":
        from corral.api.decisions import Decisions

        return Decisions(self._database)

    @cached_property
    def groups(self) -> "Groups":
        from corral.api.groups import Groups

        return Groups(self._database)

    @cached_property
    def notes(self) -> "Notes":
        from corral.api.notes import Notes

        return Notes(self._database)

    @cached_property
    def questions(self) -> "Questions":
        from corral.api.questions import Questions

        return Questions(self._database)

    @cached_property
    def races(self) -> "Races":
        from corral.api.races import Races

        return Races(self._database)

    @cached_property
    def search(self) -> "Search":
        from corral.api.search import Search

        return Search(self._database)

    @cached_property
    def tasks(self) -> "Tasks":
        from corral.api.tasks import Tasks

        return Tasks(self._database)

    @cached_property
    def delegations(self) -> "Delegations":
        from corral.api.tasks import Delegations

        return Delegations(self._database)

    @cached_property
    def plans(self) -> "Plans":
        from corral.api.plans import Plans

        return Plans(self._database)

    @cached_property
    def progress(self) -> "Progress":
        from corral.api.plans import Progress

        return Progress(self._database)

    @cached_property
    def imports(self) -> "Imports":
        from corral.api.imports import Imports

        return Imports(self._database)

    @cached_property
    def teams(self) -> "Teams":
        from corral.api.teams import Teams

        return Teams(self._database)

    @cached_property
    def tokens(self) -> "Tokens":
        from corral.api.tokens import Tokens

        return Tokens(self._database)

    @cached_property
    def channels(self) -> "Channels":
        from corral.api.chat import Channels

        return Channels(self._database)

    @cached_property
    def places(self) -> "Places":
        from corral.api.chat import Places

        return Places(self._database)

    @cached_property
    def senders(self) -> "Senders":
        from corral.api.chat import Senders

        return Senders(self._database)

    @cached_property
    def people(self) -> "People":
        from corral.api.chat import People

        return People(self._database)

    @cached_property
    def wirings(self) -> "Wirings":
        from corral.api.chat import Wirings

        return Wirings(self._database)

    @cached_property
    def destinations(self) -> "Destinations":
        from corral.api.chat import Destinations

        return Destinations(self._database)

    @cached_property
    def requests(self) -> "Requests":
        from corral.api.chat import Requests

        return Requests(self._database)

    @cached_property
    def messages(self) -> "Messages":
        from corral.api.chat import Messages

        return Messages(self._database)

    @cached_property
    def gateway(self) -> "Gateway":
        from corral.api.chat import Gateway

        return Gateway(self._database)

    @cached_property
    def db(self) -> "Store":
        from corral.api.store import Store

        return Store(self._database)

    def acting_as(self, actor: str, origin: str | None = None) -> "Corral":
        """Return a view of this store that acts as another actor. Events record the actor and
        `origin`, the run of its process. The view need not be closed."""
        who = clean_text(actor, "The actor", most=MAX_NAME)
        return Corral(self._database.acting_as(who, origin))

    def transaction(self) -> AbstractContextManager[Tx]:
        """One transaction around several operations: hand it to the functions in a room's `ops`."""
        return self._database.transaction()

    def listening(self) -> AbstractContextManager[Listener]:
        """Wake-ups: a listener that returns from `wait` when another commit may have changed
        something."""
        return self._database.listening()

    def hurry(self) -> None:
        """This process is about to end: from now on a server that went away is not waited for."""
        self._database.hurry()

    def spare_connections(self) -> None:
        """Hold a server connection only while it is used. For processes that are numerous and use
        the store rarely."""
        self._database.spare_connections()

    def waiting_at_most(self, seconds: float) -> AbstractContextManager[None]:
        """For what this thread does meanwhile, a server that went away is waited for no longer
        than this, nor than whoever called may wait."""
        return self._database.waiting_at_most(seconds)

    def writing_within(self, seconds: float) -> AbstractContextManager[None]:
        """Meanwhile a write of this thread waits no longer than this for another process that
        writes."""
        return self._database.writing_within(seconds)

    def try_upkeep(self, name: str, work: Callable[[], T], *, seconds: float = 1.0) -> T | None:
        """Run a write before a read and return its result; None when the store is not writable, or
        the write takes too long."""
        from corral.services.store.upkeep import try_upkeep

        return try_upkeep(self._database, name, work, seconds=seconds)

    def run_of_peer(self, client: tuple[str, int], port: int) -> "RunIdentity | None":
        """Return the run of the local process that connected to `port` from `client`; None for a
        process outside all runs or on another machine."""
        from corral.services.identity import find_run_of_peer

        return find_run_of_peer(self._database, client, port)

    def run_of_process(self, above: "list[Ancestor]") -> "RunIdentity | None":
        """The run of the process with these ancestors, itself first; None outside of all runs."""
        from corral.services.identity import find_run_of

        return find_run_of(self._database, above)

    @property
    def address(self) -> str:
        """All that another process needs to open the same store; it may hold a password."""
        return self._database.address

    def act_as(self, actor: str) -> None:
        """From now on this one stands in the record of changes."""
        self._database.actor = actor

    def as_service(self, actor: str) -> "Corral":
        """Use this store for a part of Corral itself from now on."""
        self.act_as(actor)
        return self

    @contextmanager
    def telling(self, tell: Tell) -> Iterator[None]:
        """Meanwhile `tell` hears what secrets were taken out of (`letters.body`), before it was
        kept, in what this thread asks for."""
        working = self._database.working
        before, working.tell = working.tell, tell
        try:
            yield
        finally:
            working.tell = before

    def clean(self, text: str) -> str:
        """A text without secrets, as the store would keep it; for logs."""
        redaction = self._database.redaction
        return text if redaction is None or not redaction.suspects(text) else redaction.clean(text)

    def keep_shapes(self) -> None:
        """From now on, words that only look like a key stay as they are: somebody knows that they
        are none. Secrets that are known by their values are still taken out."""
        if self._database.redaction is not None:
            self._database.redaction.keep_shapes()

    def now(self) -> int:
        """The store's time: the server's on PostgreSQL, so that machines agree."""
        return self._database.clock.now()

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
