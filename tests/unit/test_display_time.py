"""Ages of times as people read them."""

from corral.kernel.display_time import format_age
from tests.support.grouped_cases import each_case

MINUTE = 60_000


@each_case(
    ("distance_ms", "text"),
    [
        (0, "now"),
        (999, "now"),
        (1_000, "1s ago"),
        (60 * MINUTE - 1, "59m ago"),
        (100 * MINUTE, "1h ago"),
        (24 * 60 * MINUTE - 1, "23h ago"),
        (48 * 60 * MINUTE, "2d ago"),
        (-100 * MINUTE, "in 1h"),
    ],
)
def test_age_is_rounded_down_to_its_largest_unit(distance_ms: int, text: str) -> None:
    assert format_age(1_000_000_000, 1_000_000_000 + distance_ms) == text


def test_age_with_a_space_before_the_unit() -> None:
    assert format_age(0, 5 * MINUTE, space=" ") == "5 m ago"
