"""Money is whole micro-dollars, parsed and formatted."""

import pytest

from corral.kernel.errors import Invalid
from corral.kernel.money import check_micros, format_usd, parse_usd
from tests.support.grouped_cases import each_case


@each_case(
    ("text", "micros"),
    [
        ("5", 5_000_000),
        ("$12.50", 12_500_000),
        (" 0.1 ", 100_000),
        ("0.000001", 1),
        ("0", 0),
        ("1e2", 100_000_000),
        ("1000000", 10**12),
    ],
)
def test_dollars_are_parsed_exactly(text: str, micros: int) -> None:
    assert parse_usd(text) == micros


@each_case(
    "text",
    [
        "",
        "five",
        "-1",
        "0.0000001",
        "1000000.01",
        "nan",
        "inf",
        "1,5",
        "$",
        "1e999999",
        "0." + "0" * 40 + "1",
    ],
)
def test_invalid_amount_is_rejected(text: str) -> None:
    with pytest.raises(Invalid):
        parse_usd(text)


@each_case(
    ("micros", "text"),
    [
        (None, "-"),
        (0, "$0.00"),
        (1, "$0.000001"),
        (12_300, "$0.0123"),
        (250_000, "$0.25"),
        (12_345_678, "$12.35"),
        (1_234_000_000, "$1,234.00"),
    ],
)
def test_amount_is_formatted_for_people(micros: int | None, text: str) -> None:
    assert format_usd(micros) == text


@each_case("value", [-1, 10**12 + 1, True, 1.0, "1"])
def test_impossible_amount_is_rejected(value: int) -> None:
    with pytest.raises(Invalid):
        check_micros(value, "The cost")
