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
from tests.support.store import record, refuses, rows, unchanged, walk


@pytest.fixture(autouse=True)
def crew(store: Corral) -> None:
    store.agents.create("ada", provider="claude")
    store.agents.create("ben", provider="codex")


def say(store: Corral, session: Session, *contents: object) -> None:
    store.sessions.append_many(session, [NewTurn("user", str(turn)) for turn in contents])


def numbers(store: Corral, session: Session) -> list[int]:
    return [turn.number for turn in store.sessions.turns(session).items]


def given(store: Corral, session: Session) -> list[int]:
    return [turn.number for turn in store.sessions.context(session).turns]


def test_handoff_gives_last_turns_and_note_and_keeps_history(store: Corral) -> None:
    session = store.sessions.open("ada")
    say(store, session, *range(20))
    store.sessions.set_provider_session(session, "claude", "abc")
    handoff = store.sessions.handoff(session, "ben", "last", "mind the gap", last=5)
    assert (handoff.number, handoff.at_turn, handoff.from_turn) == (1, 20, 15)
    context = store.sessions.context(session)
    assert [turn.number for turn in context.turns] == [16, 17, 18, 19, 20]
    assert (context.note, context.summary) == ("mind the gap", None)
    assert numbers(store, session) == list(range(1, 21))
    after = store.sessions.get(session.id)
    assert after.agent_id == context.agent_id == store.agents.get("ben").id
    assert (after.provider, after.provider_session) == ("codex", None)
    assert rows(store, "SELECT count(*) FROM handoffs") == [(1,)]
    assert record(store, session.id)[-1] == "session.handoff"


def test_context_includes_turns_since_the_handoff(store: Corral) -> None:
    session = store.sessions.open("ada")
    say(store, session, *range(4))
    store.sessions.handoff(session, "ben", "last", last=1)
    say(store, session, "new")
    assert given(store, session) == [4, 5]


def test_summary_policy_gives_no_earlier_turns(store: Corral) -> None:
    session = store.sessions.open("ada")
    say(store, session, *range(4))
    store.sessions.handoff(session, "ben", "summary", summary="it began well")
    say(store, session, "new")
    context = store.sessions.context(session)
    assert context.summary == "it began well"
    assert given(store, session) == [5]


def test_all_policy_gives_turns_that_an_earlier_handoff_omitted(store: Corral) -> None:
    session = store.sessions.open("ada")
    say(store, session, 1, 2)
    store.sessions.handoff(session, "ben", "summary", "n", summary="s")
    store.sessions.handoff(session, "ada", "all")
    context = store.sessions.context(session)
    assert (context.note, context.summary) == (None, None)
    assert given(store, session) == [1, 2]
    listed = walk(lambda **g: store.sessions.handoffs(session, **g), limit=1)
    assert [(handoff.number, handoff.policy) for handoff in listed] == [(1, "summary"), (2, "all")]


@each_case(
    ("policy", "more"),
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
    store: Corral, policy: str, more: dict[str, Any]
) -> None:
    session = store.sessions.open("ada")
    with refuses(store, Invalid):
        store.sessions.handoff(session, "ben", policy, **more)


def test_handoff_requires_active_agent_and_open_session(
    store: Corral,
) -> None:
    session = store.sessions.open("ada")
    with refuses(store, NotFound):
        store.sessions.handoff(session, "eve")
    store.agents.retire("ben")
    with refuses(store, Refused):
        store.sessions.handoff(session, "ben")
    store.sessions.close(session)
    with refuses(store, IllegalMove):
        store.sessions.handoff(session, "ada")
    with refuses(store, IllegalMove):
        store.sessions.clear(session)


def test_provider_session_of_the_previous_agent_is_rejected(store: Corral) -> None:
    session = store.sessions.open("ada")
    store.sessions.set_provider_session(session, "claude", "a", agent="ada")
    store.sessions.handoff(session, "ben")
    with refuses(store, Conflict):
        store.sessions.set_provider_session(session, "claude", "b", agent="ada")
    store.sessions.set_provider_session(session, "codex", "c", agent="ben")


# -- clear ---------------------------------------------------------------------------------------


