"""The cost of each frequent operation: its number of transactions and statements.

SQLite has no round trips, so a transition and its event are two statements; on PostgreSQL they are
one, and a single statement commits by itself.
"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from corral.adapters.channels.contract import IncomingEvent
from corral.adapters.providers.facts import UsageFact
from corral.api import Corral
from corral.db.statement import Statement
from corral.domain.checkpoints.model import NewCheckpointWrite
from corral.domain.mail import ops as mail
from corral.kernel.clock import HOUR, ManualClock
from tests.support.run_factories import held, queued, run_spec, running, starting
from tests.support.statement_trace import Trace, trace_statements

Operation = Callable[[], object]
Prepare = Callable[[Corral, ManualClock, Path], Operation]


def put(store: Corral, clock: ManualClock, folder: Path) -> Operation:
    return lambda: store.mail.put("queue:x", 1)


def put_with_key(store: Corral, clock: ManualClock, folder: Path) -> Operation:
    return lambda: store.mail.put("queue:x", 1, key="k")


def put_with_a_known_key(store: Corral, clock: ManualClock, folder: Path) -> Operation:
    store.mail.put("queue:x", 1, key="k")
    return lambda: store.mail.put("queue:x", 1, key="k")


def claim(box: str) -> Prepare:
    def prepare(store: Corral, clock: ManualClock, folder: Path) -> Operation:
        store.mail.put(box, 1)
        return lambda: store.mail.claim(box, owner="o")

    return prepare


def claim_from_empty_mailbox(box: str) -> Prepare:
    return lambda store, clock, folder: lambda: store.mail.claim(box, owner="o")


def on_claimed_letter(verb: str, *arguments: Any, box: str = "queue:x", **named: Any) -> Prepare:
    def prepare(store: Corral, clock: ManualClock, folder: Path) -> Operation:
        store.mail.put(box, 1)
        store.mail.put(box, 2)
        (letter,) = store.mail.claim(box, owner="o")
        return lambda: getattr(store.mail, verb)(letter, *arguments, **named)

    return prepare


def fire(schedules: int) -> Prepare:
    def prepare(store: Corral, clock: ManualClock, folder: Path) -> Operation:
        for _ in range(schedules):
            store.schedules.create("queue:x", 1, every_ms=HOUR)
        clock.advance(HOUR)
        return store.schedules.fire_due

    return prepare


def register(store: Corral, clock: ManualClock, folder: Path) -> Operation:
    return lambda: store.projects.register(folder)


def register_again(store: Corral, clock: ManualClock, folder: Path) -> Operation:
    store.projects.register(folder)
    return lambda: store.projects.register(folder)


def heartbeat(store: Corral, clock: ManualClock, folder: Path) -> Operation:
    node = store.internal.nodes.join("host", "boot", owner="d")
    return lambda: store.internal.nodes.heartbeat(node)


def acquire_leadership(store: Corral, clock: ManualClock, folder: Path) -> Operation:
    return lambda: store.internal.nodes.acquire_leadership("loop", owner="d")


def get(store: Corral, clock: ManualClock, folder: Path) -> Operation:
    letter = store.mail.put("queue:x", 1)
    return lambda: store.mail.get(letter.id)


def list_letters(store: Corral, clock: ManualClock, folder: Path) -> Operation:
    return store.mail.list


def feed(store: Corral, clock: ManualClock, folder: Path) -> Operation:
    return store.events.after


def append(**more: Any) -> Prepare:
    def prepare(store: Corral, clock: ManualClock, folder: Path) -> Operation:
        session = store.sessions.open()
        return lambda: store.sessions.append(session.id, "user", "hi", **more)

    return prepare


def last_turns(store: Corral, clock: ManualClock, folder: Path) -> Operation:
    session = store.sessions.open()
    return lambda: store.sessions.last(session.id)


def get_session(store: Corral, clock: ManualClock, folder: Path) -> Operation:
    session = store.sessions.open()
    return lambda: store.sessions.get(session.id)


def put_checkpoint(store: Corral, clock: ManualClock, folder: Path) -> Operation:
    return lambda: store.checkpoints.put("t", "c", "json", b"x")


def put_writes(count: int) -> Prepare:
    writes = [NewCheckpointWrite(number, "channel", "json", b"x") for number in range(count)]
    return lambda store, clock, folder: (
        lambda: store.checkpoints.put_writes("t", "c", "task", writes)
    )


def on_checkpoints(verb: str, *arguments: Any, **named: Any) -> Prepare:
    """With three checkpoints of a thread and their writes."""

    def prepare(store: Corral, clock: ManualClock, folder: Path) -> Operation:
        for id in ("c1", "c2", "c3"):
            store.checkpoints.put("t", id, "json", b"x")
            writes = [NewCheckpointWrite(number, "channel", "json", b"x") for number in range(3)]
            store.checkpoints.put_writes("t", id, "task", writes)
        return lambda: getattr(store.checkpoints, verb)(*arguments, **named)

    return prepare


def request_run(store: Corral, clock: ManualClock, folder: Path) -> Operation:
    return lambda: store.internal.runs.enqueue(run_spec())


def start_run(store: Corral, clock: ManualClock, folder: Path) -> Operation:
    run = queued(store)
    return lambda: store.internal.runs.acquire(run.id, held())


def launch_run(store: Corral, clock: ManualClock, folder: Path) -> Operation:
    run = starting(store)
    return lambda: store.internal.runs.launch(run)


def on_run(verb: str, *arguments: Any, **named: Any) -> Prepare:
    def prepare(store: Corral, clock: ManualClock, folder: Path) -> Operation:
        run = running(store)
        return lambda: getattr(store.internal.runs, verb)(run, *arguments, **named)

    return prepare


def charge(store: Corral, clock: ManualClock, folder: Path) -> Operation:
    report = UsageFact(model="m", input=1, key="k")
    return lambda: store.charges.add(report, run_id="run_1", project_id="prj_1", agent_id="agn_1")


def charge_by_counter(store: Corral, clock: ManualClock, folder: Path) -> Operation:
    report = UsageFact(model="m", input=1, key="k", counter="c")
    return lambda: store.charges.add(report, run_id="run_1")


def total(store: Corral, clock: ManualClock, folder: Path) -> Operation:
    return lambda: store.charges.total("project:prj_1")


def find_exceeded_budget(store: Corral, clock: ManualClock, folder: Path) -> Operation:
    return lambda: store.internal.charges.exceeded_budget("run_1", project_id="prj_1")


def receive(events: int) -> Prepare:
    """A message of a known sender, in a place that is wired to an agent."""

    def prepare(store: Corral, clock: ManualClock, folder: Path) -> Operation:
        store.agents.create("ada", provider="scripted")
        channel = store.channels.add("chat", "terminal").id
        store.wirings.add("ada", channel="chat")

        def event(number: int) -> IncomingEvent:
            return IncomingEvent(event_id=f"e{number}", place="p", sender="ann", text="what now?")

        store.messages.receive(channel, event(0))
        batch = [event(number) for number in range(1, events + 1)]
        return lambda: store.messages.receive_all(channel, batch)

    return prepare


# name: preparation, statements on SQLite, statements on PostgreSQL (including BEGIN and COMMIT,
# because each is a round trip).
COSTS: dict[str, tuple[Prepare, int, int]] = {
    "put": (put, 2, 1),
    "put with a key": (put_with_key, 2, 1),
    "put with a known key": (put_with_a_known_key, 2, 2),
    "claim": (claim("queue:x"), 1, 1),
    "claim in order": (claim("agent:x"), 1, 4),
    "claim from an empty mailbox": (claim_from_empty_mailbox("queue:x"), 1, 1),
    "claim from an empty mailbox in order": (claim_from_empty_mailbox("agent:x"), 1, 4),
    "ack": (on_claimed_letter("ack"), 2, 1),
    "renew": (on_claimed_letter("renew"), 1, 1),
    "begin_delivery": (on_claimed_letter("begin_delivery"), 2, 1),
    "ack_and_claim": (on_claimed_letter("ack_and_claim", owner="o"), 3, 4),
    "ack_and_claim in order": (on_claimed_letter("ack_and_claim", owner="o", box="agent:x"), 3, 5),
    "fail": (on_claimed_letter("fail", "no"), 5, 6),
    "fire_due without due schedules": (fire(0), 1, 3),
    "fire_due of one": (fire(1), 7, 7),
    "fire_due of three": (fire(3), 19, 15),
    "register": (register, 2, 3),
    "register again": (register_again, 2, 4),
    "heartbeat": (heartbeat, 1, 1),
    "acquire_leadership": (acquire_leadership, 1, 1),
    "get": (get, 1, 1),
    "list": (list_letters, 1, 1),
    "events.after": (feed, 1, 1),
    "append": (append(), 2, 1),
    "append with a key": (append(key="k"), 3, 5),
    "last": (last_turns, 2, 4),
    "sessions.get": (get_session, 1, 1),
    "checkpoints.put": (put_checkpoint, 1, 1),
    "checkpoints.put_writes of one": (put_writes(1), 1, 1),
    # On PostgreSQL the three are sent in one round trip.
    "checkpoints.put_writes of three": (put_writes(3), 3, 5),
    "checkpoints.get": (on_checkpoints("get", "t", id="c2"), 1, 1),
    "checkpoints.get, the latest": (on_checkpoints("get", "t"), 1, 1),
    "checkpoints.history": (on_checkpoints("history", "t", ns=""), 2, 4),
    "charges.add": (charge, 3, 5),
    "charges.add of a counter, with a key": (charge_by_counter, 6, 9),
    "charges.total": (total, 1, 1),
    # Known events, the wirings; the message and the letter, each with its event.
    "receive": (receive(1), 6, 7),
    "receive ten at once": (receive(10), 43, 35),
    "charges.exceeded_budget": (find_exceeded_budget, 1, 1),
}


def trace_operation(
    prepare: Prepare, store: Corral, clock: ManualClock, folder: Path, patch: pytest.MonkeyPatch
) -> Trace:
    store.settings.set("mail.max_attempts", 6)  # opens the write connection
    operation = prepare(store, clock, folder)
    with trace_statements(store, patch) as trace:
        operation()
    return trace


@pytest.mark.parametrize("name", COSTS)
def test_operation_is_one_transaction_with_a_fixed_statement_count(
    store: Corral, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    prepare, on_sqlite, on_postgres = COSTS[name]
    trace = trace_operation(prepare, store, clock, tmp_path, monkeypatch)
    # If the first statement finds nothing to write, the second only reads.
    has_second_read = store.db.engine == "postgres" and name == "put with a known key"
    assert trace.transactions == (2 if has_second_read else 1), trace.texts
    if store.db.engine == "sqlite":
        assert trace.statements == on_sqlite, trace.texts
    else:
        assert len(trace.texts) == on_postgres, trace.texts


BACK_OFF = Statement("""
    UPDATE letters SET attempts = 1, fence = 2, due_at = :later WHERE mailbox = :mailbox
