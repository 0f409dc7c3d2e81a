"""Charges: idempotent reports, counters, prices and exact totals."""

from typing import Any

import pytest

from corral.adapters.providers.facts import UsageFact
from corral.api import Corral
from corral.domain.charges.model import ChargePrice, CostSource
from corral.kernel.clock import DAY, HOUR, ManualClock, utc_date
from corral.kernel.errors import Invalid, NotFound
from tests.support.grouped_cases import each_case
from tests.support.invariants import check_store
from tests.support.store import list_events, raises_without_change, rows, unchanged, walk

RUN: dict[str, Any] = {
    "run_id": "run_1",
    "session_id": "ses_1",
    "project_id": "prj_1",
    "agent_id": "agt_1",
    "provider": "codex",
}


def usage(**figures: Any) -> UsageFact:
    return UsageFact(**({"model": "gpt-5", "input": 10, "output": 5} | figures))


def test_token_counts_and_the_exact_cost_are_stored(store: Corral, clock: ManualClock) -> None:
    charge = store.charges.add(
        usage(input=1_000, output=500, cache_read=200, cost_micros=12_345), **RUN
    )
    assert charge is not None
    assert (charge.input, charge.output, charge.cache_read) == (1_000, 500, 200)
    assert (charge.cost_micros, charge.source, charge.at) == (12_345, "provider", clock.now())
    assert charge.tokens == 1_700
    assert store.charges.get(charge.id) == charge
    assert list_events(store) == ["charge.add"]


def test_unknown_cost_is_null_and_never_zero(store: Corral) -> None:
    charge = store.charges.add(usage(), **RUN)
    assert charge is not None
    assert (charge.cost_micros, charge.source) == (None, None)
    for scope in ("all", "run:run_1", "session:ses_1", "project:prj_1", "agent:agt_1"):
        total = store.charges.total(scope)
        assert (total.charges, total.unpriced, total.cost_micros) == (1, 1, None)


def test_total_counts_the_charges_without_a_cost(store: Corral) -> None:
    store.charges.add(usage(cost_micros=7), **RUN)
    store.charges.add(usage(), **RUN)
    store.charges.add(usage(cost_micros=0), **RUN)
    total = store.charges.total("model:gpt-5")
    assert (total.charges, total.unpriced, total.cost_micros) == (3, 1, 7)


def test_cost_of_zero_is_a_known_cost(store: Corral) -> None:
    store.charges.add(usage(cost_micros=0), **RUN)
    assert store.charges.total().cost_micros == 0


def test_total_of_an_empty_scope_has_no_cost(store: Corral) -> None:
    total = store.charges.total("run:run_9")
    assert (total.charges, total.tokens, total.cost_micros) == (0, 0, None)


def test_repeated_report_is_charged_once(store: Corral) -> None:
    assert store.charges.add(usage(key="line 7"), **RUN) is not None
    with unchanged(store):
        assert store.charges.add(usage(key="line 7"), **RUN) is None
    other_run = RUN | {"run_id": "run_2"}
    assert store.charges.add(usage(key="line 7"), **other_run) is not None
    assert store.charges.total().charges == 2


def test_without_a_run_keys_are_unique_within_the_session(store: Corral) -> None:
    context = {"session_id": "ses_1"}
    assert store.charges.add(usage(key="k"), **context) is not None
    assert store.charges.add(usage(key="k"), **context) is None
    assert store.charges.add(usage(key="k"), session_id="ses_2") is not None
    assert store.charges.add(usage(key="k")) is not None
    assert store.charges.add(usage(key="k")) is None


def test_empty_report_adds_no_charge(store: Corral) -> None:
    with unchanged(store):
        assert store.charges.add(UsageFact(model="gpt-5"), **RUN) is None
        assert store.charges.add(UsageFact(model=None, cost_micros=0), **RUN) is None


def test_cumulative_report_is_charged_by_its_delta(store: Corral) -> None:
    def report(input: int, output: int, run: str = "run_1") -> Any:
        return store.charges.add(
            usage(input=input, output=output, counter="codex:thread"), **RUN | {"run_id": run}
        )

    assert report(100, 10).input == 100
    second_charge = report(150, 10)
    assert (second_charge.input, second_charge.output) == (50, 0)
    # The thread continues in another run, and so does its counter.
    resumed_charge = report(160, 30, run="run_2")
    assert (resumed_charge.input, resumed_charge.output) == (10, 20)
    with unchanged(store):
        total = store.charges.total()
    assert report(160, 30, run="run_2") is None
    assert store.charges.total() == total
    assert (total.input, total.output) == (160, 30)


