"""A charge is the tokens and money of one usage report; totals are sums of charges.

Money is in whole micro-dollars. An unknown cost is None, never 0. A total has no cost when none of
its charges has one; otherwise `unpriced` counts the charges without a cost.
"""

import re
from enum import StrEnum

import msgspec

from corral.kernel.errors import Invalid
from corral.kernel.money import format_usd
from corral.kernel.validation import MAX_NAME, check_choice, check_text


class CostSource(StrEnum):
    """Where the cost of a charge comes from."""

    PROVIDER = "provider"  # reported by the agent's program
    PRICES = "prices"  # computed from a price table


class BudgetPeriod(StrEnum):
    TOTAL = "total"  # over all time
    DAY = "day"  # each day, in UTC


class Charge(msgspec.Struct, frozen=True):
    """The usage of one report."""

    id: str
    run_id: str | None
    session_id: str | None
    project_id: str | None
    agent_id: str | None
    provider: str | None
    model: str | None
    input: int
    output: int
    cache_read: int
    cache_write: int
    reasoning: int
    cost_micros: int | None
    source: CostSource | None
    prices_version: str | None
    key: str | None
    at: int

    @property
    def tokens(self) -> int:
        """All tokens. Reasoning is part of the output."""
        return self.input + self.output + self.cache_read + self.cache_write


class UsageTotal(msgspec.Struct, frozen=True):
    """The sum of the charges of a scope, over all time or on one day."""

    scope: str
    day: str
    """Empty: over all time."""
    charges: int
    unpriced: int
    """The number of charges without a cost; `cost_micros` is a lower bound if it is not 0."""
    input: int
    output: int
    cache_read: int
    cache_write: int
    reasoning: int
    cost_micros: int | None

    @property
    def tokens(self) -> int:
        return self.input + self.output + self.cache_read + self.cache_write


class ChargePrice(msgspec.Struct, frozen=True):
    """The cost of a charge by a price table; None: the table does not know the model."""

    id: str
    cost_micros: int | None
    version: str


class Budget(msgspec.Struct, frozen=True):
    """A spending limit of a scope, with what is spent and reserved."""

    scope: str
    period: BudgetPeriod
    limit_micros: int
    updated_at: int
    updated_by: str
    spent_micros: int = 0
    """The sum of the known costs."""
    reserved_micros: int = 0
    """Reserved by live runs and not spent yet."""

    @property
    def left_micros(self) -> int:
        return self.limit_micros - self.spent_micros - self.reserved_micros


class BudgetReservation(msgspec.Struct, frozen=True):
    """The part of a budget that a run has reserved."""

    run_id: str
    scope: str
    period: BudgetPeriod
    day: str
    amount_micros: int


class ExceededBudget(msgspec.Struct, frozen=True):
    """A budget that is spent."""

    scope: str
    period: BudgetPeriod
    limit_micros: int
    spent_micros: int

    @property
    def reason(self) -> str:
        """The reason for stopping a run."""
        scope = describe_scope(self.scope, self.period)
        budget = "its budget" if self.scope.startswith("run:") else f"the budget of {scope}"
        spent, limit = format_usd(self.spent_micros), format_usd(self.limit_micros)
        return f"{budget} is spent: {spent} of {limit}"


def describe_scope(scope: str, period: BudgetPeriod) -> str:
    """Describe the scope of a budget for use in a sentence."""
    kind, _, id = scope.partition(":")
    text = f"{kind} {id}" if id else "everything"
    return f"{text} for today (UTC)" if period is BudgetPeriod.DAY else text


TOTAL_SCOPES = ("run", "session", "project", "agent", "model")
_BUDGETED = re.compile(r"all|(?:run|project|agent):[^\s\x00-\x1f]{1,100}")


def check_scope(scope: str) -> str:
    """Return a scope that has totals; raises Invalid for any other text."""
    kind, colon, name = check_text(scope, "The scope", max_bytes=2 * MAX_NAME).partition(":")
    if scope != "all" and not (kind in TOTAL_SCOPES and colon and name):
        raise Invalid(
            f"Invalid scope {scope!r}: expected all, or KIND:ID with one of the kinds "
            f"{', '.join(TOTAL_SCOPES)}.",
            scope=scope,
        )
    return scope


def check_budget(scope: str, period: str) -> BudgetPeriod:
    """Return the period of a valid budget; raises Invalid for a wrong scope or period."""
    if not _BUDGETED.fullmatch(check_text(scope, "The scope", max_bytes=MAX_NAME)):
        raise Invalid(
            f"Invalid budget scope {scope!r}: expected all, run:ID, project:ID or agent:NAME.",
            scope=scope,
        )
    chosen = check_choice(period, BudgetPeriod, "The period")
    if chosen is BudgetPeriod.DAY and scope.startswith("run:"):
        raise Invalid("A run has no budget per day. Leave the period out.", scope=scope)
    return chosen
