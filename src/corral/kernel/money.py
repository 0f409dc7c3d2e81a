"""Money: whole millionths of a dollar, read and written without any rounding in between."""

from decimal import ROUND_HALF_UP, Decimal, DecimalException

from corral.kernel.errors import Invalid
from corral.kernel.text import check_int

MICROS = 1_000_000

# A million dollars: more than one report or budget means, and sums of millions of them still fit.
MOST = 1_000_000 * MICROS


def parse_usd(text: str) -> int:
    """Micro-dollars in `5`, `0.25` or `$12.50`; what is finer than a micro-dollar is refused."""
    try:
        micros = Decimal(text.strip().removeprefix("$")) * MICROS
        # Longer texts would be rounded on the way.
        exact = len(text) <= 20 and 0 <= micros <= MOST and micros == int(micros)
    except DecimalException:
        exact = False
    if not exact:
        raise Invalid(
            f"{text!r} is no amount; write US dollars from 0 to 1,000,000, as in 5 or 0.25.",
            value=text,
        )
    return int(micros)


def format_usd(micros: int | None) -> str:
    """`$12.50`; small amounts keep as many places as they have, and an unknown one is `-`."""
    if micros is None:
        return "-"
    if micros % 10_000 == 0 or abs(micros) >= MICROS:
        cents = (Decimal(micros) / MICROS).quantize(Decimal("0.01"), ROUND_HALF_UP)
        return f"${cents:,}"
    return f"${Decimal(micros) / MICROS:.6f}".rstrip("0")


def check_micros(value: int, what: str) -> int:
    """`value` itself, or Invalid when it is no amount of micro-dollars."""
    if not 0 <= check_int(value, what) <= MOST:
        raise Invalid(
            f"{what} goes from 0 to {MOST} micro-dollars, not {value}.", field=what, value=value
        )
    return value
