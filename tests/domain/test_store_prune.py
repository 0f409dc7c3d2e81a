"""Pruning: retention per table, dry runs, and rows that are still in use."""

import pytest

from corral.adapters.providers.facts import UsageFact
from corral.adapters.transcripts.reader import TranscriptHead
from corral.api import Corral
from corral.db.statement import Statement
from corral.domain.imports import ops as imports
from corral.kernel.clock import DAY, HOUR, MINUTE, YEAR, ManualClock
from corral.kernel.errors import NotFound
from tests.support.store import rows, unchanged, write

NO_ROWS = {
    name: 0
    for name in (
        "letters",
        "events",
        "schedules",
        "occurrences",
        "nodes",
        "alerts",
        "tokens",
        "idempotency_keys",
        "charges",
        "usage_totals",
        "usage_counters",
        "imports",
        "import_origins",
        "locks",
        "file_touches",
        "delegations",
        "plans",
        "checkpoint_writes",
        "checkpoints",
        "progress",
        "tasks",
        "races",
        "questions",
        "decisions",
        "messages",
        "question_cards",
        "host_requests",
        "letter_chains",
        "sandbox_outcomes",
        "posts",
        "reactions",
        "groups",
        "notes",
        "sessions",
        "outputs",
        "runs",
    )
}
SERIES = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"


def prune_counts(store: Corral, *, dry_run: bool = False) -> dict[str, int]:
    return {result.table: result.rows for result in store.db.prune(dry_run=dry_run)}


def add_done_letter(store: Corral, body: object) -> str:
    store.mail.put("queue:x", body)
    return store.mail.ack(store.mail.claim("queue:x", owner="o")[0]).id


def test_new_store_prunes_nothing(store: Corral) -> None:
    add_done_letter(store, 1)
    with unchanged(store):
        assert prune_counts(store) == NO_ROWS


def test_old_ended_letters_are_pruned_and_open_ones_kept(store: Corral, clock: ManualClock) -> None:
    expired = add_done_letter(store, "old")
    open_letter = store.mail.put("agent:ada", "open")
    clock.advance(30 * DAY)
    recent = add_done_letter(store, "recent")
    clock.advance(1)
    assert prune_counts(store)["letters"] == 1
    assert store.mail.get(open_letter.id).body == "open"
    assert store.mail.get(recent).body == "recent"
    with pytest.raises(NotFound):
        store.mail.get(expired)


def test_retention_of_a_letter_counts_from_its_end(store: Corral, clock: ManualClock) -> None:
    store.mail.put("agent:ada", 1)
    clock.advance(YEAR)
    ended = store.mail.ack(store.mail.claim("agent:ada", owner="o")[0])
    clock.advance(29 * DAY)
    assert prune_counts(store)["letters"] == 0
    assert store.mail.get(ended.id) == ended


def test_retention_time_is_a_setting(store: Corral, clock: ManualClock) -> None:
    store.settings.set("mail.retention_ms", HOUR)
    add_done_letter(store, 1)
    store.mail.put("agent:ada", "newer")
    clock.advance(HOUR)
    assert prune_counts(store)["letters"] == 0
    clock.advance(1)
    (letters,) = [result for result in store.db.prune() if result.table == "letters"]
    assert (letters.rows, letters.retention_ms) == (1, HOUR)


def test_events_are_pruned_except_the_newest(store: Corral, clock: ManualClock) -> None:
    for n in range(5):
        store.mail.put("agent:ada", n)
    clock.advance(2 * YEAR)
    assert prune_counts(store)["events"] == 4
    assert rows(store, "SELECT seq FROM events") == [(5,)]
    assert prune_counts(store)["events"] == 0


def test_old_event_cursor_continues_after_prune(store: Corral, clock: ManualClock) -> None:
    store.mail.put("agent:ada", 1)
    cursor = store.events.after().next
    store.mail.put("agent:ada", 2)
    clock.advance(2 * YEAR)
    letter = store.mail.put("agent:ada", 3)
    store.db.prune()
    assert [event.subject for event in store.events.after(cursor).items] == [letter.id]


