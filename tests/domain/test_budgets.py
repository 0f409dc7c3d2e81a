"""Budgets: spent and reserved amounts, refused runs, daily periods and removal."""

from pathlib import Path
from typing import Any

import pytest

from corral.adapters.providers.facts import UsageFact
from corral.api import Corral
from corral.kernel.clock import DAY, ManualClock
from corral.kernel.errors import Invalid, NotFound, Refused
from corral.kernel.money import MICROS_PER_USD
from tests.support.grouped_cases import each_case
from tests.support.invariants import check_store
from tests.support.store import list_events, raises_without_change, unchanged, walk

DOLLAR = MICROS_PER_USD
CONTEXT = {"project_id": "prj_1", "agent_id": "agt_1"}


def spend(store: Corral, micros: int, run: str = "run_1", **context: Any) -> None:
    store.charges.add(
        UsageFact(model="m", input=1, cost_micros=micros), run_id=run, **(context or CONTEXT)
    )


def test_budget_has_spent_reserved_and_remaining_amounts(store: Corral) -> None:
    spend(store, 2 * DOLLAR, run="run_0")
    new_budget = store.budgets.set("project:prj_1", 10 * DOLLAR)
    assert (new_budget.spent_micros, new_budget.reserved_micros, new_budget.left_micros) == (
        2 * DOLLAR,
        0,
        8 * DOLLAR,
    )
    store.internal.charges.reserve("run_1", **CONTEXT, budget_micros=5 * DOLLAR)
    spend(store, DOLLAR)
    budget = store.budgets.get("project:prj_1")
    # The amount that the run spent is no longer reserved, so it is counted once.
    assert (budget.spent_micros, budget.reserved_micros, budget.left_micros) == (
        3 * DOLLAR,
        4 * DOLLAR,
        3 * DOLLAR,
    )
    store.internal.charges.release("run_1")
    assert store.budgets.get("project:prj_1").left_micros == 7 * DOLLAR


def test_budget_finds_its_agent_by_name_or_id(store: Corral) -> None:
    ada = store.agents.create("ada", role="builder")
    spend(store, 2 * DOLLAR, agent_id=ada.id)
    assert store.budgets.set("agent:ada", DOLLAR).spent_micros == 2 * DOLLAR
    assert store.budgets.get(f"agent:{ada.id}") == store.budgets.get("agent:ada")
    assert store.charges.total("agent:ada").cost_micros == 2 * DOLLAR
    assert len(store.charges.days("agent:ada").items) == 1
    with raises_without_change(store, Refused) as caught:
        store.internal.charges.reserve("run_2", agent_id=ada.id)
    assert caught.value.details["reason"] == "budget_spent"
    store.budgets.remove("agent:ada")
    assert store.budgets.list().items == []


def test_budget_of_an_unknown_agent_is_rejected(store: Corral) -> None:
    with raises_without_change(store, NotFound) as caught:
        store.budgets.set("agent:unknown", DOLLAR)
    assert caught.value.details["reason"] == "unknown_agent"
    with raises_without_change(store, NotFound):
        store.charges.total("agent:unknown")


@pytest.mark.parametrize("scope", ["all", "project:prj_1", "agent:agt_1"])
@pytest.mark.parametrize("period", ["total", "day"])
def test_run_over_the_remaining_budget_is_refused(store: Corral, scope: str, period: str) -> None:
    store.budgets.set(scope, 3 * DOLLAR, period=period)
    store.internal.charges.reserve("run_1", **CONTEXT, budget_micros=2 * DOLLAR)
    with raises_without_change(store, Refused) as caught:
        store.internal.charges.reserve("run_2", **CONTEXT, budget_micros=2 * DOLLAR)
    assert caught.value.code == "refused"
    assert caught.value.details["left_micros"] == DOLLAR
    assert caught.value.details["scope"] == scope
    message = caught.value.message
    assert "$1.00 left" in message
    assert "requests $2.00" in message
    assert f"corral budget set {scope} USD --period {period}" in message
    assert len(store.internal.charges.reserve("run_3", **CONTEXT, budget_micros=DOLLAR)) == 1


def test_run_without_a_budget_is_refused_when_nothing_is_left(
    store: Corral,
) -> None:
    store.budgets.set("all", DOLLAR)
    assert store.internal.charges.reserve("run_1", **CONTEXT) == []
    spend(store, DOLLAR)
    with raises_without_change(store, Refused) as caught:
        store.internal.charges.reserve("run_2", **CONTEXT)
    assert caught.value.details["reason"] == "budget_spent"


def test_budget_covers_only_its_scope(store: Corral) -> None:
    store.budgets.set("project:prj_2", 0)
    store.budgets.set("agent:agt_2", 0)
    assert store.internal.charges.reserve("run_1", **CONTEXT, budget_micros=DOLLAR) == []
    assert store.internal.charges.exceeded_budget("run_1", **CONTEXT) is None


