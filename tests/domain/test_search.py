"""Search: tokenization, filters, pagination and an index that skips no turn."""

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
from tests.support.store import raises_without_change, rows, walk


def append_turns(store: Corral, *contents: str, session: Any = None) -> str:
    session = session or store.sessions.open()
    store.sessions.append_many(session, [NewTurn("user", content) for content in contents])
    return str(session.id)


def find_locations(store: Corral, text: str, **options: Any) -> list[int]:
    return [hit.location for hit in store.search.find(text, **options).items]


def test_new_turns_are_found_newest_first(store: Corral, clock: ManualClock) -> None:
    id = append_turns(store, "the red fox", "a blue fox", "nothing")
    (blue, red) = store.search.find("FOX").items
    assert (blue.location, red.location) == (2, 1)
    assert (red.kind, red.subject, red.snippet, red.at) == ("turn", id, "the red fox", clock.now())
    assert find_locations(store, "red fox") == [1]
    assert find_locations(store, "fox red") == [1]
    assert find_locations(store, "red blue") == []


@each_case(
    ("text", "matches"),
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
def test_both_engines_split_words_the_same_way(store: Corral, text: str, matches: bool) -> None:
    append_turns(
        store, "In src/foo_bar.py:42 the größe; ask user@example.org about v1.2.3 (really)"
    )
    assert bool(find_locations(store, text)) is matches


@pytest.mark.parametrize(
    "text",
    ["' OR 1=1 --", "NEAR(fox", "fox*", "fox AND", "-fox", "text:fox", "(fox", "fox ^ 2"],
)
def test_any_text_is_a_valid_query(store: Corral, text: str) -> None:
    append_turns(store, "a fox")
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
    append_turns(store, "Ärger mit E\u0301COLE — “quoted”, 日本語! Iñtërnâtiônàl…")
    assert find_locations(store, text) == [1]


def test_empty_query_is_rejected(store: Corral) -> None:
    for text in ("", "  ", "?!"):
        with raises_without_change(store, Invalid):
            store.search.find(text)
    with raises_without_change(store, Invalid):
        store.search.find("fox", kind="letter")
    with raises_without_change(store, Invalid):
        store.search.find("fox", limit=0)


def test_tool_calls_and_results_are_found(store: Corral) -> None:
    session = store.sessions.open()
    store.sessions.append(session, "assistant", "", tool_name="Grep", arguments={"q": "zebra"})
    store.sessions.append(session, "tool", "", tool_name="Grep", result={"out": "one\nlion"})
    assert find_locations(store, "zebra") == [1]
    assert find_locations(store, "lion") == [2]
    assert find_locations(store, "grep") == [2, 1]


def test_project_and_kind_filter_the_search(store: Corral, tmp_path: Any) -> None:
    project = store.projects.register(tmp_path)
    inside = store.sessions.open(project=project.id)
    append_turns(store, "fox", session=inside)
    outside = append_turns(store, "fox")
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
    append_turns(store, *(f"fox {n}" if n % 3 else f"dog {n}" for n in range(1, 30)))
    expected = [n for n in range(29, 0, -1) if n % 3]
    for limit in (1, 4, 50):
        hits = walk(lambda **options: store.search.find("fox", **options), limit=limit)
        assert [hit.location for hit in hits] == expected


def test_rare_and_common_words_are_found_among_thousands(store: Corral) -> None:
    session = store.sessions.open()
    append_turns(store, "zebra fox", session=session)
    for _ in range(5):
        append_turns(store, *["fox"] * 900, session=session)
    append_turns(store, "zebra", session=session)
    assert find_locations(store, "zebra") == [4_502, 1]
    assert find_locations(store, "fox", limit=3) == [4_501, 4_500, 4_499]
    assert len(walk(lambda **options: store.search.find("fox", **options), limit=1_000)) == 4_501


def test_long_text_is_found_by_its_last_word(store: Corral) -> None:
    append_turns(store, "word " * 60_000 + "zebra", "x" * 100_000 + " lion")
    assert find_locations(store, "lion") == [2]
    hits = store.search.find("word", limit=100).items
    assert {hit.location for hit in hits} == {1}
    assert find_locations(store, "zebra") == [], "only the beginning of a very long text is indexed"


def test_empty_turn_is_not_indexed(store: Corral) -> None:
    append_turns(store, "", " \n", "x")
    assert store.search.catch_up() == 3
    assert rows(store, "SELECT location FROM passages") == [(3,)]


def test_every_turn_is_indexed_once_with_any_batch_size(store: Corral) -> None:
    append_turns(store, *(str(n) for n in range(25)))
    counts = [store.internal.search.index_turns(limit=10) for _ in range(5)]
    assert counts == [10, 10, 5, 0, 0]
    append_turns(store, "more")
    assert store.internal.search.index_turns() == 1
    assert rows(
        store, "SELECT count(*), count(DISTINCT subject || '/' || location) FROM passages"
    ) == [(26, 26)]


def test_turn_that_commits_late_is_not_skipped(url: str, clock: ManualClock) -> None:
    """On PostgreSQL a later number may commit first; the indexer must wait for the earlier one."""
    with corral.open(url, clock=clock) as slow, corral.open(url, clock=clock) as fast:
        if slow.db.engine == "sqlite":
            return  # SQLite has one writer, so numbers are in commit order
        late_session, early_session = slow.sessions.open(), slow.sessions.open()
        with slow.transaction() as tx:
            sessions.append(tx, late_session, "user", "late fox")
            fast.sessions.append(early_session, "user", "early fox")
            assert fast.search.find("fox").items == []
        assert [hit.snippet for hit in fast.search.find("fox").items] == ["early fox", "late fox"]
        with slow.transaction() as tx:
            sessions.append(tx, late_session, "user", "late hen")
            fast.sessions.append(early_session, "user", "early hen")
            assert fast.search.find("hen").items == []
            assert fast.internal.search.index_turns() == 0
        fast.sessions.append(early_session, "user", "last hen")
        assert len(fast.search.find("hen").items) == 3


def test_rolled_back_turn_does_not_block_the_index(store: Corral) -> None:
    session = store.sessions.open()
    with suppress(ZeroDivisionError), store.transaction() as tx:
        sessions.append(tx, session, "user", "never fox")
        raise ZeroDivisionError
    store.sessions.append(session, "user", "fox")
    assert find_locations(store, "fox") == [1]


def test_index_is_consistent_after_deletions(store: Corral) -> None:
    id = append_turns(store, "fox", "dog")
    append_turns(store, "fox")
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
        append_turns(store, *["fox"] * 900, session=session)
    assert store.search.count_unindexed() == 2_700
    assert store.search.catch_up(batches=1) == 1_000
    assert store.search.count_unindexed() == 1_700
    store.search.find("fox")
    assert store.search.count_unindexed() == 0
