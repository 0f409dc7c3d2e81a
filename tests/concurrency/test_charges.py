"""Concurrent charges and reservations: totals are exact, and budgets are not exceeded."""

import threading
from functools import partial

import corral
from corral.adapters.providers.facts import UsageFact
from corral.api import Corral
from corral.domain.charges.model import ChargePrice
from corral.kernel.errors import Refused
from tests.support.invariants import check_store
from tests.support.processes import run_concurrently
from tests.support.threads import race

THREADS = 16
CHARGES = 12


def test_totals_are_exact_with_sixteen_threads(store: Corral) -> None:
    def add(thread: int) -> None:
        for n in range(CHARGES):
            store.charges.add(
                UsageFact(model=f"m{n % 3}", input=1, output=thread, cost_micros=n),
                run_id=f"run_{thread}",
                session_id=f"ses_{thread % 2}",
                project_id=f"prj_{(thread + n) % 3}",
                agent_id=f"agn_{n % 2}",
            )

    for racer in race([partial(add, thread) for thread in range(THREADS)]):
        racer.result()
    total = store.charges.total()
    assert (total.charges, total.input) == (THREADS * CHARGES, THREADS * CHARGES)
    assert total.cost_micros == THREADS * sum(range(CHARGES))
    assert store.charges.total("run:run_7").charges == CHARGES
    check_store(store)


def test_concurrent_processes_lose_no_charge(url: str) -> None:
    def add() -> int:
        with corral.open(url) as store:
            charged = [
                store.charges.add(UsageFact(model="m", output=1, cost_micros=2), project_id="prj_1")
                for _ in range(25)
            ]
            return len(charged)

    run_concurrently([add] * 3)
    with corral.open(url) as store:
        assert store.charges.total("project:prj_1").cost_micros == 150
        check_store(store)


def test_report_read_concurrently_is_charged_once(store: Corral) -> None:
    for n in range(10):
        report = UsageFact(model="m", input=3, key=f"line {n}")
        counted = UsageFact(model="m", input=(n + 1) * 5, counter="c", key=f"count {n}")
        racers = race(
            [partial(store.charges.add, report, run_id="run_1")] * 4
            + [partial(store.charges.add, counted, run_id="run_1")] * 4
        )
        assert len([1 for racer in racers if racer.result() is not None]) == 2
    assert store.charges.total().input == 10 * 3 + 10 * 5
    check_store(store)


def test_concurrent_readers_of_a_counter_charge_it_exactly(store: Corral) -> None:
    figures = iter(range(10, 510, 10))
    lock = threading.Lock()

    def report() -> None:
        for _ in range(10):
            with lock:  # the figures are reported in order, like by one stream
                store.charges.add(
                    UsageFact(model="m", input=next(figures), counter="c"), run_id="run_1"
                )

    for racer in race([report] * 5):
        racer.result()
    assert store.charges.total().input == 500


def test_one_of_many_reserves_the_last_dollar(store: Corral) -> None:
    store.budgets.set("all", 100)
    for round in range(6):
        racers = race(
            [
                partial(store.internal.charges.reserve, f"run_{round}_{n}", budget_micros=60)
                for n in range(8)
            ]
        )
        won = [n for n, racer in enumerate(racers) if racer.error is None]
        assert len(won) == 1
        assert {type(racer.error) for racer in racers if racer.error} == {Refused}
        assert store.internal.charges.release(f"run_{round}_{won[0]}")
    check_store(store)


def test_concurrent_processes_never_exceed_the_budget(url: str) -> None:
    with corral.open(url) as store:
        store.budgets.set("project:prj_1", 10)

    def reserve() -> int:
        won = 0
        with corral.open(url) as store:
            for n in range(8):
                try:
                    store.internal.charges.reserve(
                        f"run_{threading.get_native_id()}_{n}", project_id="prj_1", budget_micros=1
                    )
                    won += 1
                except Refused:
                    pass
        return won

    assert sum(run_concurrently([reserve] * 3)) == 10
    with corral.open(url) as store:
        assert store.budgets.get("project:prj_1").left_micros == 0


def test_prices_set_while_charges_are_added_count_once(store: Corral) -> None:
    ids = []
    for _ in range(20):
        charge = store.charges.add(UsageFact(model="m", input=1), run_id="run_1")
        assert charge is not None
        ids.append(charge.id)

    def add() -> int:
        for _ in range(20):
            store.charges.add(UsageFact(model="m", input=1, cost_micros=1), run_id="run_2")
        return 0

    def price(order: int) -> int:
        prices = [ChargePrice(id, 10, "v1") for id in ids[::order]]
        return sum(
            len(store.internal.charges.set_prices(prices[n : n + 5])) for n in range(0, 20, 5)
        )

    racers = race([add, partial(price, 1), partial(price, -1), add])
    assert sum(racer.result() for racer in racers) == 20
    total = store.charges.total()
    assert (total.cost_micros, total.unpriced) == (20 * 10 + 40, 0)
    check_store(store)
