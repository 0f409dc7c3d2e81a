"""Amounts of money as integer micro-dollars, parsed and formatted without rounding errors."""

from decimal import ROUND_HALF_UP, Decimal, DecimalException

from corral.kernel.errors import Invalid
from corral.kernel.validation import check_int

MICROS_PER_USD = 1_000_000

# One million dollars: above any realistic charge or budget, and sums of millions still fit.
MAX_MICROS = 1_000_000 * MICROS_PER_USD


def parse_usd(text: str) -> int:
    """Parse `5`, `0.25` or `$12.50` into micro-dollars; raises Invalid below one micro-dollar."""
    try:
        micros = Decimal(text.strip().removeprefix("$")) * MICROS_PER_USD
        # Decimal would round a longer text.
        is_exact = len(text) <= 20 and 0 <= micros <= MAX_MICROS and micros == int(micros)
    except DecimalException:
        is_exact = False
    if not is_exact:
        raise Invalid(
            f"Invalid amount {text!r}: expected US dollars from 0 to 1,000,000, such as 5 or 0.25.",
            value=text,
        )
    return int(micros)


def format_usd(micros: int | None) -> str:
    """Format an amount as `$12.50`; small amounts keep all their digits, None becomes `-`."""
    if micros is None:
        return "-"
    if micros % 10_000 == 0 or abs(micros) >= MICROS_PER_USD:
        cents = (Decimal(micros) / MICROS_PER_USD).quantize(Decimal("0.01"), ROUND_HALF_UP)
        return f"${cents:,}"
    return f"${Decimal(micros) / MICROS_PER_USD:.6f}".rstrip("0")


def check_micros(value: int, field: str) -> int:
    """Return `value`, or raise Invalid if it is not an amount of micro-dollars."""
    if not 0 <= check_int(value, field) <= MAX_MICROS:
        raise Invalid(
            f"{field} must be from 0 to {MAX_MICROS} micro-dollars, not {value}.",
            field=field,
            value=value,
        )
    return value
