"""The query plan of every hot statement, on both engines, in a store with a long past.

Each line of the table runs an operation of the library and names the indexes that its statements
may use, and must. Nothing may read a whole table, and nothing may sort a backlog.
"""

from collections.abc import Callable, Iterator
from typing import Any

import apsw
import psycopg
import pytest

import corral
from corral.kernel.clock import SetClock
from corral.library import Corral
from tests.support.history import fill
from tests.support.plans import Plan, postgres_plans, sqlite_plan
from tests.support.trace import Call, traced

Operation = Callable[[Corral], object]

# Where the engines rightly use different indexes for the same statement.
DIFFER = {
    # The feed follows commits: SQLite's own numbers, PostgreSQL's transactions.
    "the feed": {"sqlite": "events_pkey", "postgres": "events_feed"},
    # Both find an id; PostgreSQL takes the smaller one.
    "an open schedule": {"sqlite": "schedules_pkey", "postgres": "schedules_open"},
}

# SQLite says SCAN of a walk along the primary key from its end that stops at the limit.
WALKS = {"events.newest": "SCAN events"}

# The ids of that past begin with a number and an x, so this much of one is enough.
PROJECT = "prj_7x"
SCHEDULE = "sch_4x"


def claim_and(box: str, verb: str, *arguments: Any) -> Operation:
    """A claim, made ready beside the measured call, and then a verb on what was claimed."""

    def prepare(store: Corral) -> Operation:
        (letter,) = store.mail.claim(box, owner="o")
        return lambda store: getattr(store.mail, verb)(letter, *arguments)

    return prepare


def next_page(room: str, verb: str, **arguments: Any) -> Operation:
    """The second page of a list, by the cursor of the first."""

    def turn(store: Corral) -> Operation:
        list_ = getattr(getattr(store, room), verb)
        given = "cursor" if room == "events" else "after"
        cursor = {given: list_(limit=5, **arguments).next}
        return lambda store: list_(limit=5, **cursor, **arguments)

    return turn


READY: dict[str, tuple[Operation, set[str]]] = {
    "mail.ack": (claim_and("queue:busy", "ack"), {"letters_pkey"}),
    "mail.renew": (claim_and("queue:busy", "renew"), {"letters_pkey"}),
    "mail.doubt": (claim_and("queue:busy", "doubt"), {"letters_pkey"}),
    "mail.refuse": (claim_and("queue:busy", "refuse", "no"), {"letters_pkey"}),
    "mail.fail": (claim_and("queue:busy", "fail", "no"), {"letters_pkey", "settings_pkey"}),
    "mail.list, next page": (next_page("mail", "list"), {"letters_line"}),
    "mail.list of a mailbox, next page": (
        next_page("mail", "list", mailbox="agent:busy"),
        {"letters_line"},
    ),
    "mail.list all, next page": (next_page("mail", "list", all=True), {"letters_pkey"}),
    "mail.list all of a mailbox, next page": (
        next_page("mail", "list", all=True, mailbox="agent:a5"),
        {"letters_by_mailbox"},
    ),
    "mail.dead, next page": (next_page("mail", "dead"), {"letters_by_state"}),
    "projects.list, next page": (next_page("projects", "list"), {"projects_recent"}),
    "projects.list archived too, next page": (
        next_page("projects", "list", archived=True),
        {"projects_recent"},
    ),
    "schedules.list, next page": (next_page("schedules", "list"), {"schedules_open"}),
    "schedules.list all, next page": (
        next_page("schedules", "list", all=True),
        {"schedules_pkey"},
    ),
    "timers.list, next page": (next_page("timers", "list"), {"schedules_open"}),
    "nodes.list, next page": (next_page("nodes", "list"), {"nodes_pkey"}),
    "secrets.list, next page": (next_page("secrets", "list"), {"secrets_pkey"}),
    "events.after, next page": (next_page("events", "after"), {"the feed"}),
    "events.after of a subject, next page": (
        next_page("events", "after", subject="let_7"),
        {"events_by_subject"},
    ),
    "events.after of a project, next page": (
        next_page("events", "after", project="prj_4"),
        {"events_by_project"},
    ),
}

