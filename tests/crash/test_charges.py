"""Crashes of charge operations: every charge is in every total exactly once."""

from pathlib import Path

from corral.adapters.providers.facts import UsageFact
from corral.api import Corral
from corral.kernel.errors import Refused
from tests.crash.harness import FreshUrl, Scenario, World, crash_at_every_commit

RUN = {"run_id": "run_1", "project_id": "prj_1"}
COSTS = [30, 20, 10]


def prepare(store: Corral, world: World) -> None:
    store.budgets.set("project:prj_1", 100)


def charge_all(store: Corral, world: World) -> None:
    """Reserve a budget, record the agent's usage, and release the budget, like a supervisor."""
    store.internal.charges.reserve("run_1", project_id="prj_1", budget_micros=60)
    spent = 0
    for number, cost in enumerate(COSTS):
        spent += cost
        report = UsageFact(
            model="m",
            output=number + 1,
            cost_micros=spent,
            counter="cost:1",
            key=f"line {number}",
        )
        store.charges.add(report, **RUN)
        world.record(f"charged {spent}")
    assert store.internal.charges.exceeded_budget("run_1", project_id="prj_1") is not None
    store.internal.charges.release("run_1")
    world.record("released")


def test_stream_read_again_after_a_crash_charges_each_report_once(
    fresh_url: FreshUrl, tmp_path: Path
) -> None:
    def check(store: Corral, world: World) -> None:
        total = store.charges.total("run:run_1")
        assert (total.charges, total.cost_micros, total.output) == (3, 60, 6)
        budget = store.budgets.get("project:prj_1")
        assert (budget.spent_micros, budget.reserved_micros) == (60, 0)
        assert [budget.scope for budget in store.budgets.list().items] == ["project:prj_1"]

    crash_at_every_commit(
        fresh_url, tmp_path, Scenario(charge_all, prepare=prepare, recover=charge_all, check=check)
    )


def test_acknowledged_charge_is_durable(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def check(store: Corral, world: World) -> None:
        charged = [
            int(record.split()[1]) for record in world.records if record.startswith("charged")
        ]
        assert (store.charges.total().cost_micros or 0) >= (charged[-1] if charged else 0)

    def release(store: Corral, world: World) -> None:
        store.internal.charges.release("run_1")

    crash_at_every_commit(
        fresh_url, tmp_path, Scenario(charge_all, prepare=prepare, recover=release, check=check)
    )


def test_reservation_of_a_dead_run_lasts_until_its_release(
    fresh_url: FreshUrl, tmp_path: Path
) -> None:
    def reserve(store: Corral, world: World) -> None:
        store.internal.charges.reserve("run_1", project_id="prj_1", budget_micros=80)
        world.record("reserved")

    def reserve_another(store: Corral, world: World) -> None:
        try:
            store.internal.charges.reserve("run_2", project_id="prj_1", budget_micros=80)
        except Refused:
            assert store.internal.charges.release("run_1")
            store.internal.charges.reserve("run_2", project_id="prj_1", budget_micros=80)
        else:
            assert world.records == []

    def check(store: Corral, world: World) -> None:
        assert store.budgets.get("project:prj_1").left_micros == 20

    crash_at_every_commit(
        fresh_url,
        tmp_path,
        Scenario(reserve, prepare=prepare, recover=reserve_another, check=check),
    )


def test_alert_is_raised_once_after_a_crash(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def add_alerts(store: Corral, world: World) -> None:
        store.alerts.add(["budget"], target_kind="command", target="true")
        store.alerts.add(["budget"], target_kind="mailbox", target="agent:ada")

    def raise_alert(store: Corral, world: World) -> None:
        store.internal.alerts.raise_alert("budget", "run_1", edge=1)

    def check(store: Corral, world: World) -> None:
        assert len(store.mail.list().items) == 2

    crash_at_every_commit(
        fresh_url,
        tmp_path,
        Scenario(raise_alert, prepare=add_alerts, recover=raise_alert, check=check),
    )
