"""One-line summaries of letter bodies."""

from typing import Any

from corral.domain.mail.model import summarize_body
from tests.support.grouped_cases import each_case


@each_case(
    ("body", "words"),
    [
        ("plain words", "plain words"),
        ({"kind": "post", "group": "grp_1", "text": "hello"}, "post: hello"),
        ({"kind": "task", "what": "submitted", "title": "Build it"}, "task submitted: Build it"),
        (
            {"kind": "delegation_result", "state": "done", "result": "7"},
            "delegation result done: 7",
        ),
        ({"lock": "lck_1", "state": "held", "text": "It is yours."}, "It is yours."),
        ({"kind": "finished", "subject": "run_1", "data": {}}, "finished: run_1"),
    ],
)
def test_bodies_of_corral_are_summarized_in_one_line(body: Any, words: str) -> None:
    assert summarize_body(body) == words


@each_case(
    "body",
    [{"commit": "abc"}, [1, 2], None, 7, {"kind": 3, "title": "x"}, {"kind": "a", "text": 5}],
)
def test_other_bodies_are_returned_unchanged(body: Any) -> None:
    assert summarize_body(body) is body