""")


ROWS_READ = Statement("""
    SELECT coalesce(sum(seq_tup_read + idx_tup_fetch), 0) FROM pg_stat_xact_user_tables
""")


def measure_claim(store: Corral, limit: int, *, between_attempts: int) -> int:
    """Return the work of a claim in an ordered mailbox: SQLite's steps, PostgreSQL's rows.

    Letters of a lower priority wait for a retry before the claimed ones.
    """
    mailbox = f"agent:{between_attempts}"
    with store.transaction() as tx:
        for number in range(between_attempts):
            mail.put(tx, mailbox, number, priority=-1)
        tx.run(BACK_OFF, mailbox=mailbox, later=tx.now + HOUR)
        for number in range(limit):
            mail.put(tx, mailbox, number)
    with store.transaction() as tx, ExitStack() as counting:
        steps = 0

        def count() -> bool:
            nonlocal steps
            steps += 1
            return False

        if store.db.engine == "sqlite":
            writer = store._database._shared.writer.connection
            writer.set_progress_handler(count, 1)
            counting.callback(writer.set_progress_handler, None)
        before = 0 if store.db.engine == "sqlite" else int(tx.value(ROWS_READ))
        assert len(mail.claim_letters(tx, mailbox, owner="o", limit=limit)) == limit
        return steps if store.db.engine == "sqlite" else int(tx.value(ROWS_READ)) - before


def test_batch_claim_in_order_reads_held_back_letters_once(store: Corral) -> None:
    """Regression test: the claim read them once per claimed letter, a hundred times as often."""
    alone = measure_claim(store, 500, between_attempts=0)
    behind_others = measure_claim(store, 500, between_attempts=5_000)
    print(f"500 letters: {alone:,}, past 5,000 others {behind_others:,}")
    assert behind_others < 20 * alone
