"""Prices of charges whose provider did not report the cost.

The prices per token come from `adapters/token_prices.py`; this module stores the computed costs.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from corral.adapters import token_prices
from corral.domain.charges import ops
from corral.domain.charges.model import Charge, ChargePrice
from corral.kernel.pagination import MAX_LIMIT

if TYPE_CHECKING:
    from corral.db.database import Database


def price_charges(database: "Database", *, retry: bool, in_subprocess: bool) -> int:
    """Compute missing costs from the price table; see `Charges.price_unpriced`."""
    priced, after = 0, None
    while True:
        version = token_prices.price_table_version() if retry else None
        page = database.read(
            partial(ops.list_unpriced, version=version, after=after, limit=MAX_LIMIT), mode="one"
        )
        if page.items:
            # Outside any transaction: loading the price table is slow.
            costs = _find_prices(page.items, in_subprocess)
            set_prices = partial(ops.set_prices, prices=costs)
            priced += len(database.write(set_prices, durable=True, repeatable=True))
        after = page.next
        if after is None:
            if not retry:
                return priced
            retry = False


def _find_prices(charges: Sequence[Charge], in_subprocess: bool) -> Sequence[ChargePrice]:
    questions = [
        token_prices.PriceQuery(
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
    answers = (
        token_prices.query_prices(questions)
        if in_subprocess
        else [token_prices.answer_query(question) for question in questions]
    )
    return [
        ChargePrice(charge.id, answer.cost_micros, answer.version)
        for charge, answer in zip(charges, answers, strict=True)
    ]
