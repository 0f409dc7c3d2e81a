from collections.abc import Sequence

from corral.adapters.providers.facts import Used
from corral.api.operation import Room, read, write
from corral.domain.charges import ops
from corral.domain.charges.model import Charge, Price
from corral.kernel.pagination import MAX_LIMIT


class Charges(Room):
    """Tokens and money that agents use, and what they add up to."""

    noun = "charge"

    _add = write(ops.add, durable=True)
    _add_again = write(ops.add, durable=True, repeatable=True)
    get = read(ops.get, mode="one")
    list = read(ops.list_charges, mode="one")
    total = read(ops.total, mode="one")
    days = read(ops.days, mode="one")
    unpriced = read(ops.unpriced, mode="one")
    set_prices = write(ops.set_prices, durable=True, repeatable=True)
    reserve = write(ops.reserve, durable=True, repeatable=True)
    release = write(ops.release, durable=True, repeatable=True)
    over_budget = read(ops.over_budget, mode="one")

    def add(
        self,
        used: Used,
        *,
        run_id: str | None = None,
        session_id: str | None = None,
        project_id: str | None = None,
        agent_id: str | None = None,
        provider: str | None = None,
        at: int | None = None,
    ) -> Charge | None:
        """Charge what a provider reported; None when there is nothing new in it.

        A report with a key is charged once. With a counter its figures are totals, and only what
        was added since the last report is charged; a counter named `cost:…` counts the money
        alone.
        """
        # With a key, the second time finds what the first one charged.
        add = self._add_again if used.key else self._add
        return add(
            used,
            run_id=run_id,
            session_id=session_id,
            project_id=project_id,
            agent_id=agent_id,
            provider=provider,
            at=at,
        )

    def price_unknown(self, *, again: bool = False, apart: bool = False) -> int:
        """Work out what charges cost whose provider did not tell; gives back how many.

        Models that the table of prices does not know stay unknown, and are asked for `again` only
        when that is wished, after an upgrade of the table. With `apart`, a process of its own
        loads the table, so that this one stays small.
        """
        from corral.adapters import prices

        priced, after = 0, None
        while True:
            version = prices.version() if again else None
            page = self.unpriced(version=version, after=after, limit=MAX_LIMIT)
            if page.items:
                # Outside of any transaction: nobody waits for the table.
                priced += len(self.set_prices(_prices(page.items, apart)))
            after = page.next
            if after is None:
                if not again:
                    return priced
                again = False


def _prices(charges: Sequence[Charge], apart: bool) -> Sequence[Price]:
    from corral.adapters import prices

    questions = [
        prices.Question(
            charge.input,
            charge.output,
            charge.cache_read,
            charge.cache_write,
            model=charge.model or "",
            provider=charge.provider,
            at=charge.at,
        )
        for charge in charges
    ]
    answers = prices.ask(questions) if apart else [prices.answer(one) for one in questions]
    return [
        Price(charge.id, told.cost_micros, told.version)
        for charge, told in zip(charges, answers, strict=True)
    ]


class Budgets(Room):
    """What may be spent."""

    noun = "budget"

    set = write(ops.set_budget, durable=True, repeatable=True)
    get = read(ops.get_budget)
    list = read(ops.list_budgets, mode="one")
    remove = write(ops.remove_budget, durable=True)