def test_clear_resets_the_context_and_keeps_turns_readable(store: Corral) -> None:
    session = store.sessions.open("ada")
    say(store, session, 1, 2)
    store.sessions.set_state(session, "a", 1)
    store.sessions.set_provider_session(session, "claude", "abc")
    cleared = store.sessions.clear(session)
    assert (cleared.provider_session, cleared.cleared_turn) == (None, 2)
    assert store.sessions.state(session) == {}
    assert given(store, session) == []
    say(store, session, 3)
    assert given(store, session) == [3]
    assert numbers(store, session) == [1, 2, 3]


def test_clear_ends_the_handoff_and_limits_the_next_one(store: Corral) -> None:
    session = store.sessions.open("ada")
    say(store, session, 1, 2)
    store.sessions.handoff(session, "ben", "all", "a note")
    store.sessions.clear(session)
    assert store.sessions.context(session).note is None
    say(store, session, 3)
    store.sessions.handoff(session, "ada", "last", last=10)
    assert given(store, session) == [3]
    store.sessions.handoff(session, "ben", "all")
    assert given(store, session) == [3]


def test_long_context_is_paginated(store: Corral) -> None:
    session = store.sessions.open("ada")
    say(store, session, *range(5))
    first = store.sessions.context(session, limit=3)
    rest = store.sessions.context(session, after=first.next, limit=3)
    assert [turn.number for turn in first.turns + rest.turns] == [1, 2, 3, 4, 5]
    assert rest.next is None


# -- forks ---------------------------------------------------------------------------------------


def test_fork_shows_turns_of_its_parent_without_copies(store: Corral) -> None:
    session = store.sessions.open("ada", title="t")
    say(store, session, *"abcde")
    fork = store.sessions.fork(session, 3)
    assert (fork.parent_id, fork.parent_turn, fork.turns) == (session.id, 3, 3)
    assert (fork.title, fork.agent_id, fork.state) == ("t", session.agent_id, "open")
    assert rows(store, "SELECT count(*) FROM turns") == [(5,)]
    say(store, fork, "x", "y")
    say(store, session, "f")
    assert [turn.content for turn in store.sessions.turns(fork).items] == list("abcxy")
    assert [turn.content for turn in store.sessions.turns(session).items] == list("abcdef")
    assert numbers(store, fork) == [1, 2, 3, 4, 5]


def test_nested_forks_are_paginated_in_both_directions(store: Corral) -> None:
    session = store.sessions.open("ada")
    say(store, session, *"abcd")
    one = store.sessions.fork(session, 3)
    say(store, one, *"ef")
    two = store.sessions.fork(one)
    say(store, two, *"gh")
    three = store.sessions.fork(two, 2)
    four = store.sessions.fork(two, 0)
    for fork, text in ((one, "abcef"), (two, "abcefgh"), (three, "ab"), (four, "")):
        for limit in (1, 2, 3, 10):

            def page(fork: Session = fork, **more: Any) -> Any:
                return store.sessions.turns(fork, **more)

            assert "".join(turn.content for turn in walk(page, limit=limit)) == text
            backwards = walk(page, limit=limit, newest=True)
            assert "".join(turn.content for turn in backwards) == text[::-1]
            last = store.sessions.last(fork, limit).items
            assert "".join(turn.content for turn in last) == text[-limit:]


def test_fork_at_unknown_turn_is_rejected(store: Corral) -> None:
    session = store.sessions.open("ada")
    say(store, session, 1)
    for at in (-1, 2):
        with refuses(store, Invalid):
            store.sessions.fork(session, at)


def test_fork_belongs_to_the_agent_at_that_turn(store: Corral) -> None:
    session = store.sessions.open("ada")
    say(store, session, 1, 2)
    store.sessions.handoff(session, "ben", "last", "n", last=1)
    say(store, session, 3)
    before, after = store.sessions.fork(session, 1), store.sessions.fork(session, 2)
    assert before.agent_id == store.agents.get("ada").id
    assert store.sessions.context(before).note is None
    assert after.agent_id == store.agents.get("ben").id
    assert store.sessions.context(after).note == "n"
    assert given(store, before) == [1]
    assert given(store, after) == [2]


