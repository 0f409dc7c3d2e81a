"""Sessions: hand-offs, clears, forks and retention."""

from typing import Any

import pytest

from corral.api import Corral
from corral.domain.sessions import retention
from corral.domain.sessions.model import NewTurn, Session
from corral.kernel.clock import DAY, YEAR, ManualClock
from corral.kernel.errors import Conflict, IllegalMove, Invalid, NotFound, Refused
from tests.support.grouped_cases import each_case
from tests.support.invariants import check_store
from tests.support.store import list_events, raises_without_change, rows, unchanged, walk


@pytest.fixture(autouse=True)
def agents(store: Corral) -> None:
    store.agents.create("ada", provider="claude")
    store.agents.create("ben", provider="codex")


def append_turns(store: Corral, session: Session, *contents: object) -> None:
    store.sessions.append_many(session, [NewTurn("user", str(turn)) for turn in contents])


def list_numbers(store: Corral, session: Session) -> list[int]:
    return [turn.number for turn in store.sessions.turns(session).items]


def list_context_numbers(store: Corral, session: Session) -> list[int]:
    return [turn.number for turn in store.sessions.context(session).turns]


def test_handoff_gives_last_turns_and_note_and_keeps_history(store: Corral) -> None:
    session = store.sessions.open("ada")
    append_turns(store, session, *range(20))
    store.sessions.set_provider_session(session, "claude", "abc")
    handoff = store.sessions.handoff(session, "ben", "last", "a note", last=5)
    assert (handoff.number, handoff.at_turn, handoff.from_turn) == (1, 20, 15)
    context = store.sessions.context(session)
    assert [turn.number for turn in context.turns] == [16, 17, 18, 19, 20]
    assert (context.note, context.summary) == ("a note", None)
    assert list_numbers(store, session) == list(range(1, 21))
    updated = store.sessions.get(session.id)
    assert updated.agent_id == context.agent_id == store.agents.get("ben").id
    assert (updated.provider, updated.provider_session) == ("codex", None)
    assert rows(store, "SELECT count(*) FROM handoffs") == [(1,)]
    assert list_events(store, session.id)[-1] == "session.handoff"


def test_context_includes_turns_since_the_handoff(store: Corral) -> None:
    session = store.sessions.open("ada")
    append_turns(store, session, *range(4))
    store.sessions.handoff(session, "ben", "last", last=1)
    append_turns(store, session, "new")
    assert list_context_numbers(store, session) == [4, 5]


def test_summary_policy_gives_no_earlier_turns(store: Corral) -> None:
    session = store.sessions.open("ada")
    append_turns(store, session, *range(4))
    store.sessions.handoff(session, "ben", "summary", summary="a summary")
    append_turns(store, session, "new")
    context = store.sessions.context(session)
    assert context.summary == "a summary"
    assert list_context_numbers(store, session) == [5]


def test_all_policy_gives_turns_that_an_earlier_handoff_omitted(store: Corral) -> None:
    session = store.sessions.open("ada")
    append_turns(store, session, 1, 2)
    store.sessions.handoff(session, "ben", "summary", "n", summary="s")
    store.sessions.handoff(session, "ada", "all")
    context = store.sessions.context(session)
    assert (context.note, context.summary) == (None, None)
    assert list_context_numbers(store, session) == [1, 2]
    handoffs = walk(lambda **page: store.sessions.handoffs(session, **page), limit=1)
    assert [(handoff.number, handoff.policy) for handoff in handoffs] == [
        (1, "summary"),
        (2, "all"),
    ]


@each_case(
    ("policy", "options"),
    [
        ("some", {}),
        ("last", {}),
        ("last", {"last": 0}),
        ("last", {"last": -2}),
        ("all", {"last": 3}),
        ("summary", {}),
        ("summary", {"last": 3, "summary": "s"}),
    ],
)
def test_invalid_handoff_policies_are_rejected(
    store: Corral, policy: str, options: dict[str, Any]
) -> None:
    session = store.sessions.open("ada")
    with raises_without_change(store, Invalid):
        store.sessions.handoff(session, "ben", policy, **options)


def test_handoff_requires_active_agent_and_open_session(
    store: Corral,
) -> None:
    session = store.sessions.open("ada")
    with raises_without_change(store, NotFound):
        store.sessions.handoff(session, "eve")
    store.agents.retire("ben")
    with raises_without_change(store, Refused):
        store.sessions.handoff(session, "ben")
    store.sessions.close(session)
    with raises_without_change(store, IllegalMove):
        store.sessions.handoff(session, "ada")
    with raises_without_change(store, IllegalMove):
        store.sessions.clear(session)


def test_provider_session_of_the_previous_agent_is_rejected(store: Corral) -> None:
    session = store.sessions.open("ada")
    store.sessions.set_provider_session(session, "claude", "a", agent="ada")
    store.sessions.handoff(session, "ben")
    with raises_without_change(store, Conflict):
        store.sessions.set_provider_session(session, "claude", "b", agent="ada")
    store.sessions.set_provider_session(session, "codex", "c", agent="ben")


