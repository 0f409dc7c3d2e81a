"""Token pricing: the cost of tokens from a bundled price table, without network access.

`calculate_price` prices one usage. `python -m corral.adapters.token_prices` prices many, one
JSON object per line in and out, for processes that must stay small: the table takes 40 MB of
memory.

    {"model": "gpt-5", "provider": "codex", "input": 1000, "output": 500, "at": 1800000000000}
    {"cost_micros": 6250, "version": "genai-prices 0.2.1"}

Prices are computed with decimals and rounded once, half up, to the micro-dollar. Some models
charge more for a long single request. A usage report sums many requests, so their lengths are
unknown and the base price is used.
"""

import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal
from typing import IO, Any

import msgspec

from corral.kernel.clock import SystemClock
from corral.kernel.errors import Refused
from corral.kernel.money import MAX_MICROS, MICROS_PER_USD

ANSWER_SECONDS = 30.0

# The model vendor of agent CLIs that use only one.
VENDORS = {"claude": "anthropic", "codex": "openai", "gemini": "google"}


class PricedTokens(msgspec.Struct, frozen=True):
    """Token counts: input without cached tokens, output including reasoning."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0


class PriceQuery(PricedTokens, frozen=True):
    """A request to price the tokens of a model."""

    model: str = ""
    provider: str | None = None
    at: int | None = None


class PriceQuote(msgspec.Struct, frozen=True):
    """The price; `cost_micros` is None when it is unknown."""

    cost_micros: int | None
    version: str
    error: str | None = None


MILLION = 1_000_000


class ModelRates(msgspec.Struct, frozen=True):
    """The price of a million tokens of a model, in micro-dollars."""

    input: int
    output: int
    cache_read: int
    cache_write: int
    version: str

    def cost(self, used: Any) -> int:
        """Return the price of the usage, rounded half up; equal to `calculate_price`."""
        total: int = (
            self.input * used.input
            + self.output * used.output
            + self.cache_read * used.cache_read
            + self.cache_write * used.cache_write
        )
        return min((total + MILLION // 2) // MILLION, MAX_MICROS)


def fetch_rates(model: str, provider: str | None) -> ModelRates | None:
    """Look up the rates of a model in a separate process.

    None: the price table does not list the model. Raises Refused when the process does not
    answer.
    """
    kinds = ("input", "output", "cache_read", "cache_write")
    quotes = query_prices(
        [PriceQuery(model=model, provider=provider, **{kind: MILLION}) for kind in kinds]
    )
    costs = [quote.cost_micros for quote in quotes]
    if any(cost is None for cost in costs):
        return None
    input_cost, output_cost, cache_read, cache_write = (cost or 0 for cost in costs)
    return ModelRates(input_cost, output_cost, cache_read, cache_write, quotes[0].version)


def price_table_version() -> str:
    """Return the name and version of the price table, which is stored with every price."""
    from importlib import metadata

    return f"genai-prices {metadata.version('genai-prices')}"


def calculate_price(
    model: str, provider: str | None, usage: PricedTokens, at: int
) -> tuple[int, str] | None:
    """Return the price in micro-dollars and the table version.

    None: the table does not list the model. `at` is the time of use: prices change.
    """
    from genai_prices import types

    entry = _find_model(model, provider)
    if entry is None:
        return None
    prices = entry.get_prices(datetime.fromtimestamp(at / 1_000, UTC))
    base_prices = {
        name: amount.base if isinstance(amount, types.TieredPrices) else amount
        for name, amount in vars(prices).items()
        if not name.startswith("_")
    }
    tokens = types.Usage(
        input_tokens=usage.input + usage.cache_read + usage.cache_write,
        output_tokens=usage.output,
        cache_read_tokens=usage.cache_read,
        cache_write_tokens=usage.cache_write,
    )
    dollars = types.ModelPrice(**base_prices).calc_price(tokens)["total_price"]
    micros = int((Decimal(dollars) * MICROS_PER_USD).quantize(Decimal(1), ROUND_HALF_UP))
    return (micros, price_table_version()) if micros <= MAX_MICROS else None


def _find_model(model: str, provider: str | None) -> Any:
    """Find a model in the table: of the vendor of the agent CLI first, then of any vendor."""
    from genai_prices import data_snapshot

    table = data_snapshot.get_snapshot()
    vendor = VENDORS.get(provider or "")
    prefix, slash, name = model.partition("/")  # for example anthropic/claude-sonnet-4-5
    for vendor_id, ref in ((vendor, model), (None, model), (prefix if slash else None, name)):
        if not ref:
            continue
        try:
            return table.find_provider_model(ref, None, vendor_id, None)[1]
        except LookupError:
            continue
    return None


def answer_query(query: PriceQuery) -> PriceQuote:
    """Price a query; an invalid one yields a quote with `error`."""
    try:
        at = SystemClock().now() if query.at is None else query.at
        result = calculate_price(query.model, query.provider, query, at)
    except (ValueError, OverflowError, OSError) as error:
        return PriceQuote(None, price_table_version(), f"{type(error).__name__}: {error}")
    return PriceQuote(result[0] if result else None, price_table_version())


def query_prices(
    queries: Sequence[PriceQuery], *, seconds: float = ANSWER_SECONDS
) -> list[PriceQuote]:
    """Price queries in a short-lived process, so that this process does not load the table."""
    lines = b"".join(msgspec.json.encode(query) + b"\n" for query in queries)
    try:
        output = subprocess.run(
            [sys.executable, "-P", "-m", "corral.adapters.token_prices"],
            input=lines,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=seconds,
            check=True,
        ).stdout
        quotes = [msgspec.json.decode(line, type=PriceQuote) for line in output.splitlines()]
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
        raise Refused(
            f"The price lookup failed ({type(error).__name__}). Try "
            "`python -m corral.adapters.token_prices` by hand.",
            reason="no_answer",
        ) from None
    if len(quotes) != len(queries):
        raise Refused("The price lookup returned too few answers. Try again.")
    return quotes


def serve_queries(queries: IO[str], answers: IO[str]) -> None:
    """Answer queries line by line until the input ends."""
    for line in queries:
        try:
            quote = answer_query(msgspec.json.decode(line, type=PriceQuery))
        except msgspec.MsgspecError as error:
            quote = PriceQuote(None, price_table_version(), f"{type(error).__name__}: {error}")
        answers.write(msgspec.json.encode(quote).decode() + "\n")
        answers.flush()


if __name__ == "__main__":
    serve_queries(sys.stdin, sys.stdout)