CALLS: dict[str, tuple[Operation, set[str]]] = {
    "mail.put": (lambda c: c.mail.put("agent:busy", 1), set()),
    "mail.put with a key that was seen": (
        lambda c: c.mail.put("queue:busy", 1, key="open-1"),
        {"letters_by_key"},
    ),
    "mail.claim": (
        lambda c: c.mail._take("queue:busy", owner="o"),
        {"letters_line", "letters_pkey"},
    ),
    "mail.claim in order": (
        lambda c: c.mail._take("agent:busy", owner="o"),
        {"letters_line", "letters_started", "letters_pkey"},
    ),
    "mail.claim of many in order": (
        lambda c: c.mail._take("agent:busy", owner="o", limit=10),
        {"letters_line", "letters_started", "letters_pkey"},
    ),
    # New since the last look that PostgreSQL took at its statistics, however full it is by now.
    "mail.claim from a mailbox without statistics": (
        lambda c: c.mail._take("queue:new", owner="o"),
        {"letters_line", "letters_pkey"},
    ),
    "mail.claim in order from a mailbox without statistics": (
        lambda c: c.mail._take("agent:new", owner="o"),
        {"letters_line", "letters_started", "letters_pkey"},
    ),
    "mail.next_due": (lambda c: c.mail.next_due("agent:busy"), {"letters_line"}),
    "mail.get": (lambda c: c.mail.get("let_5"), {"letters_pkey"}),
    "mail.expire_due": (lambda c: c.mail.expire_due(limit=5), {"letters_expiring", "letters_pkey"}),
    "mail.list": (lambda c: c.mail.list(), {"letters_line"}),
    "mail.list of a mailbox": (lambda c: c.mail.list(mailbox="agent:busy"), {"letters_line"}),
    "mail.list all": (lambda c: c.mail.list(all=True), {"letters_pkey"}),
    "mail.list all of a mailbox": (
        lambda c: c.mail.list(all=True, mailbox="agent:a5"),
        {"letters_by_mailbox"},
    ),
    "mail.list refused": (lambda c: c.mail.list(state="refused"), {"letters_by_state"}),
    "mail.list unknown": (lambda c: c.mail.list(state="unknown"), {"letters_by_state"}),
    "mail.dead": (lambda c: c.mail.dead(), {"letters_by_state"}),
    "events.after": (lambda c: c.events.after(), {"the feed"}),
    "events.newest": (lambda c: c.events.newest(), {"the feed"}),
    "events.newest of a subject": (
        lambda c: c.events.newest(subject="let_7"),
        {"events_by_subject"},
    ),
    "events.newest of a project": (
        lambda c: c.events.newest(project="prj_4"),
        {"events_by_project"},
    ),
    "schedules.fire_due": (
        lambda c: c.schedules.fire_due(limit=3),
        {"schedules_due", "an open schedule", "settings_pkey"},
    ),
    "schedules.next_at": (lambda c: c.schedules.next_at(), {"schedules_due"}),
    "schedules.list": (lambda c: c.schedules.list(), {"schedules_open"}),
    "schedules.get": (lambda c: c.schedules.get(SCHEDULE), {"schedules_pkey"}),
    "timers.set": (
        lambda c: c.timers.set("agent:a5", 1, delay_ms=5_000),
        {"schedules_by_mailbox", "settings_pkey"},
    ),
    "projects.get by a shortened id": (lambda c: c.projects.get(PROJECT), {"projects_pkey"}),
    "projects.by_dir": (lambda c: c.projects.by_dir("/srv/7"), {"projects_dir_key"}),
    "projects.touch": (lambda c: c.projects.touch(PROJECT), {"projects_pkey"}),
    "projects.list": (lambda c: c.projects.list(), {"projects_recent"}),
    "projects.delete": (
        lambda c: c.projects.delete("prj_9x"),
        {"projects_pkey", "schedules_by_project", "settings_pkey"},
    ),
    "nodes.list": (lambda c: c.nodes.list(), {"nodes_pkey"}),
    "nodes.lose_silent": (lambda c: c.nodes.lose_silent(), {"nodes_up"}),
    "nodes.take_lead": (lambda c: c.nodes.take_lead("loop1", owner="d"), set()),
    "nodes.yield_lead": (lambda c: c.nodes.yield_lead("loop1", owner="d"), {"leaders_pkey"}),
    "settings.get": (
        lambda c: c.settings.get("mail.max_attempts", agent="a7", project="prj_1"),
        {"settings_pkey"},
    ),
    "settings.list": (lambda c: c.settings.list(scope="agent:a7"), {"settings_pkey"}),
    "db.prune, dry run": (
        lambda c: c.db.prune(dry_run=True),
        {"letters_pkey", "events_pkey", "schedules_pkey", "nodes_pkey", "settings_pkey"},
    ),
    "secrets.get": (lambda c: c.secrets.get("s7"), {"secrets_pkey"}),
}

Explain = Callable[[Call], list[Plan]]


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def used(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a store with a long past, made once for all these tests."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('plans')}/corral.db"
    else:
        url = request.getfixturevalue("postgres_server").new_database()
    fill(url, SetClock().now())
    yield url
    if request.param == "postgres":
        request.getfixturevalue("postgres_server").drop_database(url)


@pytest.fixture
def old_store(used: str) -> Iterator[Corral]:
    with corral.open(used, clock=SetClock(), actor="user:tester") as store:
        store.mail.put("agent:warm", 1)  # opens the connection that writes
        yield store


@pytest.fixture
def explain(used: str) -> Iterator[Explain]:
    if used.startswith("sqlite"):
        file = apsw.Connection(used.removeprefix("sqlite:///"))
        yield lambda call: [sqlite_plan(file, *call)]
        file.close()
        return
    with psycopg.connect(used, autocommit=True) as server:
        yield lambda call: postgres_plans(server, *call)


def look(name: str, calls: list[Call], explain: Explain, wanted: set[str], engine: str) -> None:
    used: set[str] = set()
    for call in calls:
        for plan in explain(call):
            faults = [fault for fault in plan.faults if fault != WALKS.get(name)]
            assert not faults, f"{call.statement.text}\n\n{plan.text}"
            used |= plan.indexes
    if name in WALKS and engine == "sqlite":
        return
    assert used == {DIFFER[each][engine] if each in DIFFER else each for each in wanted}


@pytest.mark.parametrize("name", CALLS)
def test_an_operation_uses_its_indexes_and_reads_no_whole_table(
    old_store: Corral, explain: Explain, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    operation, wanted = CALLS[name]
    with traced(old_store, monkeypatch) as trace:
        operation(old_store)
    assert trace.calls
    look(name, trace.calls, explain, wanted, old_store.db.engine)


@pytest.mark.parametrize("name", READY)
def test_an_operation_on_what_was_found_before_uses_its_indexes_too(
    old_store: Corral, explain: Explain, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    prepare, wanted = READY[name]
    operation: Any = prepare(old_store)
    with traced(old_store, monkeypatch) as trace:
        operation(old_store)
    assert trace.calls
    look(name, trace.calls, explain, wanted, old_store.db.engine)