def test_fork_inherits_a_clear_only_before_its_turn(store: Corral) -> None:
    session = store.sessions.open("ada")
    say(store, session, 1, 2)
    store.sessions.clear(session)
    say(store, session, 3)
    assert given(store, store.sessions.fork(session)) == [3]
    assert given(store, store.sessions.fork(session, 1)) == [1]


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


def pruned(store: Corral, *, dry_run: bool = False) -> int:
    results = {result.table: result.rows for result in store.db.prune(dry_run=dry_run)}
    return results["sessions"]


def test_retention_deletes_closed_session_and_its_data(store: Corral, clock: ManualClock) -> None:
    old, young, open_ = (store.sessions.open("ada") for _ in range(3))
    for session in (old, young, open_):
        say(store, session, "zebra")
        store.sessions.set_state(session, "a", 1)
        store.sessions.handoff(session, "ben")
        store.sessions.record_retro(session, 1)
    store.search.catch_up()
    store.settings.set("sessions.retention_ms", DAY)
    store.sessions.close(old)
    clock.advance(DAY + 1)
    store.sessions.close(young)
    with unchanged(store):
        assert pruned(store, dry_run=True) == 1
    assert pruned(store) == 1
    with pytest.raises(NotFound):
        store.sessions.get(old.id)
    for table in ("turns", "session_state", "handoffs", "retros"):
        assert len(rows(store, f"SELECT 1 FROM {table}")) == 2, table
    assert len(store.search.find("zebra").items) == 2
    assert record(store, old.id)[-1] == "session.delete"
    check_store(store)


def test_seq_of_a_deleted_turn_is_not_reused(store: Corral, clock: ManualClock) -> None:
    session = store.sessions.open("ada")
    say(store, session, 1, 2, 3)
    store.sessions.close(session)
    clock.advance(2 * YEAR)
    assert pruned(store) == 1
    other = store.sessions.open("ada")
    assert store.sessions.append(other, "user", "new").id == "trn_4"
    store.sessions.close(other)
    clock.advance(2 * YEAR)
    assert pruned(store) == 1
    assert rows(store, "SELECT seq, session_id FROM turns") == [(4, "")]
    assert store.search.find("new").items == []


def test_retention_keeps_turns_that_a_fork_shows(store: Corral, clock: ManualClock) -> None:
    session = store.sessions.open("ada")
    say(store, session, *"abc")
    fork = store.sessions.fork(session, 2)
    store.sessions.close(session)
    clock.advance(2 * YEAR)
    assert pruned(store, dry_run=True) == pruned(store) == 0
    assert [turn.content for turn in store.sessions.turns(fork).items] == ["a", "b"]
    store.sessions.close(fork)
    clock.advance(2 * YEAR)
    assert pruned(store, dry_run=True) == 2
    assert pruned(store) == 2


def test_long_session_is_deleted_in_batches(store: Corral, clock: ManualClock) -> None:
    session = store.sessions.open("ada")
    for n in range(3):
        say(store, session, *(f"{n} {i}" for i in range(900)))
    store.search.catch_up()
    store.sessions.close(session)
    with store.transaction() as tx:
        assert not retention.delete_batch(tx, session.id, limit=1_000)
    with refuses(store, Refused):
        store.sessions.reopen(session)
    with refuses(store, Refused):
        store.sessions.fork(session)
    clock.advance(2 * YEAR)
    assert pruned(store) == 1
    assert rows(store, "SELECT count(*) FROM passages") == [(0,)]


def test_sessions_of_a_project_are_deleted_forks_first(store: Corral, tmp_path: Any) -> None:
    project = store.projects.register(tmp_path)
    session = store.sessions.open("ada", project=project.id)
    say(store, session, 1, 2)
    say(store, store.sessions.fork(session), "zebra")
    kept = store.sessions.open("ada")
    assert len(store.search.find("zebra").items) == 1
    store.projects.delete(project.id)
    assert store.search.find("zebra").items == []
    assert [session.id for session in store.sessions.list(all=True).items] == [kept.id]
    assert store.sessions.append(kept, "user", "on").id == "trn_4"
    check_store(store)