def test_counter_that_decreases_was_reset(store: Corral) -> None:
    for input in (100, 40, 60):
        store.charges.add(usage(input=input, output=0, counter="c"), **RUN)
    assert store.charges.total().input == 100 + 40 + 20


def test_cost_counter_does_not_affect_tokens(store: Corral) -> None:
    costs = [1_000, 2_500, 400, 900]  # the third report comes from a new process
    charged = [
        store.charges.add(usage(cost_micros=cost, counter="cost:claude:1"), **RUN) for cost in costs
    ]
    assert [charge.cost_micros for charge in charged if charge] == [1_000, 1_500, 400, 500]
    total = store.charges.total()
    assert (total.input, total.cost_micros) == (40, 3_400)


def test_cost_after_an_unknown_cost_has_no_delta(store: Corral) -> None:
    reports = [(100, 5), (200, None), (300, 20), (400, 26)]
    charged = [
        store.charges.add(usage(input=tokens, output=0, cost_micros=cost, counter="c"), **RUN)
        for tokens, cost in reports
    ]
    assert [charge.cost_micros for charge in charged if charge] == [5, None, None, 6]


def test_repeated_cumulative_report_does_not_reset_the_counter(
    store: Corral,
) -> None:
    for _ in range(2):
        for line, input in (("1", 100), ("2", 150)):
            store.charges.add(usage(input=input, output=0, counter="c", key=line), **RUN)
    assert store.charges.total().input == 150


def test_totals_are_stored_per_utc_day(store: Corral, clock: ManualClock) -> None:
    clock.at = clock.now() // DAY * DAY + DAY - 1
    store.charges.add(usage(cost_micros=1), **RUN)
    yesterday = utc_date(clock.now())
    clock.advance(1)
    store.charges.add(usage(cost_micros=2), **RUN)
    today = utc_date(clock.now())
    assert yesterday < today
    for scope in ("all", "project:prj_1", "agent:agt_1", "model:gpt-5"):
        assert store.charges.total(scope, day=yesterday).cost_micros == 1
        assert store.charges.total(scope, day=today).cost_micros == 2
        assert store.charges.total(scope).cost_micros == 3
        assert [total.day for total in walk(store.charges.days, limit=1, scope=scope)] == [
            today,
            yesterday,
        ]


def test_past_charge_counts_on_its_day(store: Corral, clock: ManualClock) -> None:
    at = clock.now() - 40 * DAY
    store.charges.add(usage(cost_micros=9), **RUN, at=at)
    assert store.charges.total(day=utc_date(at)).cost_micros == 9
    assert store.charges.total(day=utc_date(clock.now())).charges == 0


INVALID_REPORTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "negative tokens": ({"input": -1}, {}),
    "tokens beyond the integer range": ({"output": 1 << 62}, {}),
    "fractional tokens": ({"reasoning": 1.5}, {}),
    "a negative cost": ({"cost_micros": -1}, {}),
    "a cost of ten million dollars": ({"cost_micros": 10**13}, {}),
    "a fractional cost": ({"cost_micros": 0.5}, {}),
    "a model with a NUL byte": ({"model": "a\0b"}, {}),
    "a model name that is too long": ({"model": "x" * 1_000}, {}),
    "a key that is too long": ({"key": "x" * 1_000}, {}),
    "an empty counter name": ({"counter": ""}, {}),
    "a time in the future": ({}, {"at": 1_900_000_000_000}),
    "a time before 1970": ({}, {"at": -1}),
}


@each_case("case", INVALID_REPORTS)
def test_invalid_report_is_rejected_and_changes_nothing(store: Corral, case: str) -> None:
    figures, arguments = INVALID_REPORTS[case]
    with raises_without_change(store, Invalid):
        store.charges.add(usage(**figures), **RUN | arguments)


