"""Which attempt is the best of its round: gates first, then judges, then figures.

A score lies between 0 and 1. What fails a gate stays below 0.4, however it is praised; what passes
all begins at 0.5, so no judge can lift a failing attempt above a passing one. Of the rest, 0.4 is
the judges' and 0.1 goes to small diffs, low costs and short times.
"""

import math
from collections.abc import Sequence

from msgspec.structs import replace

from corral.domain.races.model import Attempt, AttemptState, Check, Verdict, VerdictState

FAILING = 0.4
PASSING, JUDGED, MEASURED = 0.5, 0.4, 0.1
Z = 1.959964  # 95 % of a normal distribution


def ranked(attempts: Sequence[Attempt], verdicts: Sequence[Verdict]) -> list[Attempt]:
    """The attempts, in their own order, each with its score and its rank.

    Only what can win has a rank. Equal scores stand in the order of their numbers.
    """
    judged = opinions(attempts, verdicts)
    scores = {each.id: _score(each, attempts, judged) for each in attempts}
    order = sorted(
        (each for each in attempts if each.can_win),
        key=lambda each: (-(scores[each.id] or 0.0), each.number),
    )
    places = {each.id: place for place, each in enumerate(order, 1)}
    return [replace(each, score=scores[each.id], rank=places.get(each.id)) for each in attempts]


def opinions(attempts: Sequence[Attempt], verdicts: Sequence[Verdict]) -> dict[str, float]:
    """What judges think of attempts, from 0 to 1: for each, the share of the others that it beats,
    a tie being half a win, on average over all verdicts that were given."""
    sums: dict[str, list[float]] = {}
    for verdict in verdicts:
        if verdict.state is not VerdictState.GIVEN or verdict.ranking is None:
            continue
        count = sum(len(group) for group in verdict.ranking)
        behind = count
        for group in verdict.ranking:
            behind -= len(group)
            share = (behind + (len(group) - 1) / 2) / (count - 1) if count > 1 else 0.5
            for id in group:
                sums.setdefault(id, []).append(share)
    known = {attempt.id for attempt in attempts}
    return {id: sum(shares) / len(shares) for id, shares in sums.items() if id in known}


def _score(attempt: Attempt, attempts: Sequence[Attempt], judged: dict[str, float]) -> float | None:
    if attempt.state is not AttemptState.COMPLETED:
        return None
    if attempt.passed is False:
        return round(FAILING * _share_passed(attempt.checks), 4)
    rivals = [each for each in attempts if each.can_win]
    opinion = judged.get(attempt.id, 0.5)
    return round(PASSING + JUDGED * opinion + MEASURED * _measured(attempt, rivals), 4)


def _share_passed(checks: Sequence[Check]) -> float:
    """How much of its gates an attempt that failed has passed, a little less than all of it."""
    if not checks:
        return 0.0
    shares = [
        1.0
        if check.exit_code == 0
        else (check.tests.passed / check.tests.total if check.tests and check.tests.total else 0.0)
        for check in checks
    ]
    return min(sum(shares) / len(shares), 0.99)


def _measured(attempt: Attempt, rivals: Sequence[Attempt]) -> float:
    """How small, cheap and quick it is beside its rivals; what is not known does not count."""
    shares = []
    for figures in (
        [_size(each) for each in (attempt, *rivals)],
        [each.cost_micros for each in (attempt, *rivals)],
        [each.duration_ms for each in (attempt, *rivals)],
    ):
        own, known = figures[0], [figure for figure in figures if figure is not None]
        if own is not None:
            shares.append((min(known) + 1) / (own + 1))
    return sum(shares) / len(shares) if shares else 0.0


def _size(attempt: Attempt) -> int | None:
    if attempt.insertions is None or attempt.deletions is None:
        return None
    return attempt.insertions + attempt.deletions


def survivors(attempts: Sequence[Attempt]) -> list[Attempt]:
    """The better half of a round, rounded up: who goes on when rounds are halved."""
    order = sorted(
        (each for each in attempts if each.rank is not None), key=lambda each: each.rank or 0
    )
    return order[: max(1, (len(attempts) + 1) // 2)]


def confidence(wins: int, of: int) -> tuple[float, float]:
    """Where a rate lies with 95 % confidence, by Wilson: it is sound for few cases too."""
    if not of:
        return 0.0, 1.0
    rate, square = wins / of, Z * Z
    middle = rate + square / (2 * of)
    reach = Z * math.sqrt(rate * (1 - rate) / of + square / (4 * of * of))
    whole = 1 + square / of
    return max(0.0, (middle - reach) / whole), min(1.0, (middle + reach) / whole)