def test_pruned_number_is_never_reused(store: Corral, clock: ManualClock) -> None:
    for n in range(3):
        add_done_letter(store, n)
    clock.advance(31 * DAY)
    assert prune_counts(store)["letters"] == 2, "the newest row is kept for its number"
    assert store.mail.put("agent:ada", 2).id == "let_4"
    clock.advance(31 * DAY)
    assert prune_counts(store)["letters"] == 1


def test_dry_run_counts_the_same_rows_and_deletes_none(store: Corral, clock: ManualClock) -> None:
    for n in range(3):
        add_done_letter(store, n)
    timer = store.timers.set("agent:ada", 1, delay_ms=HOUR)
    store.timers.cancel(timer.id)
    clock.advance(2 * YEAR)
    add_done_letter(store, "recent")
    with unchanged(store):
        counts = prune_counts(store, dry_run=True)
    assert counts == NO_ROWS | {"letters": 3, "events": 8, "schedules": 1}
    assert prune_counts(store) == counts
    assert prune_counts(store) == NO_ROWS


def test_dry_run_counts_thousands_of_rows_correctly(store: Corral, clock: ManualClock) -> None:
    long_ago = clock.now() - 3 * YEAR
    with store.transaction() as tx:
        tx.run(
            Statement(f"""
            INSERT INTO letters (mailbox, body, rank, state, due_at, queue_at, fence, attempts,
                created_at, ended_at)
            {SERIES.format(count=3_500)}
            SELECT 'agent:ada', '1', 0, CASE i % 7 WHEN 0 THEN 'waiting' ELSE 'done' END, 1, 1, 0,
                0, {long_ago}, CASE i % 7 WHEN 0 THEN NULL ELSE {long_ago} END FROM n""")
        )
        tx.run(
            Statement(f"""
            INSERT INTO events (at, actor, kind, verb, subject)
            {SERIES.format(count=2_500)} SELECT {long_ago}, 'x', 'k', 'v', 's' FROM n""")
        )
        tx.run(
            Statement(f"""
            INSERT INTO schedules (id, mailbox, body, priority, kind, rule, time_zone, anchor_at,
                misfire, overlap, state, created_at, ended_at)
            {SERIES.format(count=2_200)}
            SELECT 'sch_' || i, 'agent:ada', '1', 0, 'once', '', 'UTC', 1, 'all', 'allow',
                'finished', {long_ago}, {long_ago} FROM n""")
        )
    counts = prune_counts(store, dry_run=True)
    assert counts == NO_ROWS | {
        "letters": 3_000,
        "events": 2_499,
        "schedules": 2_200,
    }
    assert prune_counts(store) == counts
    assert rows(store, "SELECT count(*) FROM letters") == [(500,)]


def test_retention_of_a_schedule_counts_from_its_end(store: Corral, clock: ManualClock) -> None:
    schedule = store.schedules.create("agent:ada", 1, every_ms=YEAR)
    clock.advance(100 * DAY)
    store.schedules.delete(schedule.id)
    clock.advance(MINUTE)
    assert prune_counts(store)["schedules"] == 0, "the schedule ended a minute ago"
    clock.advance(91 * DAY)
    assert prune_counts(store)["schedules"] == 1


def test_active_schedules_are_never_pruned(store: Corral, clock: ManualClock) -> None:
    store.schedules.create("agent:ada", 1, every_ms=YEAR)
    paused = store.schedules.create("agent:ada", 1, every_ms=YEAR)
    store.schedules.pause(paused.id)
    clock.advance(3 * YEAR)
    assert prune_counts(store)["schedules"] == 0


def test_ended_nodes_are_pruned_and_others_kept(store: Corral, clock: ManualClock) -> None:
    stopped = store.internal.nodes.join("old", "boot 1", owner="d")
    store.internal.nodes.leave(stopped)
    lost = store.internal.nodes.join("silent", "boot 1", owner="d")
    store.internal.nodes.mark_lost()
    live = store.internal.nodes.join("up", "boot 1", owner="d", lease_ms=DAY)
    store.internal.nodes.acquire_leadership("loop", owner="d")
    clock.advance(30 * DAY)
    assert [node.id for node in store.internal.nodes.mark_lost()] == [lost.id, live.id]
    live = store.internal.nodes.join("up", "boot 1", owner="d")
    clock.advance(60 * DAY)
    assert prune_counts(store)["nodes"] == 0, "the retention of 90 days has not passed"
    clock.advance(1)
    assert prune_counts(store, dry_run=True)["nodes"] == 2
    assert prune_counts(store)["nodes"] == 2
    assert [node.id for node in store.nodes.list().items] == [live.id]
    # Leadership rows are never pruned, because a fence must not be reused.
    assert store.internal.nodes.acquire_leadership("loop", owner="another").fence == 2


