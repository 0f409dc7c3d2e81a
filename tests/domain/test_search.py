"""Search: whatever was said is found by its words, behind the writers, and no turn is skipped."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import corral
from corral.api import Corral
from corral.domain.search import ops
from corral.domain.sessions import ops as sessions
from corral.domain.sessions.model import NewTurn
from corral.kernel.clock import ManualClock
from corral.kernel.errors import Invalid
from tests.support.grouped_cases import each_case
from tests.support.store import refuses, rows, walk


def say(store: Corral, *contents: str, session: Any = None) -> str:
    session = session or store.sessions.open()
    store.sessions.append_many(session, [NewTurn("user", each) for each in contents])
    return str(session.id)


def places(store: Corral, text: str, **more: Any) -> list[int]:
    return [hit.location for hit in store.search.find(text, **more).items]


def test_new_turns_are_found_newest_first(store: Corral, clock: ManualClock) -> None:
    id = say(store, "the red fox", "a blue fox", "nothing")
    (blue, red) = store.search.find("FOX").items
    assert (blue.location, red.location) == (2, 1)
    assert (red.kind, red.subject, red.snippet, red.at) == ("turn", id, "the red fox", clock.now())
    assert places(store, "red fox") == [1]
    assert places(store, "fox red") == [1]
    assert places(store, "red blue") == []


@each_case(
    ("text", "found"),
    [
        ("src/foo_bar.py", True),
        ("foo_bar", True),
        ("bar_foo", False),
        ("foo", True),
        ("py", True),
        ("fo", False),
        ("größe", True),
        ("GRÖSSE", False),
        ("user@example.org", True),
        ("example.org", True),
        ("42", True),
        ("v1.2.3", True),
        ("1.2", False),
    ],
)
def test_both_engines_split_words_the_same_way(store: Corral, text: str, found: bool) -> None:
    say(store, "In src/foo_bar.py:42 the größe; ask user@example.org about v1.2.3 (really)")
    assert bool(places(store, text)) is found


@pytest.mark.parametrize(
    "text",
    ["' OR 1=1 --", "NEAR(fox", "fox*", "fox AND", "-fox", "text:fox", "(fox", "fox ^ 2"],
)
def test_any_text_is_a_valid_query(store: Corral, text: str) -> None:
    say(store, "a fox")
    assert len(store.search.find(text).items) <= 1


@settings(max_examples=60, suppress_health_check=list(HealthCheck), deadline=None)
@given(text=st.text(max_size=30))
def test_no_text_causes_an_engine_error(store: Corral, text: str) -> None:
    with suppress(Invalid):
        store.search.find(text)


@pytest.mark.parametrize(
    "text", ["ärger", "ÄRGER", "école", "quoted", "日本語", "e\u0301cole", "iñtërnâtiônàl"]
)
def test_words_of_all_languages_are_found_in_any_locale(store: Corral, text: str) -> None:
    say(store, "Ärger mit E\u0301COLE — “quoted”, 日本語! Iñtërnâtiônàl…")
    assert places(store, text) == [1]


def test_empty_query_is_rejected(store: Corral) -> None:
    for text in ("", "  ", "?!"):
        with refuses(store, Invalid):
            store.search.find(text)
    with refuses(store, Invalid):
        store.search.find("fox", kind="letter")
    with refuses(store, Invalid):
        store.search.find("fox", limit=0)


def test_tool_calls_and_results_are_found(store: Corral) -> None:
    session = store.sessions.open()
    store.sessions.append(session, "assistant", "", tool_name="Grep", arguments={"q": "zebra"})
    store.sessions.append(session, "tool", "", tool_name="Grep", result={"out": "one\nlion"})
    assert places(store, "zebra") == [1]
    assert places(store, "lion") == [2]
    assert places(store, "grep") == [2, 1]


def test_project_and_kind_filter_the_search(store: Corral, tmp_path: Any) -> None:
    project = store.projects.register(tmp_path)
    inside = store.sessions.open(project=project.id)
    say(store, "fox", session=inside)
    outside = say(store, "fox")
    with store.transaction() as tx:
        ops.add(tx, "output", "run_1", 7, project.id, 5, "fox printed")
        ops.add(tx, "note", "not_1", 0, None, 6, "fox noted")
    subjects = [hit.subject for hit in store.search.find("fox").items]
    assert sorted(subjects) == sorted([inside.id, outside, "run_1", "not_1"])
    in_project = store.search.find("fox", project=project.id).items
    assert {hit.subject for hit in in_project} == {inside.id, "run_1"}
    (printed,) = store.search.find("fox", kind="output").items
    assert (printed.location, printed.at, printed.snippet) == (7, 5, "fox printed")
    assert store.search.find("fox", kind="note", project=project.id).items == []


def test_hits_are_paginated_without_gaps_or_duplicates(store: Corral) -> None:
    say(store, *(f"fox {n}" if n % 3 else f"dog {n}" for n in range(1, 30)))
    wanted = [n for n in range(29, 0, -1) if n % 3]
    for limit in (1, 4, 50):
        hits = walk(lambda **more: store.search.find("fox", **more), limit=limit)
        assert [hit.location for hit in hits] == wanted


def test_rare_and_common_words_are_found_among_thousands(store: Corral) -> None:
    session = store.sessions.open()
    say(store, "zebra fox", session=session)
    for _ in range(5):
        say(store, *["fox"] * 900, session=session)
    say(store, "zebra", session=session)
    assert places(store, "zebra") == [4_502, 1]
    assert places(store, "fox", limit=3) == [4_501, 4_500, 4_499]
    assert len(walk(lambda **more: store.search.find("fox", **more), limit=1_000)) == 4_501


def test_long_text_is_found_by_its_last_word(store: Corral) -> None:
    say(store, "word " * 60_000 + "zebra", "x" * 100_000 + " lion")
    assert places(store, "lion") == [2]
    hits = store.search.find("word", limit=100).items
    assert {hit.location for hit in hits} == {1}
    assert places(store, "zebra") == [], "of what is very long, only the beginning is indexed"


def test_empty_turn_is_not_indexed(store: Corral) -> None:
    say(store, "", " \n", "x")
    assert store.search.catch_up() == 3
    assert rows(store, "SELECT location FROM passages") == [(3,)]


def test_every_turn_is_indexed_once_with_any_batch_size(store: Corral) -> None:
    say(store, *(str(n) for n in range(25)))
    done = [store.internal.search.index_turns(limit=10) for _ in range(5)]
    assert done == [10, 10, 5, 0, 0]
    say(store, "more")
    assert store.internal.search.index_turns() == 1
    assert rows(
        store, "SELECT count(*), count(DISTINCT subject || '/' || location) FROM passages"
    ) == [(26, 26)]


def test_turn_that_commits_late_is_not_skipped(url: str, clock: ManualClock) -> None:
    """On PostgreSQL a later number may commit first; what is indexed must wait for the earlier."""
    with corral.open(url, clock=clock) as slow, corral.open(url, clock=clock) as fast:
        if slow.db.engine == "sqlite":
            return  # one writer at a time: numbers are commit order
        late, early = slow.sessions.open(), slow.sessions.open()
        with slow.transaction() as tx:
            sessions.append(tx, late, "user", "late fox")
            fast.sessions.append(early, "user", "early fox")
            assert fast.search.find("fox").items == []
        assert [hit.snippet for hit in fast.search.find("fox").items] == ["early fox", "late fox"]
        with slow.transaction() as tx:
            sessions.append(tx, late, "user", "late hen")
            fast.sessions.append(early, "user", "early hen")
            assert fast.search.find("hen").items == []
            assert fast.internal.search.index_turns() == 0
        fast.sessions.append(early, "user", "last hen")
        assert len(fast.search.find("hen").items) == 3


def test_rolled_back_turn_does_not_block_the_index(store: Corral) -> None:
    session = store.sessions.open()
    with suppress(ZeroDivisionError), store.transaction() as tx:
        sessions.append(tx, session, "user", "never fox")
        raise ZeroDivisionError
    store.sessions.append(session, "user", "fox")
    assert places(store, "fox") == [1]


def test_index_is_consistent_after_deletions(store: Corral) -> None:
    id = say(store, "fox", "dog")
    say(store, "fox")
    store.search.catch_up()
    with store.transaction() as tx:
        assert ops.remove_subject(tx, "turn", id)
    assert len(store.search.find("fox").items) == 1
    assert store.search.find("dog").items == []
    assert all(finding.state == "ok" for finding in store.db.verify())


def test_search_reports_unindexed_turns(store: Corral) -> None:
    session = store.sessions.open()
    assert store.search.count_unindexed() == 0
    for _ in range(3):
        say(store, *["fox"] * 900, session=session)
    assert store.search.count_unindexed() == 2_700
    assert store.search.catch_up(batches=1) == 1_000
    assert store.search.count_unindexed() == 1_700
    store.search.find("fox")
    assert store.search.count_unindexed() == 0