def test_restart_reserves_only_the_rest(store: Corral) -> None:
    store.budgets.set("all", 5 * DOLLAR)
    store.internal.charges.reserve("run_1", **CONTEXT, budget_micros=5 * DOLLAR)
    spend(store, 4 * DOLLAR)
    (reservation,) = store.internal.charges.reserve("run_1", **CONTEXT, budget_micros=5 * DOLLAR)
    assert reservation.amount_micros == 5 * DOLLAR
    assert store.budgets.get("all").left_micros == 0
    store.internal.charges.release("run_1")
    assert store.budgets.get("all").left_micros == DOLLAR


def test_release_is_idempotent(store: Corral) -> None:
    store.budgets.set("all", DOLLAR)
    store.internal.charges.reserve("run_1", budget_micros=DOLLAR)
    assert store.internal.charges.release("run_1") is True
    with unchanged(store):
        assert store.internal.charges.release("run_1") is False
        assert store.internal.charges.release("run_9") is False
    assert [budget.scope for budget in store.budgets.list().items] == ["all"]


def test_most_specific_spent_budget_is_reported(store: Corral) -> None:
    store.budgets.set("all", 3 * DOLLAR)
    store.budgets.set("project:prj_1", 2 * DOLLAR, period="day")
    store.internal.charges.reserve("run_1", **CONTEXT, budget_micros=DOLLAR)
    spend(store, DOLLAR - 1)
    assert store.internal.charges.exceeded_budget("run_1", **CONTEXT) is None
    spend(store, 1)
    exceeded = store.internal.charges.exceeded_budget("run_1", **CONTEXT)
    assert exceeded is not None
    assert exceeded.scope == "run:run_1"
    assert exceeded.reason == "its budget is spent: $1.00 of $1.00"
    spend(store, DOLLAR, run="run_2")
    exceeded = store.internal.charges.exceeded_budget("run_2", **CONTEXT)
    assert exceeded is not None
    assert exceeded.reason == (
        "the budget of project prj_1 for today (UTC) is spent: $2.00 of $2.00"
    )
    spend(store, DOLLAR, run="run_3", project_id="prj_9")
    exceeded = store.internal.charges.exceeded_budget("run_3", project_id="prj_9")
    assert exceeded is not None
    assert exceeded.reason == "the budget of everything is spent: $3.00 of $3.00"


def test_daily_budget_resets_at_midnight_utc(store: Corral, clock: ManualClock) -> None:
    clock.at = clock.now() // DAY * DAY + DAY - 1
    store.budgets.set("all", DOLLAR, period="day")
    store.internal.charges.reserve("run_1", budget_micros=DOLLAR)
    spend(store, DOLLAR)
    with pytest.raises(Refused) as caught:
        store.internal.charges.reserve("run_2")
    assert caught.value.details["reason"] == "budget_spent"
    clock.advance(1)
    assert store.budgets.get("all", period="day").spent_micros == 0
    assert len(store.internal.charges.reserve("run_2", budget_micros=DOLLAR)) == 1


def test_unknown_costs_count_once_they_are_priced(store: Corral) -> None:
    store.budgets.set("all", 0)
    assert store.internal.charges.exceeded_budget("run_1") is not None
    store.budgets.set("all", 1)
    store.charges.add(UsageFact(model="gpt-5", output=10_000), run_id="run_1")
    assert store.internal.charges.exceeded_budget("run_1") is None
    assert store.charges.price_unpriced() == 1
    assert store.internal.charges.exceeded_budget("run_1") is not None


def test_budget_can_be_changed_listed_and_removed(store: Corral) -> None:
    for scope, period in (("all", "total"), ("all", "day"), ("agent:agt_1", "total")):
        store.budgets.set(scope, DOLLAR, period=period)
    store.budgets.set("all", 2 * DOLLAR)
    budgets = walk(store.budgets.list, limit=1)
    assert [(budget.scope, budget.period, budget.limit_micros) for budget in budgets] == [
        ("agent:agt_1", "total", DOLLAR),
        ("all", "day", DOLLAR),
        ("all", "total", 2 * DOLLAR),
    ]
    store.budgets.remove("all", period="day")
    with raises_without_change(store, NotFound):
        store.budgets.remove("all", period="day")
    with pytest.raises(NotFound):
        store.budgets.get("all", period="day")
    assert list_events(store) == ["budget.set"] * 4 + ["budget.remove"]
    check_store(store)


def test_deleting_a_project_deletes_its_budgets(store: Corral, tmp_path: Path) -> None:
    project = store.projects.register(tmp_path)
    store.budgets.set(f"project:{project.id}", DOLLAR)
    store.budgets.set(f"project:{project.id}", DOLLAR, period="day")
    store.budgets.set("all", DOLLAR)
    store.projects.delete(project.id)
    assert [budget.scope for budget in store.budgets.list().items] == ["all"]


@each_case(
    ("scope", "limit", "period"),
    [
        ("", 1, "total"),
        ("everything", 1, "total"),
        ("session:ses_1", 1, "total"),
        ("project:", 1, "total"),
        ("all", -1, "total"),
        ("all", 10**13, "total"),
        ("all", 1.5, "total"),
        ("all", 1, "week"),
        ("run:run_1", 1, "day"),
    ],
)
def test_invalid_budget_is_rejected(store: Corral, scope: str, limit: Any, period: str) -> None:
    with raises_without_change(store, Invalid):
        store.budgets.set(scope, limit, period=period)
