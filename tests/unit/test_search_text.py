"""Search queries built from user text; chunks and snippets of texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.domain.search.text import (
    MAX_PASSAGE,
    SNIPPET_LENGTH,
    build_query,
    extract_text,
    fold_words,
    make_snippet,
    split_text,
)
from corral.kernel.errors import Invalid
from tests.support.grouped_cases import each_case


@each_case(
    ("text", "query"),
    [
        ("one two", '"one" "two"'),
        ("foo_bar.py", '"foo bar py"'),
        ('say "hello" OR -x*', '"say" "hello" "or" "x"'),
        ("NEAR(a, b)", '"near a" "b"'),
        ("Grüße 日本", '"grüße" "日本"'),
        ("E\u0301cole", '"école"'),
    ],
)
def test_every_word_is_quoted(text: str, query: str) -> None:
    assert build_query(text) == query


@each_case("text", ["", " ", "!!!", '""', "_", "- *", "\0", "a" * 2_000])
def test_query_without_a_word_is_rejected(text: str) -> None:
    with pytest.raises(Invalid):
        build_query(text)


def test_only_words_beyond_ascii_are_folded() -> None:
    assert fold_words("plain _text_") is None
    assert fold_words("“Ärger” — E\u0301COLE_x") == "ärger école x"


@given(st.text(alphabet=" \nabc", max_size=3 * MAX_PASSAGE))
def test_chunks_add_up_to_the_text_and_are_bounded(text: str) -> None:
    pieces = split_text(text)
    assert "".join(pieces) == text
    assert all(len(piece) <= MAX_PASSAGE for piece in pieces)


def test_long_text_is_split_between_words() -> None:
    text = "word " * MAX_PASSAGE
    assert all(piece.strip().split(" ")[0] == "word" for piece in split_text(text)[:-1])


def test_snippet_shows_the_searched_word() -> None:
    text = "x " * 500 + "the Needle lies here " + "y " * 500
    snippet = make_snippet(text, build_query("needle"))
    assert "Needle lies here" in snippet
    assert snippet.startswith("…")
    assert snippet.endswith("…")
    assert len(snippet) <= SNIPPET_LENGTH + 2
    assert make_snippet("short\ntext", build_query("text")) == "short text"


def test_texts_in_truncated_json_are_found() -> None:
    assert extract_text('{"a": ["b\\nc", 1, null]}') == "a b\nc 1 None"
    assert extract_text('{"a": ["b\\nc') == '{"a": ["b c'