def test_pruned_node_can_register_again(store: Corral, clock: ManualClock) -> None:
    stopped = store.internal.nodes.join("host", "boot", owner="d")
    store.internal.nodes.leave(stopped)
    clock.advance(YEAR)
    assert prune_counts(store)["nodes"] == 1
    assert store.internal.nodes.join("host", "boot", owner="d").id != stopped.id
    with pytest.raises(NotFound):
        store.internal.nodes.heartbeat(stopped)


def test_all_time_totals_are_never_pruned(store: Corral, clock: ManualClock) -> None:
    store.charges.add(
        UsageFact(model="gpt-5", input=10, cost_micros=7), run_id="run_1", session_id="ses_1"
    )
    scopes = ("all", "model:gpt-5", "run:run_1", "session:ses_1")
    clock.advance(3 * YEAR + 2 * DAY)
    store.charges.add(UsageFact(model="gpt-6", input=10, cost_micros=1), run_id="run_2")
    assert prune_counts(store, dry_run=True)["usage_totals"] == 4  # two days, the run, the session
    assert prune_counts(store)["usage_totals"] == 4
    assert [store.charges.total(scope).cost_micros for scope in scopes] == [8, 7, None, None]
    assert store.charges.total("run:run_2").cost_micros == 1
    assert prune_counts(store)["usage_totals"] == 0


def test_retention_of_imported_files_counts_from_last_change(
    store: Corral, clock: ManualClock
) -> None:
    store.settings.set("imports.apply_retention", True)
    write(
        store,
        lambda tx: imports.begin_transcript(
            tx, "claude", "/srv/old.jsonl", TranscriptHead("one", title="old")
        ),
    )
    clock.advance(2 * YEAR)
    write(
        store,
        lambda tx: imports.begin_transcript(
            tx, "claude", "/srv/new.jsonl", TranscriptHead("two", title="new")
        ),
    )
    clock.advance(YEAR + 2 * DAY)
    assert prune_counts(store)["imports"] == 0, "imports are kept while their sessions exist"
    rows(store, "DELETE FROM sessions RETURNING 1")
    assert prune_counts(store)["imports"] == 1
    assert rows(store, "SELECT path FROM imports") == [("/srv/new.jsonl",)]


def test_deleted_output_of_a_lost_machine_is_pruned(store: Corral, clock: ManualClock) -> None:
    store.internal.outputs.begin("run_1", host="other-host", folder="/srv/runs/1")
    store.outputs.delete("run_1")
    clock.advance(90 * DAY)
    prune_counts(store)
    assert rows(store, "SELECT run_id FROM outputs") == [("run_1",)]
    clock.advance(1)
    prune_counts(store)
    assert rows(store, "SELECT run_id FROM outputs") == []


def test_session_with_unread_mail_is_not_pruned(store: Corral, clock: ManualClock) -> None:
    """Unread letters keep a closed session, and those of a fork also its parent."""
    session = store.sessions.open()
    store.sessions.append(session, "user", "hello")
    fork = store.sessions.fork(session)
    letter = store.mail.put(f"session:{fork.id}", "unread")
    for closed in (fork, session):
        store.sessions.close(closed)
    clock.advance(5 * YEAR)

    def count_pruned_sessions(*, dry_run: bool) -> int:
        results = store.db.prune(dry_run=dry_run)
        return next(result.rows for result in results if result.table == "sessions")

    assert (count_pruned_sessions(dry_run=True), count_pruned_sessions(dry_run=False)) == (0, 0)
    assert store.sessions.get(fork.id).state == "closed"
    store.mail.drop(letter.id)
    assert (count_pruned_sessions(dry_run=True), count_pruned_sessions(dry_run=False)) == (2, 2)
