"""Singular and plural of counts in messages."""

from corral.cli.render import format_count
from tests.support.grouped_cases import each_case


@each_case(
    ("number", "noun", "text"),
    [
        (0, "agents", "0 agents"),
        (1, "agents", "1 agent"),
        (2, "agents", "2 agents"),
        (1, "touches", "1 touch"),
        (1, "charges", "1 charge"),
        (1, "log_lines", "1 log line"),
        (1_000, "log_lines", "1,000 log lines"),
        (1, "session_state", "1 session state"),
    ],
)
def test_count_of_one_uses_the_singular(number: int, noun: str, text: str) -> None:
    assert format_count(number, noun) == text
