"""Charges and budgets, compared with a model of plain sums under random operations."""

from collections import defaultdict
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from corral.adapters.providers.facts import UsageFact
from corral.domain.charges.model import ChargePrice
from corral.kernel.clock import DAY, utc_date
from corral.kernel.errors import Refused
from tests.properties.state_machine import (
    FreshUrl,
    StoreMachine,
    allow_shrinking_time,
    run_machine,
)

runs = st.sampled_from(["run_1", "run_2", "run_3"])
scopes = st.sampled_from(["all", "project:prj_1", "agent:agt_1"])
periods = st.sampled_from(["total", "day"])
money = st.integers(0, 40)
costs = st.one_of(st.none(), money)
tokens = st.integers(0, 5)

# The project and the agent of each run.
OWNERS: dict[str, dict[str, str]] = {
    "run_1": {"project_id": "prj_1", "agent_id": "agt_1"},
    "run_2": {"project_id": "prj_1"},
    "run_3": {"agent_id": "agt_1"},
}


def is_covered(scope: str, run: str) -> bool:
    kind, _, id = scope.partition(":")
    return scope == "all" or OWNERS[run].get(f"{kind}_id") == id


class ChargesMachine(StoreMachine):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        # A charge: its id, run, day, tokens and cost.
        self.charges: list[dict[str, Any]] = []
        self.keys: set[tuple[str, str]] = set()
        self.counters: dict[str, tuple[int, int]] = {}
        self.budgets: dict[tuple[str, str], int] = {}
        self.reservations: dict[tuple[str, str, str], tuple[str, int]] = {}

    @property
    def today(self) -> str:
        return utc_date(self.now)

    # -- the model -------------------------------------------------------------------------------

    def spent(self, scope: str, period: str) -> int:
        return sum(
            charge["cost"] or 0
            for charge in self.charges
            if is_covered(scope, charge["run"])
            and (period == "total" or charge["day"] == self.today)
        )

    def spent_by(self, run: str) -> int:
        return sum(charge["cost"] or 0 for charge in self.charges if charge["run"] == run)

    def reserved(self, scope: str, period: str, excluded: str = "") -> int:
        day = self.today if period == "day" else ""
        return sum(
            max(micros - self.spent_by(run), 0)
            for (run, *limit), (start, micros) in self.reservations.items()
            if (*limit, start) == (scope, period, day) and run != excluded
        )

    def left(self, scope: str, period: str, excluded: str = "") -> int:
        return (
            self.budgets[scope, period]
            - self.spent(scope, period)
            - self.reserved(scope, period, excluded)
        )

    # -- steps -----------------------------------------------------------------------------------

    @rule(days=st.integers(0, 2))
    def advance_days(self, days: int) -> None:
        self.clock.advance(days * DAY + 1)

    @rule(run=runs, input=tokens, output=tokens, cost=costs, key=st.sampled_from([None, "a", "b"]))
    def add(self, run: str, input: int, output: int, cost: int | None, key: str | None) -> None:
        report = UsageFact(model="m", input=input, output=output, cost_micros=cost, key=key)
        charge = self.store.charges.add(report, run_id=run, **OWNERS[run])
        is_repeated = key is not None and (run, key) in self.keys
        if is_repeated or not (input or output or cost):
            assert charge is None
            return
        assert charge is not None
        assert charge.cost_micros == cost
        if key is not None:
            self.keys.add((run, key))
        self.add_to_model(charge.id, run, input, output, cost)

    @rule(run=runs, counter=st.sampled_from(["x", "y"]), input=tokens, output=tokens)
    def count(self, run: str, counter: str, input: int, output: int) -> None:
        report = UsageFact(model="m", input=input, output=output, counter=counter)
        charge = self.store.charges.add(report, run_id=run, **OWNERS[run])
        before = self.counters.get(counter, (0, 0))
        self.counters[counter] = (input, output)
        if input < before[0] or output < before[1]:
            before = (0, 0)
        added = (input - before[0], output - before[1])
        if added == (0, 0):
            assert charge is None
            return
        assert charge is not None
        assert (charge.input, charge.output) == added
        self.add_to_model(charge.id, run, *added, None)

    def add_to_model(self, id: str, run: str, input: int, output: int, cost: int | None) -> None:
        figures = {"input": input, "output": output, "cost": cost}
        self.charges.append({"id": id, "run": run, "day": self.today, **figures})

    @rule(indexes=st.lists(st.integers(0, 12), max_size=4), cost=costs)
    def price(self, indexes: list[int], cost: int | None) -> None:
        chosen = [self.charges[index] for index in indexes if index < len(self.charges)]
        prices = [ChargePrice(charge["id"], cost, "v1") for charge in chosen]
        priced = self.store.internal.charges.set_prices(prices)
        expected = []
        for charge in chosen:
            if charge["cost"] is None and cost is not None:
                charge["cost"] = cost
                expected.append(charge["id"])
        assert [charge.id for charge in priced] == expected

    @rule(scope=scopes, period=periods, limit=st.integers(0, 100))
    def set_budget(self, scope: str, period: str, limit: int) -> None:
        self.budgets[scope, period] = limit
        budget = self.store.budgets.set(scope, limit, period=period)
        assert budget.left_micros == self.left(scope, period)

    @rule(scope=scopes, period=periods)
    def remove_budget(self, scope: str, period: str) -> None:
        if self.budgets.pop((scope, period), None) is not None:
            self.store.budgets.remove(scope, period=period)

    @rule(run=runs, budget=costs)
    def reserve(self, run: str, budget: int | None) -> None:
        covering = [key for key in self.budgets if is_covered(key[0], run)]
        needed = 0 if budget is None else max(budget - self.spent_by(run), 0)
        fits = all(
            self.left(*key, excluded=run) > 0 and needed <= self.left(*key, excluded=run)
            for key in covering
        )

        def call() -> Any:
            return self.store.internal.charges.reserve(run, **OWNERS[run], budget_micros=budget)

        if self.is_rejected(None if fits else Refused, call):
            return
        budgets = call()
        if budget is None:
            assert budgets == []
            return
        assert {(item.scope, item.period) for item in budgets} == {*covering}
        for scope, period in covering:
            self.reservations[run, scope, period] = (self.today if period == "day" else "", budget)
            # Reservations never exceed a limit: everything reserved can still be spent.
            assert self.left(scope, period) >= 0

    @rule(run=runs)
    def release(self, run: str) -> None:
        self.store.internal.charges.release(run)
        self.reservations = {
            key: value for key, value in self.reservations.items() if key[0] != run
        }

    # -- invariants ------------------------------------------------------------------------------

    @invariant()
    def every_total_is_the_sum_of_its_charges(self) -> None:
        sums: dict[str, dict[str, Any]] = defaultdict(
            lambda: {"charges": 0, "unpriced": 0, "input": 0, "output": 0, "cost": 0}
        )
        for charge in self.charges:
            for scope in ("all", f"run:{charge['run']}", "model:m"):
                total = sums[scope]
                total["charges"] += 1
                total["unpriced"] += charge["cost"] is None
                total["cost"] += charge["cost"] or 0
                total["input"] += charge["input"]
                total["output"] += charge["output"]
        for scope, expected in sums.items():
            stored = self.store.charges.total(scope)
            has_price = expected["charges"] > expected["unpriced"]
            assert stored.cost_micros == (expected["cost"] if has_price else None)
            assert (stored.charges, stored.unpriced, stored.input, stored.output) == (
                expected["charges"],
                expected["unpriced"],
                expected["input"],
                expected["output"],
            )

    @invariant()
    def budgets_show_what_is_spent_and_reserved(self) -> None:
        budgets = {
            (item.scope, str(item.period)): item
            for item in self.store.budgets.list().items
            if not item.scope.startswith("run:")
        }
        assert {*budgets} == {*self.budgets}
        for key, budget in budgets.items():
            assert budget.spent_micros == self.spent(*key)
            assert budget.reserved_micros == self.reserved(*key)

    @invariant()
    def run_exceeds_a_budget_exactly_when_it_is_spent(self) -> None:
        for run in OWNERS:
            over = self.store.internal.charges.exceeded_budget(run, **OWNERS[run])
            spent = [
                scope
                for (scope, period), limit in self.budgets.items()
                if is_covered(scope, run) and self.spent(scope, period) >= limit
            ]
            if over is None or not over.scope.startswith("run:"):
                assert (over is not None) == bool(spent)


@allow_shrinking_time
def test_charges_and_budgets_match_the_model(fresh_url: FreshUrl) -> None:
    run_machine(ChargesMachine, fresh_url, examples=40, steps=25)
