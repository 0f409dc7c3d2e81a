"""Charges and budgets beside plain sums: money is conserved, and no limit is promised twice."""

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
    run_machine,
    while_it_is_made_short,
)

runs = st.sampled_from(["run_1", "run_2", "run_3"])
scopes = st.sampled_from(["all", "project:prj_1", "agent:agt_1"])
periods = st.sampled_from(["total", "day"])
money = st.integers(0, 40)
costs = st.one_of(st.none(), money)
tokens = st.integers(0, 5)

# Where each run belongs.
WHERE: dict[str, dict[str, str]] = {
    "run_1": {"project_id": "prj_1", "agent_id": "agt_1"},
    "run_2": {"project_id": "prj_1"},
    "run_3": {"agent_id": "agt_1"},
}


def covers(scope: str, run: str) -> bool:
    kind, _, id = scope.partition(":")
    return scope == "all" or WHERE[run].get(f"{kind}_id") == id


class ChargesMachine(StoreMachine):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        # A charge: its id, run, day, tokens and cost.
        self.charges: list[dict[str, Any]] = []
        self.keys: set[tuple[str, str]] = set()
        self.counters: dict[str, tuple[int, int]] = {}
        self.budgets: dict[tuple[str, str], int] = {}
        self.promised: dict[tuple[str, str, str], tuple[str, int]] = {}

    @property
    def today(self) -> str:
        return utc_date(self.now)

    # -- the model -------------------------------------------------------------------------------

    def spent(self, scope: str, period: str) -> int:
        return sum(
            charge["cost"] or 0
            for charge in self.charges
            if covers(scope, charge["run"]) and (period == "total" or charge["day"] == self.today)
        )

    def spent_by(self, run: str) -> int:
        return sum(charge["cost"] or 0 for charge in self.charges if charge["run"] == run)

    def reserved(self, scope: str, period: str, but: str = "") -> int:
        day = self.today if period == "day" else ""
        return sum(
            max(micros - self.spent_by(run), 0)
            for (run, of, each), (on, micros) in self.promised.items()
            if (of, each, on) == (scope, period, day) and run != but
        )

    def left(self, scope: str, period: str, but: str = "") -> int:
        return (
            self.budgets[scope, period]
            - self.spent(scope, period)
            - self.reserved(scope, period, but)
        )

    # -- what happens ----------------------------------------------------------------------------

    @rule(days=st.integers(0, 2))
    def time_passes(self, days: int) -> None:
        self.clock.advance(days * DAY + 1)

    @rule(run=runs, input=tokens, output=tokens, cost=costs, key=st.sampled_from([None, "a", "b"]))
    def add(self, run: str, input: int, output: int, cost: int | None, key: str | None) -> None:
        report = UsageFact(model="m", input=input, output=output, cost_micros=cost, key=key)
        told = self.store.charges.add(report, run_id=run, **WHERE[run])
        seen = key is not None and (run, key) in self.keys
        if seen or not (input or output or cost):
            assert told is None
            return
        assert told is not None
        assert told.cost_micros == cost
        if key is not None:
            self.keys.add((run, key))
        self.charge(told.id, run, input, output, cost)

    @rule(run=runs, counter=st.sampled_from(["x", "y"]), input=tokens, output=tokens)
    def count(self, run: str, counter: str, input: int, output: int) -> None:
        report = UsageFact(model="m", input=input, output=output, counter=counter)
        told = self.store.charges.add(report, run_id=run, **WHERE[run])
        before = self.counters.get(counter, (0, 0))
        self.counters[counter] = (input, output)
        if input < before[0] or output < before[1]:
            before = (0, 0)
        added = (input - before[0], output - before[1])
        if added == (0, 0):
            assert told is None
            return
        assert told is not None
        assert (told.input, told.output) == added
        self.charge(told.id, run, *added, None)

    def charge(self, id: str, run: str, input: int, output: int, cost: int | None) -> None:
        figures = {"input": input, "output": output, "cost": cost}
        self.charges.append({"id": id, "run": run, "day": self.today, **figures})

    @rule(places=st.lists(st.integers(0, 12), max_size=4), cost=costs)
    def price(self, places: list[int], cost: int | None) -> None:
        asked = [self.charges[place] for place in places if place < len(self.charges)]
        prices = [ChargePrice(charge["id"], cost, "v1") for charge in asked]
        changed = self.store.internal.charges.set_prices(prices)
        expected = []
        for charge in asked:
            if charge["cost"] is None and cost is not None:
                charge["cost"] = cost
                expected.append(charge["id"])
        assert [charge.id for charge in changed] == expected

    @rule(scope=scopes, period=periods, limit=st.integers(0, 100))
    def set_budget(self, scope: str, period: str, limit: int) -> None:
        self.budgets[scope, period] = limit
        found = self.store.budgets.set(scope, limit, period=period)
        assert found.left_micros == self.left(scope, period)

    @rule(scope=scopes, period=periods)
    def remove_budget(self, scope: str, period: str) -> None:
        if self.budgets.pop((scope, period), None) is not None:
            self.store.budgets.remove(scope, period=period)

    @rule(run=runs, budget=costs)
    def reserve(self, run: str, budget: int | None) -> None:
        covering = [key for key in self.budgets if covers(key[0], run)]
        wanted = 0 if budget is None else max(budget - self.spent_by(run), 0)
        fits = all(
            self.left(*key, but=run) > 0 and wanted <= self.left(*key, but=run) for key in covering
        )

        def call() -> Any:
            return self.store.internal.charges.reserve(run, **WHERE[run], budget_micros=budget)

        if self.refused(None if fits else Refused, call):
            return
        told = call()
        if budget is None:
            assert told == []
            return
        assert {(one.scope, one.period) for one in told} == {*covering}
        for scope, period in covering:
            self.promised[run, scope, period] = (self.today if period == "day" else "", budget)
            # No limit is promised away twice: all that was promised can still be spent.
            assert self.left(scope, period) >= 0

    @rule(run=runs)
    def release(self, run: str) -> None:
        self.store.internal.charges.release(run)
        self.promised = {key: value for key, value in self.promised.items() if key[0] != run}

    # -- what must hold --------------------------------------------------------------------------

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
            found = self.store.charges.total(scope)
            known = expected["charges"] > expected["unpriced"]
            assert found.cost_micros == (expected["cost"] if known else None)
            assert (found.charges, found.unpriced, found.input, found.output) == (
                expected["charges"],
                expected["unpriced"],
                expected["input"],
                expected["output"],
            )

    @invariant()
    def budgets_show_what_is_spent_and_reserved(self) -> None:
        found = {
            (one.scope, str(one.period)): one
            for one in self.store.budgets.list().items
            if not one.scope.startswith("run:")
        }
        assert {*found} == {*self.budgets}
        for key, budget in found.items():
            assert budget.spent_micros == self.spent(*key)
            assert budget.reserved_micros == self.reserved(*key)

    @invariant()
    def a_run_is_stopped_exactly_when_a_budget_that_covers_it_is_spent(self) -> None:
        for run in WHERE:
            over = self.store.internal.charges.exceeded_budget(run, **WHERE[run])
            spent = [
                scope
                for (scope, period), limit in self.budgets.items()
                if covers(scope, run) and self.spent(scope, period) >= limit
            ]
            if over is None or not over.scope.startswith("run:"):
                assert (over is not None) == bool(spent)


@while_it_is_made_short
def test_charges_and_budgets_match_the_model(fresh_url: FreshUrl) -> None:
    run_machine(ChargesMachine, fresh_url, stories=40, steps=25)
