"""Names of attempts and rounds: what people type, branches and worktree paths."""

import re

from corral.domain.races.model import Attempt, Race, Round, RoundState
from corral.kernel.errors import Ambiguous, NotFound
from corral.kernel.validation import MAX_NAME

_REFERENCE = re.compile(r"(?:(?P<round>\d{1,6})[.:/])?(?P<number>\d{1,6})")


def make_branch_name(race: Race, round: int, number: int, try_number: int) -> str:
    """Return the branch of an attempt: a valid git name that no other attempt has."""
    slug = re.sub(r"[^A-Za-z0-9_-]+", "-", race.name).strip("-")[:40] or "race"
    suffix = f"-{try_number}" if try_number > 1 else ""
    return f"corral/{slug}-{race.id[-6:]}/round-{round}-{number}{suffix}"


def make_worktree_path(folder: str, race: Race, round: int, number: int, try_number: int) -> str:
    """Return the path of an attempt's worktree below `folder`."""
    suffix = f"-{try_number}" if try_number > 1 else ""
    return f"{folder}/{race.id}/round-{round}-{number}{suffix}"


def find_attempt(race: Race, reference: str | int) -> Attempt:
    """Return an attempt by NUMBER in the latest round, ROUND.NUMBER, its id or a prefix of it.

    Raises NotFound without a match, and Ambiguous when several ids begin with the prefix.
    """
    text = str(reference)
    match = _REFERENCE.fullmatch(text)
    if match:
        number = int(match["round"]) if match["round"] else race.latest.number
        matches = [
            attempt
            for round in race.rounds
            if round.number == number
            for attempt in round.attempts
            if attempt.number == int(match["number"])
        ]
    else:
        matches = [
            attempt
            for round in race.rounds
            for attempt in round.attempts
            if text.startswith("att_") and attempt.id.startswith(text)
        ]
    if len(matches) > 1:
        raise Ambiguous(
            f"Several attempts of {race.id} match {text!r}. Use ROUND.NUMBER or a longer id.",
            id=race.id,
            candidates=[attempt.id for attempt in matches],
        )
    if not matches:
        raise NotFound(
            f"No attempt matches {text[:MAX_NAME]!r} in {race.id}. Use its number in round "
            f"{race.latest.number} (the latest), ROUND.NUMBER, or its id.",
            id=race.id,
            attempt=text[:MAX_NAME],
            reason="unknown_attempt",
        )
    return matches[0]


def find_round(race: Race, number: int | None) -> Round:
    """Return a round by its number, by default the latest. Raises NotFound."""
    matches = [round for round in race.rounds if number is None or round.number == number]
    if not matches:
        raise NotFound(
            f"{race.id} has no round {number}. Its last round is {len(race.rounds)}.",
            id=race.id,
            round=number,
        )
    return matches[-1]


def suggest_next_step(race: Race, round: Round) -> str:
    """Return the advice for a round without a winner: how to decide it."""
    advice = {
        RoundState.RUNNING: f"Wait for it (`corral race wait {race.id}`), or abandon it",
        RoundState.SELECTING: f"Select its winner (`corral race select {race.id}`), or abandon it",
        RoundState.FAILED: f"No attempt passed: retry one (`corral race retry {race.id} ATTEMPT`), "
        f"or abandon the round (`corral race abandon {race.id}`)",
    }
    return advice.get(
        round.state, f"Continue from a round with a winner (`corral race next {race.id} --from N`)"
    )
