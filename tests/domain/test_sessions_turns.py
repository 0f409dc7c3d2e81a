"""Turns of sessions: numbers, idempotency keys, pages, state values and provider sessions."""

from pathlib import Path
from typing import Any

import pytest

import corral
from corral.api import Corral
from corral.domain.sessions.model import NewTurn
from corral.domain.sessions.turn_rows import MAX_CONTENT
from corral.kernel.clock import ManualClock
from corral.kernel.errors import IllegalMove, Invalid, NotFound, Refused
from tests.support.grouped_cases import each_case
from tests.support.statement_trace import trace_statements
from tests.support.store import list_events, raises_without_change, unchanged, walk

MISSING = "ses_00000000000000000000000000"


def test_session_is_opened_for_an_agent_in_a_project(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    project = store.projects.register(tmp_path)
    ada = store.agents.create("ada", provider="claude")
    session = store.sessions.open("ada", project=project.id, title="t", reply_to="user:eve")
    assert session.id.startswith("ses_")
    assert (session.agent_id, session.project_id, session.provider) == (
        ada.id,
        project.id,
        "claude",
    )
    assert (session.state, session.turns, session.provider_session) == ("open", 0, None)
    assert (session.title, session.reply_to, session.created_at) == ("t", "user:eve", clock.now())
    assert store.sessions.get(session.id[:20]) == session
    assert list_events(store, session.id) == ["session.open"]


def test_session_needs_no_agent_and_no_project(store: Corral) -> None:
    assert store.sessions.open().agent_id is None


def test_session_for_unknown_agent_or_project_is_rejected(store: Corral) -> None:
    store.agents.create("old")
    store.agents.retire("old")
    with raises_without_change(store, NotFound):
        store.sessions.open("unknown")
    with raises_without_change(store, NotFound):
        store.sessions.open(project="prj_0")
    with raises_without_change(store, Refused):
        store.sessions.open("old")
    with raises_without_change(store, Invalid):
        store.sessions.open(reply_to="invalid")


def test_turns_are_numbered_from_one(store: Corral, clock: ManualClock) -> None:
    session = store.sessions.open()
    for n in range(3):
        clock.advance(1)
        turn = store.sessions.append(session, "user", str(n))
        assert (turn.number, turn.content, turn.at) == (n + 1, str(n), clock.now())
    assert [turn.content for turn in store.sessions.turns(session).items] == ["0", "1", "2"]
    updated = store.sessions.get(session.id)
    assert (updated.turns, updated.updated_at) == (3, clock.now())


def test_turn_is_returned_unchanged(store: Corral) -> None:
    session = store.sessions.open()
    turn = store.sessions.append(
        session.id,
        "tool",
        "",
        tool_call_id="call_1",
        tool_name="Bash",
        arguments={"z": 1, "a": [None, "ü"]},
        result=["out"],
        is_error=True,
        input_tokens=0,
        output_tokens=7,
        run="run_1",
        meta={"k": 1.5},
    )
    assert store.sessions.turns(session).items == [turn]
    assert (turn.role, turn.tool_call_id, turn.tool_name) == ("tool", "call_1", "Bash")
    assert (turn.arguments, turn.result) == ({"z": 1, "a": [None, "ü"]}, ["out"])
    assert (turn.is_error, turn.input_tokens, turn.output_tokens) == (True, 0, 7)
    assert (turn.run_id, turn.meta, turn.key) == ("run_1", {"k": 1.5}, None)


def test_assistant_turn_belongs_to_the_agent_of_the_session(store: Corral) -> None:
    ada, ben = store.agents.create("ada"), store.agents.create("ben")
    session = store.sessions.open("ada")
    assert store.sessions.append(session, "assistant", "hi").agent_id == ada.id
    assert store.sessions.append(session, "user", "hi").agent_id is None
    assert store.sessions.append(session, "assistant", "hi", agent="ben").agent_id == ben.id
    assert store.sessions.append(session, "user", "hi", agent="ben").agent_id == ben.id
    (turn,) = store.sessions.append_many(session, [{"role": "assistant", "content": "hi"}])
    assert turn.agent_id == ada.id


def test_turn_writes_no_event(store: Corral) -> None:
    session = store.sessions.open()
    store.sessions.append(session, "user", "hi")
    store.sessions.append_many(session, [{"role": "user", "content": "ho"}])
    assert list_events(store, session.id) == ["session.open"]


def test_append_is_one_transaction_with_few_statements(
    store: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = store.sessions.open()
    store.sessions.append(session, "user", "first")
    with trace_statements(store, monkeypatch) as trace:
        store.sessions.append(session.id, "user", "hi")
    assert trace.transactions == 1
    assert trace.statements == (2 if store.db.engine == "sqlite" else 1)


def test_turn_wakes_waiters(store: Corral, url: str, clock: ManualClock) -> None:
    session = store.sessions.open()
    with corral.open(url, clock=clock) as other_store, other_store.listening() as listener:
        store.sessions.append(session, "user", "hi")
        assert listener.wait(10.0)


@each_case(
    ("role", "content", "options"),
    [
        ("person", "hi", {}),
        ("", "hi", {}),
        ("user", "nul\0", {}),
        ("user", "half \ud800", {}),
        ("user", "x" * (MAX_CONTENT + 1), {}),
        ("user", "hi", {"key": "k" * 300}),
        ("user", "hi", {"arguments": object()}),
        ("user", "hi", {"meta": float("nan")}),
        ("user", "hi", {"input_tokens": -1}),
        ("user", "hi", {"output_tokens": 1.5}),
    ],
)
def test_invalid_turns_are_rejected(
    store: Corral, role: str, content: str, options: dict[str, Any]
) -> None:
    session = store.sessions.open()
    with raises_without_change(store, Invalid):
        store.sessions.append(session, role, content, **options)


def test_closed_session_accepts_no_turn_until_reopened(store: Corral, clock: ManualClock) -> None:
    session = store.sessions.open()
    store.sessions.append(session, "user", "hi")
    clock.advance(1)
    closed = store.sessions.close(session)
    assert (closed.state, closed.closed_at) == ("closed", clock.now())
    for operation in (
        lambda: store.sessions.append(session, "user", "late"),
        lambda: store.sessions.append(session, "user", "late", key="k"),
        lambda: store.sessions.append_many(session, [{"role": "user", "content": "late"}]),
        lambda: store.sessions.set_state(session, "a", 1),
        lambda: store.sessions.close(session),
    ):
        with raises_without_change(store, IllegalMove):
            operation()
    assert [turn.content for turn in store.sessions.turns(session).items] == ["hi"]
    assert store.sessions.reopen(session).closed_at is None
    assert store.sessions.append(session, "user", "next").number == 2


def test_unknown_session_accepts_no_turn(store: Corral) -> None:
    for operation in (
        lambda: store.sessions.append(MISSING, "user", "hi"),
        lambda: store.sessions.append_many(MISSING, [{"role": "user", "content": "hi"}]),
        lambda: store.sessions.turns(MISSING),
        lambda: store.sessions.last(MISSING),
        lambda: store.sessions.get("ses_0"),
    ):
        with raises_without_change(store, NotFound):
            operation()


# -- keys ----------------------------------------------------------------------------------------


def test_append_is_idempotent_by_key(store: Corral) -> None:
    session, other_session = store.sessions.open(), store.sessions.open()
    turn = store.sessions.append(session, "user", "first", key="k")
    with unchanged(store):
        assert store.sessions.append(session, "user", "second", key="k") == turn
    assert store.sessions.append(other_session, "user", "other", key="k").number == 1
    assert store.sessions.append(session, "user", "next").number == 2


def test_append_many_is_atomic_and_ordered(store: Corral) -> None:
    session = store.sessions.open()
    store.sessions.append(session, "user", "one", key="k")
    values = [
        NewTurn("user", "two"),
        {"role": "user", "content": "again", "key": "k"},
        {"role": "tool", "content": "three", "key": "m", "result": 3},
        {"role": "tool", "content": "and again", "key": "m"},
    ]
    appended = store.sessions.append_many(session, values)
    assert [(turn.number, turn.content) for turn in appended] == [
        (2, "two"),
        (1, "one"),
        (3, "three"),
        (3, "three"),
    ]
    assert store.sessions.get(session.id).turns == 3
    with raises_without_change(store, Invalid):
        store.sessions.append_many(session, [NewTurn("user", "ok"), NewTurn("person", "no")])
    for turns in ([], [5], [{"role": "user"}], [{"role": "user", "content": "x", "colour": 1}]):
        with raises_without_change(store, Invalid):
            store.sessions.append_many(session, turns)


# -- pages ---------------------------------------------------------------------------------------


def test_turns_are_paginated_in_both_directions(store: Corral) -> None:
    session = store.sessions.open()
    store.sessions.append_many(session, [NewTurn("user", str(n)) for n in range(1, 8)])

    def list_numbers(**options: Any) -> list[int]:
        return [
            turn.number
            for turn in walk(lambda **page: store.sessions.turns(session, **page), **options)
        ]

    assert list_numbers() == [1, 2, 3, 4, 5, 6, 7]
    assert list_numbers(newest=True) == [7, 6, 5, 4, 3, 2, 1]
    assert [turn.number for turn in store.sessions.turns(session, after=5).items] == [6, 7]
    assert [turn.number for turn in store.sessions.turns(session, after="5").items] == [6, 7]
    assert store.sessions.turns(session, after=7).items == []
    last = store.sessions.last(session, 3)
    assert ([turn.number for turn in last.items], last.next) == ([5, 6, 7], "7")
    for cursor in ("x", -1, "5.0", True):
        with pytest.raises(Invalid):
            store.sessions.turns(session, after=cursor)
    for limit in (0, 1_001):
        with pytest.raises(Invalid):
            store.sessions.turns(session, limit=limit)


def test_sessions_are_listed_newest_first_by_project_or_agent(
    store: Corral, tmp_path: Path
) -> None:
    project = store.projects.register(tmp_path)
    store.agents.create("ada")
    session_without_agent = store.sessions.open()
    agent_session = store.sessions.open("ada")
    project_session = store.sessions.open("ada", project=project.id)
    closed_session = store.sessions.close(store.sessions.open("ada", project=project.id))
    sessions = store.sessions

    def list_ids(**options: Any) -> list[str]:
        return [session.id for session in walk(sessions.list, **options)]

    assert list_ids() == [project_session.id, agent_session.id, session_without_agent.id]
    assert list_ids(all=True) == [
        closed_session.id,
        project_session.id,
        agent_session.id,
        session_without_agent.id,
    ]
    assert list_ids(agent="ada") == [project_session.id, agent_session.id]
    assert list_ids(agent="ada", all=True) == [
        closed_session.id,
        project_session.id,
        agent_session.id,
    ]
    assert list_ids(project=project.id) == [project_session.id]
    assert list_ids(project=project.id, all=True) == [closed_session.id, project_session.id]
    with pytest.raises(Invalid):
        sessions.list(agent="ada", project=project.id)


# -- state values --------------------------------------------------------------------------------


def test_state_values_are_kept_until_deleted(store: Corral) -> None:
    session, other_session = store.sessions.open(), store.sessions.open()
    store.sessions.set_state(session, "b", {"x": [1]})
    store.sessions.set_state(session, "a", 1)
    store.sessions.set_state(session, "a", "two")
    assert store.sessions.state(session) == {"a": "two", "b": {"x": [1]}}
    assert store.sessions.state(other_session) == {}
    assert store.sessions.set_state(session, "a", None) is None
    assert store.sessions.state(session.id) == {"b": {"x": [1]}}
    with unchanged(store):
        store.sessions.set_state(session, "a", None)
    with raises_without_change(store, Invalid):
        store.sessions.set_state(session, "", 1)


def test_rename_changes_the_title(store: Corral) -> None:
    session = store.sessions.open(title="old")
    assert store.sessions.rename(session, "new").title == "new"
    assert store.sessions.rename(session.id, None).title is None
    store.sessions.close(session)
    assert store.sessions.rename(session.id, "closed").title == "closed"
    with raises_without_change(store, NotFound):
        store.sessions.rename(MISSING, "x")


def test_provider_session_is_stored_and_found(store: Corral) -> None:
    session = store.sessions.open()
    updated = store.sessions.set_provider_session(session, "claude", "abc")
    assert (updated.provider, updated.provider_session) == ("claude", "abc")
    with unchanged(store):
        store.sessions.set_provider_session(session, "claude", "abc")
    session_of_provider = store.sessions.by_provider("claude", "abc")
    assert session_of_provider is not None
    assert session_of_provider.id == session.id
    assert store.sessions.by_provider("codex", "abc") is None
    assert store.sessions.set_provider_session(session, "claude", None).provider_session is None
    assert store.sessions.by_provider("claude", "abc") is None


def test_retros_are_listed_newest_first(store: Corral) -> None:
    session = store.sessions.open()
    for n in range(3):
        assert store.sessions.record_retro(session, {"n": n}).number == n + 1
    retros = walk(lambda **page: store.sessions.retros(session, **page))
    assert [retro.body for retro in retros] == [{"n": 2}, {"n": 1}, {"n": 0}]
