"""How attempts and rounds are named: by people, as branches, as folders."""

import re

from corral.domain.races.model import Attempt, Race, Round, RoundState
from corral.kernel.errors import NotFound
from corral.kernel.text import MAX_NAME

_LATEST = re.compile(r"(?:(?P<round>\d{1,6})[.:/])?(?P<number>\d{1,6})")


def branch_name(race: Race, round: int, number: int, tries: int) -> str:
    """A branch for an attempt: git takes the name, and no other attempt has it."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", race.name).strip("-")[:40] or "race"
    again = f"-{tries}" if tries > 1 else ""
    return f"corral/{plain}-{race.id[-6:]}/round-{round}-{number}{again}"


def folder_name(folder: str, race: Race, round: int, number: int, tries: int) -> str:
    again = f"-{tries}" if tries > 1 else ""
    return f"{folder}/{race.id}/round-{round}-{number}{again}"


def find_attempt(race: Race, typed: str | int) -> Attempt:
    """An attempt of a race: by its id, the beginning of that, its number in the latest round, or
    as ROUND.NUMBER."""
    text = str(typed)
    match = _LATEST.fullmatch(text)
    if match:
        number = int(match["round"]) if match["round"] else race.latest.number
        found = [
            attempt
            for round in race.rounds
            if round.number == number
            for attempt in round.attempts
            if attempt.number == int(match["number"])
        ]
    else:
        all_of_it = [attempt for round in race.rounds for attempt in round.attempts]
        found = [attempt for attempt in all_of_it if attempt.id.startswith(text)]
    if len(found) != 1 or len(text) > MAX_NAME:
        many = "several attempts" if len(found) > 1 else "no attempt"
        raise NotFound(
            f"{text[:MAX_NAME]!r} names {many} of {race.id}; name one by its number in round "
            f"{race.latest.number}, its latest, or as ROUND.NUMBER, or by its id.",
            id=race.id,
            attempt=text[:MAX_NAME],
            reason="unknown_attempt",
        )
    return found[0]


def round_of(race: Race, number: int | None) -> Round:
    """A round of a race by its number; the latest when none is named."""
    found = [each for each in race.rounds if number is None or each.number == number]
    if not found:
        raise NotFound(
            f"{race.id} has no round {number}; it has {len(race.rounds)}.", id=race.id, round=number
        )
    return found[-1]


def to_be_decided(race: Race, round: Round) -> str:
    """What decides a round that has no winner yet."""
    return {
        RoundState.RUNNING: f"wait for it (`corral race wait {race.id}`), or abandon it",
        RoundState.SELECTING: f"choose its winner (`corral race select {race.id}`), or abandon it",
        RoundState.FAILED: f"none passed: do one again (`corral race retry {race.id} ATTEMPT`), or "
        f"abandon it (`corral race abandon {race.id}`)",
    }.get(round.state, f"go on from one that has (`corral race next {race.id} --from N`)")
