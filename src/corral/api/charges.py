"""Operations of `store.charges` and `store.budgets`."""

from corral.adapters.providers.facts import UsageFact
from corral.api.operation import Resource, operation, read, write
from corral.domain.charges import budgets, ops
from corral.domain.charges.model import Charge


class Charges(Resource):
    """Charges: tokens and money that agents used, and their totals."""

    noun = "charge"
    subjects = ("id",)

    _add = write(ops.add, durable=True)
    _add_again = write(ops.add, durable=True, repeatable=True)
    get = read(ops.get, mode="one")
    list = read(ops.list_charges, mode="one")
    total = read(ops.get_total, mode="one")
    days = read(ops.list_daily_totals, mode="one")

    @operation(in_run="charge_own_run")
    def add(
        self,
        report: UsageFact,
        *,
        run_id: str | None = None,
        session_id: str | None = None,
        project_id: str | None = None,
        agent_id: str | None = None,
        provider: str | None = None,
        at: int | None = None,
    ) -> Charge | None:
        """Record usage that a provider reported; returns None when the report has nothing new.

        Idempotent by the report's key. With a counter, the figures are totals, and only the
        increase since the last report is charged; a counter named `cost:…` applies to the cost
        alone.
        """
        add = self._add_again if report.key else self._add
        return add(
            report,
            run_id=run_id,
            session_id=session_id,
            project_id=project_id,
            agent_id=agent_id,
            provider=provider,
            at=at,
        )

    @operation(slow=True)
    def price_unpriced(self, *, retry: bool = False, in_subprocess: bool = False) -> int:
        """Compute the cost of charges whose provider did not report it; returns their number.

        Models that the price table does not contain stay without a cost. `retry` tries them again,
        for example after an upgrade of the table. With `in_subprocess`, a separate process loads
        the table, so that this process stays small. Idempotent.
        """
        from corral.services.charge_prices import price_charges

        return price_charges(self._database, retry=retry, in_subprocess=in_subprocess)


class Budgets(Resource):
    """Budgets: limits on what may be spent."""

    noun = "budget"

    set = write(budgets.set_budget, durable=True, repeatable=True, people_only=True)
    get = read(budgets.get_budget, subject="scope")
    list = read(budgets.list_budgets, mode="one")
    remove = write(budgets.remove_budget, durable=True, people_only=True)