def test_later_price_is_added_to_the_totals_once(store: Corral) -> None:
    charge = store.charges.add(usage(), **RUN)
    priced = store.charges.add(usage(cost_micros=5), **RUN)
    assert charge is not None
    assert priced is not None
    prices = [ChargePrice(charge.id, 100, "v1"), ChargePrice(priced.id, 900, "v1")]
    (changed,) = store.internal.charges.set_prices(prices)
    assert (changed.cost_micros, changed.source, changed.prices_version) == (
        100,
        CostSource.PRICES,
        "v1",
    )
    with unchanged(store):
        assert store.internal.charges.set_prices(prices) == []
    for scope in ("all", "run:run_1", "session:ses_1", "model:gpt-5"):
        total = store.charges.total(scope)
        assert (total.charges, total.unpriced, total.cost_micros) == (2, 0, 105)
        assert total.input == 20
    check_store(store)


def test_unknown_model_is_tried_once_per_price_table(store: Corral) -> None:
    charge = store.charges.add(usage(model="unknown-model"), **RUN)
    assert charge is not None
    assert [listed.id for listed in store.internal.charges.unpriced().items] == [charge.id]
    store.internal.charges.set_prices([ChargePrice(charge.id, None, "v1")])
    assert store.internal.charges.unpriced().items == []
    assert store.internal.charges.unpriced(version="v1").items == []
    assert [listed.id for listed in store.internal.charges.unpriced(version="v2").items] == [
        charge.id
    ]
    assert store.charges.total().unpriced == 1


def test_missing_costs_are_computed_from_the_price_table(store: Corral) -> None:
    at = 1_790_000_000_000
    store.charges.add(usage(input=1_000, output=500, cache_read=200), **RUN, at=at)
    store.charges.add(usage(model="unknown-model"), **RUN)
    store.charges.add(usage(model=None), **RUN)
    assert store.charges.price_unpriced() == 1
    # gpt-5 costs 1.25 dollars per million input tokens, 0.125 cached and 10 for output.
    total = store.charges.total()
    assert (total.cost_micros, total.unpriced) == (1_250 + 25 + 5_000, 2)
    assert store.charges.price_unpriced() == 0
    assert store.charges.price_unpriced(retry=True) == 0
    assert store.charges.total() == total
    check_store(store)


def test_charges_are_listed_newest_first_in_pages(store: Corral) -> None:
    for n in range(5):
        context = {"run_id": f"run_{n % 2}", "session_id": "ses_1", "project_id": f"prj_{n % 2}"}
        store.charges.add(usage(input=n), **context)
    assert [charge.input for charge in walk(store.charges.list)] == [4, 3, 2, 1, 0]
    assert [charge.input for charge in walk(store.charges.list, run="run_0", limit=1)] == [4, 2, 0]
    assert [charge.input for charge in walk(store.charges.list, project="prj_1", limit=1)] == [3, 1]
    assert len(walk(store.charges.list, session="ses_1")) == 5
    with pytest.raises(Invalid):
        store.charges.list(run="run_1", project="prj_1")


def test_missing_charge_raises_not_found(store: Corral) -> None:
    with pytest.raises(NotFound):
        store.charges.get("chg_9")
    for scope in ("", "everything", "run:", "unknown:1"):
        with pytest.raises(Invalid):
            store.charges.total(scope)


def test_retention_deletes_charges_and_keeps_totals(store: Corral, clock: ManualClock) -> None:
    store.settings.set("charges.retention_ms", DAY)
    store.charges.add(usage(cost_micros=3, counter="c"), **RUN)
    clock.advance(2 * DAY)
    store.charges.add(usage(cost_micros=4), **RUN)
    clock.advance(HOUR)
    counts = {result.table: result.rows for result in store.db.prune(dry_run=True)}
    assert counts["charges"] == 1
    assert {result.table: result.rows for result in store.db.prune()} == counts
    assert len(store.charges.list().items) == 1
    assert store.charges.total().cost_micros == 7
    check_store(store)


def test_counter_outlives_its_charges(store: Corral, clock: ManualClock) -> None:
    store.settings.set("charges.retention_ms", DAY)
    store.charges.add(usage(cost_micros=3, counter="c"), **RUN)
    clock.advance(2 * DAY)
    store.db.prune()
    store.charges.add(usage(cost_micros=5, counter="c"), **RUN)
    assert store.charges.total().cost_micros == 5, "the delta of 2 is added to 3"
    clock.advance(store.settings.get("usage_totals.retention_ms").value + HOUR)
    counts = {result.table: result.rows for result in store.db.prune(dry_run=True)}
    assert counts["usage_counters"] == 1
    assert {result.table: result.rows for result in store.db.prune()} == counts
    assert rows(store, "SELECT name FROM usage_counters") == []