# -- clear ---------------------------------------------------------------------------------------


def test_clear_resets_the_context_and_keeps_turns_readable(store: Corral) -> None:
    session = store.sessions.open("ada")
    append_turns(store, session, 1, 2)
    store.sessions.set_state(session, "a", 1)
    store.sessions.set_provider_session(session, "claude", "abc")
    cleared = store.sessions.clear(session)
    assert (cleared.provider_session, cleared.cleared_turn) == (None, 2)
    assert store.sessions.state(session) == {}
    assert list_context_numbers(store, session) == []
    append_turns(store, session, 3)
    assert list_context_numbers(store, session) == [3]
    assert list_numbers(store, session) == [1, 2, 3]


def test_clear_ends_the_handoff_and_limits_the_next_one(store: Corral) -> None:
    session = store.sessions.open("ada")
    append_turns(store, session, 1, 2)
    store.sessions.handoff(session, "ben", "all", "a note")
    store.sessions.clear(session)
    assert store.sessions.context(session).note is None
    append_turns(store, session, 3)
    store.sessions.handoff(session, "ada", "last", last=10)
    assert list_context_numbers(store, session) == [3]
    store.sessions.handoff(session, "ben", "all")
    assert list_context_numbers(store, session) == [3]


def test_long_context_is_paginated(store: Corral) -> None:
    session = store.sessions.open("ada")
    append_turns(store, session, *range(5))
    page = store.sessions.context(session, limit=3)
    next_page = store.sessions.context(session, after=page.next, limit=3)
    assert [turn.number for turn in page.turns + next_page.turns] == [1, 2, 3, 4, 5]
    assert next_page.next is None


# -- forks ---------------------------------------------------------------------------------------


def test_fork_shows_turns_of_its_parent_without_copies(store: Corral) -> None:
    session = store.sessions.open("ada", title="t")
    append_turns(store, session, *"abcde")
    fork = store.sessions.fork(session, 3)
    assert (fork.parent_id, fork.parent_turn, fork.turns) == (session.id, 3, 3)
    assert (fork.title, fork.agent_id, fork.state) == ("t", session.agent_id, "open")
    assert rows(store, "SELECT count(*) FROM turns") == [(5,)]
    append_turns(store, fork, "x", "y")
    append_turns(store, session, "f")
    assert [turn.content for turn in store.sessions.turns(fork).items] == list("abcxy")
    assert [turn.content for turn in store.sessions.turns(session).items] == list("abcdef")
    assert list_numbers(store, fork) == [1, 2, 3, 4, 5]


def test_nested_forks_are_paginated_in_both_directions(store: Corral) -> None:
    session = store.sessions.open("ada")
    append_turns(store, session, *"abcd")
    first_fork = store.sessions.fork(session, 3)
    append_turns(store, first_fork, *"ef")
    second_fork = store.sessions.fork(first_fork)
    append_turns(store, second_fork, *"gh")
    third_fork = store.sessions.fork(second_fork, 2)
    empty_fork = store.sessions.fork(second_fork, 0)
    for fork, text in (
        (first_fork, "abcef"),
        (second_fork, "abcefgh"),
        (third_fork, "ab"),
        (empty_fork, ""),
    ):
        for limit in (1, 2, 3, 10):

            def read_page(fork: Session = fork, **options: Any) -> Any:
                return store.sessions.turns(fork, **options)

            assert "".join(turn.content for turn in walk(read_page, limit=limit)) == text
            backwards = walk(read_page, limit=limit, newest=True)
            assert "".join(turn.content for turn in backwards) == text[::-1]
            last = store.sessions.last(fork, limit).items
            assert "".join(turn.content for turn in last) == text[-limit:]


def test_fork_at_unknown_turn_is_rejected(store: Corral) -> None:
    session = store.sessions.open("ada")
    append_turns(store, session, 1)
    for turn in (-1, 2):
        with raises_without_change(store, Invalid):
            store.sessions.fork(session, turn)


def test_fork_belongs_to_the_agent_at_that_turn(store: Corral) -> None:
    session = store.sessions.open("ada")
    append_turns(store, session, 1, 2)
    store.sessions.handoff(session, "ben", "last", "n", last=1)
    append_turns(store, session, 3)
    before_handoff, after_handoff = store.sessions.fork(session, 1), store.sessions.fork(session, 2)
    assert before_handoff.agent_id == store.agents.get("ada").id
    assert store.sessions.context(before_handoff).note is None
    assert after_handoff.agent_id == store.agents.get("ben").id
    assert store.sessions.context(after_handoff).note == "n"
    assert list_context_numbers(store, before_handoff) == [1]
    assert list_context_numbers(store, after_handoff) == [2]


