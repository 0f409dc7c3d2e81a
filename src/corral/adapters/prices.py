"""What tokens cost, by a table of prices that is brought along and works without a network.

`price` answers one question. `python -m corral.adapters.prices` answers many, a JSON object a
line in and one a line out, for processes that must stay small: the table takes 40 MB.

    {"model": "gpt-5", "provider": "codex", "input": 1000, "output": 500, "at": 1800000000000}
    {"cost_micros": 6250, "version": "genai-prices 0.2.1"}

A price is worked out in decimals and rounded once, half up, to the micro-dollar. A report sums up
many requests, and some models cost more when a single request is long; what cannot be told from a
sum is not assumed, so the basic price is taken.
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

# Whose models an agent's program runs, where it is one company's.
COMPANIES = {"claude": "anthropic", "codex": "openai", "gemini": "google"}


class Usage(msgspec.Struct, frozen=True):
    """Tokens: input without what the cache gave, output with all reasoning."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0


class Question(Usage, frozen=True):
    model: str = ""
    provider: str | None = None
    at: int | None = None


class Answer(msgspec.Struct, frozen=True):
    cost_micros: int | None
    version: str
    error: str | None = None


MILLION = 1_000_000


class Rates(msgspec.Struct, frozen=True):
    """The price of a million tokens of a model, in micro-dollars."""

    input: int
    output: int
    cache_read: int
    cache_write: int
    version: str

    def cost(self, used: Any) -> int:
        """Return the price of the usage, rounded half up; equal to the price table's own result."""
        total: int = (
            self.input * used.input
            + self.output * used.output
            + self.cache_read * used.cache_read
            + self.cache_write * used.cache_write
        )
        return min((total + MILLION // 2) // MILLION, MAX_MICROS)


def rates(model: str, provider: str | None) -> Rates | None:
    """Look up the rates of a model in a separate process. None: the price table does not list the
    model. Raises Refused when the lookup process does not answer."""
    kinds = ("input", "output", "cache_read", "cache_write")
    answers = ask([Question(model=model, provider=provider, **{kind: MILLION}) for kind in kinds])
    costs = [answer.cost_micros for answer in answers]
    if any(cost is None for cost in costs):
        return None
    given, out, read, written = (cost or 0 for cost in costs)
    return Rates(given, out, read, written, answers[0].version)


def version() -> str:
    """The table's name and version, as it is kept with every price."""
    from importlib.metadata import version

    return f"genai-prices {version('genai-prices')}"


def price(model: str, provider: str | None, usage: Usage, at: int) -> tuple[int, str] | None:
    """Micro-dollars and the table's version; None when the table does not know the model.

    `at` is the moment of use: prices change.
    """
    from genai_prices import types

    found = _find(model, provider)
    if found is None:
        return None
    listed = found.get_prices(datetime.fromtimestamp(at / 1_000, UTC))
    plain = {
        name: amount.base if isinstance(amount, types.TieredPrices) else amount
        for name, amount in vars(listed).items()
        if not name.startswith("_")
    }
    counted = types.Usage(
        input_tokens=usage.input + usage.cache_read + usage.cache_write,
        output_tokens=usage.output,
        cache_read_tokens=usage.cache_read,
        cache_write_tokens=usage.cache_write,
    )
    dollars = types.ModelPrice(**plain).calc_price(counted)["total_price"]
    micros = int((Decimal(dollars) * MICROS_PER_USD).quantize(Decimal(1), ROUND_HALF_UP))
    return (micros, version()) if micros <= MAX_MICROS else None


def _find(model: str, provider: str | None) -> Any:
    """The model in the table: of the company whose program it is, else of any."""
    from genai_prices import data_snapshot

    table = data_snapshot.get_snapshot()
    company = COMPANIES.get(provider or "")
    maker, slash, name = model.partition("/")  # as in anthropic/claude-sonnet-4-5
    for company_id, ref in ((company, model), (None, model), (maker if slash else None, name)):
        if not ref:
            continue
        try:
            return table.find_provider_model(ref, None, company_id, None)[1]
        except LookupError:
            continue
    return None


def answer(question: Question) -> Answer:
    """What the table says; a question that makes no sense gets its error as the answer."""
    try:
        at = SystemClock().now() if question.at is None else question.at
        told = price(question.model, question.provider, question, at)
    except (ValueError, OverflowError, OSError) as error:
        return Answer(None, version(), f"{type(error).__name__}: {error}")
    return Answer(told[0] if told else None, version())


def ask(questions: Sequence[Question], *, seconds: float = ANSWER_SECONDS) -> list[Answer]:
    """The answers of a process of its own, which is gone afterwards: this one stays small."""
    lines = b"".join(msgspec.json.encode(question) + b"\n" for question in questions)
    try:
        told = subprocess.run(
            [sys.executable, "-P", "-m", "corral.adapters.prices"],
            input=lines,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=seconds,
            check=True,
        ).stdout
        answers = [msgspec.json.decode(line, type=Answer) for line in told.splitlines()]
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
        raise Refused(
            f"The table of prices did not answer ({type(error).__name__}); try "
            "`python -m corral.adapters.prices` by hand.",
            reason="no_answer",
        ) from None
    if len(answers) != len(questions):
        raise Refused("The table of prices did not answer every question; try again.")
    return answers


def serve(questions: IO[str], answers: IO[str]) -> None:
    """Answer line by line until the questions end."""
    for line in questions:
        try:
            told = answer(msgspec.json.decode(line, type=Question))
        except msgspec.MsgspecError as error:
            told = Answer(None, version(), f"{type(error).__name__}: {error}")
        answers.write(msgspec.json.encode(told).decode() + "\n")
        answers.flush()


if __name__ == "__main__":
    serve(sys.stdin, sys.stdout)
