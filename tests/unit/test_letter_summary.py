"""One-line summaries of letters in a list."""

from typing import Any

from corral.domain.mail.model import summarize_body
from tests.support.grouped_cases import each_case


@each_case(
    ("body", "summary"),
    [
        ("plain words", "plain words"),
        ({"kind": "post", "group": "grp_1", "text": "hello"}, "post: hello"),
        ({"kind": "task", "event": "submitted", "title": "Build it"}, "task submitted: Build it"),
        (
            {"kind": "delegation_result", "state": "done", "result": "7"},
            "delegation result done: 7",
        ),
        ({"lock": "lck_1", "state": "held", "text": "It is yours."}, "It is yours."),
        ({"kind": "finished", "subject": "run_1", "data": {}}, "finished: run_1"),
    ],
)
def test_system_letters_are_summarised_in_one_line(body: Any, summary: str) -> None:
    assert summarize_body(body) == summary


@each_case(
    "body",
    [{"commit": "abc"}, [1, 2], None, 7, {"kind": 3, "title": "x"}, {"kind": "a", "text": 5}],
)
def test_other_bodies_are_returned_unchanged(body: Any) -> None:
    assert summarize_body(body) is body
