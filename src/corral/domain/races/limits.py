"""Limits of a race: what a plan may ask for, and the budget of a round."""

from corral.domain.races.model import Race, RacePlan
from corral.kernel.errors import Invalid, Refused
from corral.kernel.money import format_usd
from corral.kernel.validation import check_int, check_text

MAX_CHECKS = 20


def compute_round_budget(race: Race, number: int) -> int | None:
    """Return the budget of a round: an even share of what is left for the remaining rounds.

    Raises Refused when the budget of the race is spent.
    """
    if race.budget_micros is None:
        return None
    left = race.budget_micros - (race.spent_micros or 0)
    if left <= 0:
        raise Refused(
            f"{race.id} has spent {format_usd(race.spent_micros)} of its budget of "
            f"{format_usd(race.budget_micros)}. Raise it with --budget.",
            id=race.id,
            spent_micros=race.spent_micros,
            budget_micros=race.budget_micros,
        )
    return left // max(1, race.plan.rounds - number + 1)


def validate_plan(plan: RacePlan) -> None:
    """Raise Invalid for a plan with values out of range."""
    if len(plan.checks) > MAX_CHECKS:
        raise Invalid(f"A race can have at most {MAX_CHECKS} checks, not {len(plan.checks)}.")
    for command in (*plan.checks, *([plan.setup] if plan.setup is not None else [])):
        check_text(command, "A check or set-up command")
    stop_after = plan.stop_after if plan.stop_after is not None else 1
    for name, value, low, high in (
        ("The number of rounds", plan.rounds, 1, 100),
        ("The number of samples", plan.samples, 1, 20),
        ("The number of attempts to stop after", stop_after, 1, 1_000),
    ):
        if not low <= check_int(value, name) <= high:
            raise Invalid(f"{name} must be between {low} and {high}, not {value}.", value=value)
