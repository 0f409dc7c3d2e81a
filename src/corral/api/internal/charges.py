"""Operations of `store.internal.charges`."""

from corral.api.operation import Resource, read, write
from corral.domain.charges import budgets, ops


class InternalCharges(Resource):
    """Prices and budgets of runs: for supervisors and the price table."""

    noun = "charge"

    unpriced = read(ops.list_unpriced, mode="one")
    set_prices = write(ops.set_prices, durable=True, repeatable=True)
    reserve = write(budgets.reserve_budget, durable=True, repeatable=True)
    release = write(budgets.release_budget, durable=True, repeatable=True)
    exceeded_budget = read(budgets.find_exceeded_budget, mode="one")
