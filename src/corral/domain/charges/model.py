"""A charge is tokens and money used by a run; totals are what charges add up to.

Money is whole micro-dollars. What is not known is None, never 0: a total whose charges all lack a
cost has none either, and one that has some says how many are missing (`unknown`).
"""

import re
from enum import StrEnum

import msgspec

from corral.kernel.errors import Invalid
from corral.kernel.money import format_usd
from corral.kernel.text import MAX_NAME, clean_text


class Source(StrEnum):
    PROVIDER = "provider"  # the agent's own program told the cost
    PRICES = "prices"  # it was worked out from a table of prices


class Period(StrEnum):
    TOTAL = "total"  # once and for all
    DAY = "day"  # anew each day, in UTC


class Charge(msgspec.Struct, frozen=True):
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
    source: Source | None
    prices_version: str | None
    key: str | None
    at: int

    @property
    def tokens(self) -> int:
        """Reasoning is a part of the output."""
        return self.input + self.output + self.cache_read + self.cache_write


class Total(msgspec.Struct, frozen=True):
    scope: str
    day: str
    """Empty: since ever."""
    charges: int
    unknown: int
    """How many of the charges have no cost, so that `cost_micros` tells too little."""
    input: int
    output: int
    cache_read: int
    cache_write: int
    reasoning: int
    cost_micros: int | None

    @property
    def tokens(self) -> int:
        return self.input + self.output + self.cache_read + self.cache_write


class Price(msgspec.Struct, frozen=True):
    """What a table of prices says of one charge; None: it does not know the model."""

    id: str
    cost_micros: int | None
    version: str


class Budget(msgspec.Struct, frozen=True):
    scope: str
    period: Period
    limit_micros: int
    updated_at: int
    updated_by: str
    spent_micros: int = 0
    """Of the costs that are known."""
    reserved_micros: int = 0
    """Promised to runs that go on, and not spent yet."""

    @property
    def left_micros(self) -> int:
        return self.limit_micros - self.spent_micros - self.reserved_micros


class Reservation(msgspec.Struct, frozen=True):
    run_id: str
    scope: str
    period: Period
    day: str
    micros: int


class Over(msgspec.Struct, frozen=True):
    """A budget that is spent."""

    scope: str
    period: Period
    limit_micros: int
    spent_micros: int

    @property
    def reason(self) -> str:
        """For the record of a run that is stopped by it."""
        own = self.scope.startswith("run:")
        whose = "its budget" if own else f"the budget of {named(self.scope, self.period)}"
        spent, limit = format_usd(self.spent_micros), format_usd(self.limit_micros)
        return f"{whose} is spent: {spent} of {limit}"


def named(scope: str, period: Period) -> str:
    """A budget as a sentence names it."""
    kind, _, id = scope.partition(":")
    of = f"{kind} {id}" if id else "everything"
    return f"{of} for today (UTC)" if period is Period.DAY else of


TOTALLED = ("run", "session", "project", "agent", "model")
_BUDGETED = re.compile(r"all|(?:run|project|agent):[^\s\x00-\x1f]{1,100}")


def check_scope(scope: str) -> str:
    kind, colon, name = clean_text(scope, "The scope", most=2 * MAX_NAME).partition(":")
    if scope != "all" and not (kind in TOTALLED and colon and name):
        raise Invalid(
            f"{scope!r} is nothing that is totalled; write all, or one of "
            f"{', '.join(TOTALLED)}, a colon and an id or name.",
            scope=scope,
        )
    return scope


def check_budget(scope: str, period: str) -> Period:
    if not _BUDGETED.fullmatch(clean_text(scope, "The scope", most=MAX_NAME)):
        raise Invalid(
            f"{scope!r} can have no budget; write all, run:ID, project:ID or agent:ID.", scope=scope
        )
    if period not in Period._value2member_map_:
        raise Invalid(f"{period!r} is no period; write total or day.", period=period)
    if period == Period.DAY and scope.startswith("run:"):
        raise Invalid("A run has one budget for all its days; leave the period out.", scope=scope)
    return Period(period)
