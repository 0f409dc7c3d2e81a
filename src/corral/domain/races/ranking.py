"""Ranking the attempts of a round: checks first, then judges, then measurements.

A score is between 0 and 1. An attempt that fails a check scores below 0.4; one that passes all
checks scores at least 0.5. No judge can therefore rank a failing attempt above a passing one. Of
the remaining 0.5, judges decide 0.4, and small diffs, low costs and short durations 0.1.
"""

import math
from collections.abc import Sequence

from msgspec.structs import replace

from corral.domain.races.model import Attempt, AttemptState, CheckResult, JudgeVerdict, VerdictState

MAX_FAILING = 0.4
MIN_PASSING, JUDGE_WEIGHT, MEASUREMENT_WEIGHT = 0.5, 0.4, 0.1
Z = 1.959964  # quantile of the normal distribution for 95 % confidence


def rank_attempts(attempts: Sequence[Attempt], verdicts: Sequence[JudgeVerdict]) -> list[Attempt]:
    """Return the attempts in their own order, each with its score and rank.

    Only attempts that can win have a rank. Ties are broken by the number of the attempt.
    """
    judged = judge_scores(attempts, verdicts)
    scores = {attempt.id: _score(attempt, attempts, judged) for attempt in attempts}
    order = sorted(
        (attempt for attempt in attempts if attempt.can_win),
        key=lambda attempt: (-(scores[attempt.id] or 0.0), attempt.number),
    )
    ranks = {attempt.id: rank for rank, attempt in enumerate(order, 1)}
    return [
        replace(attempt, score=scores[attempt.id], rank=ranks.get(attempt.id))
        for attempt in attempts
    ]


def judge_scores(attempts: Sequence[Attempt], verdicts: Sequence[JudgeVerdict]) -> dict[str, float]:
    """Return the judges' score of each attempt, from 0 to 1.

    For one verdict it is the share of the other candidates that the attempt beats, where a tie
    counts half; the result is the mean over all given verdicts.
    """
    shares_of: dict[str, list[float]] = {}
    for verdict in verdicts:
        if verdict.state is not VerdictState.GIVEN or verdict.ranking is None:
            continue
        count = sum(len(group) for group in verdict.ranking)
        beaten = count
        for group in verdict.ranking:
            beaten -= len(group)
            share = (beaten + (len(group) - 1) / 2) / (count - 1) if count > 1 else 0.5
            for id in group:
                shares_of.setdefault(id, []).append(share)
    known = {attempt.id for attempt in attempts}
    return {id: sum(shares) / len(shares) for id, shares in shares_of.items() if id in known}


def _score(attempt: Attempt, attempts: Sequence[Attempt], judged: dict[str, float]) -> float | None:
    if attempt.state is not AttemptState.COMPLETED:
        return None
    if attempt.passed is False:
        return round(MAX_FAILING * _compute_share_passed(attempt.checks), 4)
    rivals = [rival for rival in attempts if rival.can_win]
    judge_score = judged.get(attempt.id, 0.5)
    measurement = _measure(attempt, rivals)
    return round(MIN_PASSING + JUDGE_WEIGHT * judge_score + MEASUREMENT_WEIGHT * measurement, 4)


def _compute_share_passed(checks: Sequence[CheckResult]) -> float:
    """Return the share of checks that a failing attempt passed, at most 0.99.

    A failed check counts with its share of passed tests.
    """
    if not checks:
        return 0.0
    shares = [
        1.0
        if check.exit_code == 0
        else (check.tests.passed / check.tests.total if check.tests and check.tests.total else 0.0)
        for check in checks
    ]
    return min(sum(shares) / len(shares), 0.99)


def _measure(attempt: Attempt, rivals: Sequence[Attempt]) -> float:
    """Return how small, cheap and fast an attempt is compared with the best of its rivals.

    Unknown values do not count.
    """
    shares = []
    for values in (
        [_count_changed_lines(candidate) for candidate in (attempt, *rivals)],
        [candidate.cost_micros for candidate in (attempt, *rivals)],
        [candidate.duration_ms for candidate in (attempt, *rivals)],
    ):
        own, known = values[0], [value for value in values if value is not None]
        if own is not None:
            shares.append((min(known) + 1) / (own + 1))
    return sum(shares) / len(shares) if shares else 0.0


def _count_changed_lines(attempt: Attempt) -> int | None:
    if attempt.insertions is None or attempt.deletions is None:
        return None
    return attempt.insertions + attempt.deletions


def choose_better_half(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return the better half of a round, rounded up, for the next automatic round."""
    order = sorted(
        (attempt for attempt in attempts if attempt.rank is not None),
        key=lambda attempt: attempt.rank or 0,
    )
    return order[: max(1, (len(attempts) + 1) // 2)]


def compute_wilson_interval(wins: int, total: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of a rate (Wilson), which is sound for few cases too."""
    if not total:
        return 0.0, 1.0
    rate, square = wins / total, Z * Z
    centre = rate + square / (2 * total)
    margin = Z * math.sqrt(rate * (1 - rate) / total + square / (4 * total * total))
    scale = 1 + square / total
    return max(0.0, (centre - margin) / scale), min(1.0, (centre + margin) / scale)