def test_fork_inherits_a_clear_only_before_its_turn(store: Corral) -> None:
    session = store.sessions.open("ada")
    append_turns(store, session, 1, 2)
    store.sessions.clear(session)
    append_turns(store, session, 3)
    assert list_context_numbers(store, store.sessions.fork(session)) == [3]
    assert list_context_numbers(store, store.sessions.fork(session, 1)) == [1]


def test_fork_starts_without_state_and_provider_session(store: Corral) -> None:
    session = store.sessions.open("ada")
    store.sessions.set_state(session, "a", 1)
    store.sessions.set_provider_session(session, "claude", "abc")
    fork = store.sessions.fork(session)
    assert (store.sessions.state(fork), fork.provider_session) == ({}, None)


def test_turn_key_of_the_parent_is_not_shared_with_the_fork(store: Corral) -> None:
    session = store.sessions.open("ada")
    store.sessions.append(session, "user", "old", key="k")
    fork = store.sessions.fork(session)
    assert store.sessions.append(fork, "user", "new", key="k").content == "new"


# -- retention -----------------------------------------------------------------------------------


def count_pruned(store: Corral, *, dry_run: bool = False) -> int:
    results = {result.table: result.rows for result in store.db.prune(dry_run=dry_run)}
    return results["sessions"]


def test_retention_deletes_closed_session_and_its_data(store: Corral, clock: ManualClock) -> None:
    expired, recent, unclosed = (store.sessions.open("ada") for _ in range(3))
    for session in (expired, recent, unclosed):
        append_turns(store, session, "zebra")
        store.sessions.set_state(session, "a", 1)
        store.sessions.handoff(session, "ben")
        store.sessions.record_retro(session, 1)
    store.search.catch_up()
    store.settings.set("sessions.retention_ms", DAY)
    store.sessions.close(expired)
    clock.advance(DAY + 1)
    store.sessions.close(recent)
    with unchanged(store):
        assert count_pruned(store, dry_run=True) == 1
    assert count_pruned(store) == 1
    with pytest.raises(NotFound):
        store.sessions.get(expired.id)
    for table in ("turns", "session_state", "handoffs", "retros"):
        assert len(rows(store, f"SELECT 1 FROM {table}")) == 2, table
    assert len(store.search.find("zebra").items) == 2
    assert list_events(store, expired.id)[-1] == "session.delete"
    check_store(store)


def test_seq_of_a_deleted_turn_is_not_reused(store: Corral, clock: ManualClock) -> None:
    session = store.sessions.open("ada")
    append_turns(store, session, 1, 2, 3)
    store.sessions.close(session)
    clock.advance(2 * YEAR)
    assert count_pruned(store) == 1
    next_session = store.sessions.open("ada")
    assert store.sessions.append(next_session, "user", "new").id == "trn_4"
    store.sessions.close(next_session)
    clock.advance(2 * YEAR)
    assert count_pruned(store) == 1
    assert rows(store, "SELECT seq, session_id FROM turns") == [(4, "")]
    assert store.search.find("new").items == []


def test_retention_keeps_turns_that_a_fork_shows(store: Corral, clock: ManualClock) -> None:
    session = store.sessions.open("ada")
    append_turns(store, session, *"abc")
    fork = store.sessions.fork(session, 2)
    store.sessions.close(session)
    clock.advance(2 * YEAR)
    assert count_pruned(store, dry_run=True) == count_pruned(store) == 0
    assert [turn.content for turn in store.sessions.turns(fork).items] == ["a", "b"]
    store.sessions.close(fork)
    clock.advance(2 * YEAR)
    assert count_pruned(store, dry_run=True) == 2
    assert count_pruned(store) == 2


def test_long_session_is_deleted_in_batches(store: Corral, clock: ManualClock) -> None:
    session = store.sessions.open("ada")
    for n in range(3):
        append_turns(store, session, *(f"{n} {i}" for i in range(900)))
    store.search.catch_up()
    store.sessions.close(session)
    with store.transaction() as tx:
        assert not retention.delete_batch(tx, session.id, limit=1_000)
    with raises_without_change(store, Refused):
        store.sessions.reopen(session)
    with raises_without_change(store, Refused):
        store.sessions.fork(session)
    clock.advance(2 * YEAR)
    assert count_pruned(store) == 1
    assert rows(store, "SELECT count(*) FROM passages") == [(0,)]


def test_sessions_of_a_project_are_deleted_forks_first(store: Corral, tmp_path: Any) -> None:
    project = store.projects.register(tmp_path)
    session = store.sessions.open("ada", project=project.id)
    append_turns(store, session, 1, 2)
    append_turns(store, store.sessions.fork(session), "zebra")
    other_session = store.sessions.open("ada")
    assert len(store.search.find("zebra").items) == 1
    store.projects.delete(project.id)
    assert store.search.find("zebra").items == []
    assert [session.id for session in store.sessions.list(all=True).items] == [other_session.id]
    assert store.sessions.append(other_session, "user", "new").id == "trn_4"
    check_store(store)
