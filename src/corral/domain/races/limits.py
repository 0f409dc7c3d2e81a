"""What a plan may ask for, and what its rounds may cost."""

from corral.domain.races.model import Plan, Race
from corral.kernel.errors import Invalid, Refused
from corral.kernel.money import format_usd
from corral.kernel.text import check_int, clean_text

MAX_CHECKS = 20


def share_of(race: Race, number: int) -> int | None:
    """What a round may cost: an even share of what is left for the rounds still planned."""
    if race.budget_micros is None:
        return None
    left = race.budget_micros - (race.spent_micros or 0)
    if left <= 0:
        raise Refused(
            f"{race.id} has spent {format_usd(race.spent_micros)} of its "
            f"{format_usd(race.budget_micros)}; give it more with --budget.",
            id=race.id,
            spent_micros=race.spent_micros,
            budget_micros=race.budget_micros,
        )
    return left // max(1, race.plan.rounds - number + 1)


def check_plan(plan: Plan) -> None:
    if len(plan.checks) > MAX_CHECKS:
        raise Invalid(f"A race has up to {MAX_CHECKS} checks, not {len(plan.checks)}.")
    for command in (*plan.checks, *([plan.setup] if plan.setup is not None else [])):
        clean_text(command, "A check or set-up command")
    for name, value, low, high in (
        ("The number of rounds", plan.rounds, 1, 100),
        ("The number of samples", plan.samples, 1, 20),
        ("Enough", plan.enough if plan.enough is not None else 1, 1, 1_000),
    ):
        if not low <= check_int(value, name) <= high:
            raise Invalid(f"{name} goes from {low} to {high}, not {value}.", value=value)


def summed(one: int | None, other: int | None) -> int | None:
    """Two costs together; what is not known counts for nothing unless both are."""
    return None if one is None is other else (one or 0) + (other or 0)
