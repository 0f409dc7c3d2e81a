"""Ranking, variations and verdicts of judges: pure functions."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.domain.races.model import (
    Attempt,
    AttemptState,
    CheckResult,
    CheckTally,
    JudgeVerdict,
    VerdictState,
)
from corral.domain.races.ranking import choose_better_half, compute_wilson_interval, rank_attempts
from corral.domain.races.variations import (
    TEMPLATES,
    combine,
    from_templates,
    parse_agents,
    parse_variations,
)
from corral.errors import Invalid
from corral.services.races.judge import parse_verdict
from tests.support.grouped_cases import each_case


def make_attempt(number: int, **more: object) -> Attempt:
    values: dict[str, object] = dict.fromkeys(Attempt.__struct_fields__)
    values |= {
        "id": f"att_{number}",
        "number": number,
        "state": AttemptState.COMPLETED,
        "checks": [],
        "started_at": 0,
        "ended_at": 1_000,
        "insertions": 10,
        "deletions": 0,
        "is_winner": False,
    }
    return Attempt(**values | more)


def make_verdict(*groups: list[str]) -> JudgeVerdict:
    values: dict[str, object] = dict.fromkeys(JudgeVerdict.__struct_fields__)
    values |= {"state": VerdictState.GIVEN, "ranking": [*groups], "labels": {}}
    return JudgeVerdict(**values)


def ranked_numbers(*attempts: Attempt) -> list[int]:
    best = sorted((item for item in attempts if item.rank), key=lambda item: item.rank or 0)
    return [item.number for item in best]


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 10**9)), min_size=2),
    st.randoms(),
)
def test_failing_attempt_never_ranks_above_a_passing_one(
    specs: list[tuple[bool, int, int]], rng: object
) -> None:
    attempts = [
        make_attempt(
            number,
            passed=passed,
            cost_micros=cost,
            checks=[CheckResult("c", 0 if passed else 1, 1, CheckTally(10, tests, 10 - tests))],
        )
        for number, (passed, tests, cost) in enumerate(specs, 1)
    ]
    rng.shuffle(attempts)
    # The judge prefers a failing attempt.
    preference = sorted(attempts, key=lambda item: bool(item.passed))
    result = rank_attempts(attempts, [make_verdict(*([item.id] for item in preference))])
    passed_scores = [item.score for item in result if item.passed]
    failed_scores = [item.score for item in result if not item.passed]
    assert all(0 <= (score or 0) <= 1 for score in passed_scores + failed_scores)
    if passed_scores and failed_scores:
        assert max(score or 0 for score in failed_scores) < min(
            score or 0 for score in passed_scores
        )
    assert all(item.rank is None for item in result if not item.passed)


def test_judges_outrank_figures_and_figures_break_ties() -> None:
    small, large = make_attempt(1, insertions=1), make_attempt(2, insertions=900)
    assert ranked_numbers(*rank_attempts([small, large], [])) == [1, 2]
    assert ranked_numbers(*rank_attempts([small, large], [make_verdict(["att_2"], ["att_1"])])) == [
        2,
        1,
    ]
    assert ranked_numbers(*rank_attempts([small, large], [make_verdict(["att_2", "att_1"])])) == [
        1,
        2,
    ]
    split = [make_verdict(["att_2"], ["att_1"]), make_verdict(["att_1"], ["att_2"])]
    assert ranked_numbers(*rank_attempts([small, large], split)) == [1, 2], (
        "inconsistent verdicts are ignored"
    )


def test_unknown_figures_are_neutral() -> None:
    known, unknown = make_attempt(1, cost_micros=0), make_attempt(2)
    scores = [item.score for item in rank_attempts([known, unknown], [])]
    assert scores[0] == scores[1]


def test_incomplete_attempt_has_no_score() -> None:
    (failed,) = rank_attempts([make_attempt(1, state=AttemptState.FAILED)], [])
    assert (failed.score, failed.rank) == (None, None)


def test_better_half_advances_rounded_up() -> None:
    five = rank_attempts([make_attempt(number, insertions=number) for number in range(1, 6)], [])
    assert [item.number for item in choose_better_half(five)] == [1, 2, 3]
    assert [item.number for item in choose_better_half(five[:1])] == [1]


def test_wilson_interval_of_a_win_rate() -> None:
    assert compute_wilson_interval(0, 0) == (0.0, 1.0)
    low, high = compute_wilson_interval(5, 10)
    assert (round(low, 3), round(high, 3)) == (0.237, 0.763)
    assert compute_wilson_interval(10, 10)[1] > 0.999


def test_agents_and_variations_are_paired_cyclically() -> None:
    assert parse_agents("claude:2, codex") == ["claude", "claude", "codex"]
    assert parse_variations("one\n\ntwo\n") == ["one", "two"]
    assert parse_variations("one\nstill one\n---\ntwo") == ["one\nstill one", "two"]
    result = combine(["a", "b"], ["bold", "my own"])
    assert [(item.agent, item.variation) for item in result] == [
        ("a", TEMPLATES["bold"]),
        ("b", "my own"),
    ]
    assert len(combine(["a"], ["x", "y", "z"])) == 3
    assert [item.variation for item in combine(["a", "b"], [])] == [None, None]
    assert len({*from_templates(4)}) == 4
    for text in ("", "a:", "a:0", "a:b", "a:99999"):
        with pytest.raises(Invalid):
            parse_agents(text)


LABELS = {"A": "att_1", "B": "att_2"}


@each_case(
    ("output", "ranking"),
    [
        ('{"ranking": [["B"], ["A"]], "reason": "x"}', [["att_2"], ["att_1"]]),
        ('Well: {"ranking": ["A", "B"]} and so on', [["att_1"], ["att_2"]]),
        ('{"ranking": [["A", "B"]]}', [["att_1", "att_2"]]),
        ('{"ranking": [["A"], ["B"]]} no: {"ranking": [["B"], ["A"]]}', [["att_2"], ["att_1"]]),
        ('{"ranking": [["A"]]}', None),
        ('{"ranking": [["A"], ["A"], ["B"]]}', None),
        ('{"ranking": [["A"], ["C"]]}', None),
        ('{"ranking": 5}', None),
        ('{"ranking": [[1], ["A"]]}', None),
        ("A is the best", None),
        ("", None),
        ("{" * 5_000, None),
    ],
)
def test_ranking_must_list_exactly_the_shown_attempts(
    output: str, ranking: list[list[str]] | None
) -> None:
    result, reason = parse_verdict(output, LABELS)
    assert result == ranking
    assert reason or output.startswith("{") or ranking
    assert msgspec.json.encode(reason)


def test_reason_of_a_verdict_keeps_its_words_and_explains_the_labels() -> None:
    words = "B wins. A thorough test suite."
    _, reason = parse_verdict(f'{{"ranking": [["B"], ["A"]], "reason": "{words}"}}', LABELS)
    assert reason.startswith(words)
    assert all(f"{label}: {id}" in reason for label, id in LABELS.items())
