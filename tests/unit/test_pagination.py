"""Pages and their cursors."""

import binascii
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.kernel.errors import Invalid
from corral.kernel.pagination import MAX_LIMIT, check_limit, decode_cursor, encode_cursor, make_page
from tests.support.grouped_cases import each_case

SMALL = st.integers(-(2**62), 2**62)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=50)


@given(TEXT, SMALL)
def test_cursor_round_trips_its_key(text: str, number: int) -> None:
    assert decode_cursor(encode_cursor(text, number), "", 0) == [text, number]


@given(TEXT)
def test_cursor_needs_no_quoting_in_a_shell_or_a_url_path(text: str) -> None:
    cursor = encode_cursor(text, 1)
    assert cursor.isascii()
    assert not {*cursor} & {*" \n=&?#%'\"$"}


def test_list_without_a_cursor_starts_at_its_first_row() -> None:
    assert decode_cursor(None, "", 0) == ["", 0]


@each_case(
    "cursor",
    [
        "",
        "=",
        "!!!!",
        "☃",
        "\ud800",
        "AAAA",
        encode_cursor("a"),
        encode_cursor(1),
        encode_cursor(1, "a"),
        encode_cursor("a", 1, 1),
        encode_cursor("a", "1"),
    ],
    ids=ascii,
)
def test_damaged_or_foreign_cursor_is_rejected(cursor: str) -> None:
    with pytest.raises(Invalid) as caught:
        decode_cursor(cursor, "", 0)
    assert "value" in caught.value.details


@each_case("key", [["a", True], ["a", None], ["a", 1.5], ["a", [1]], {"a": 1}, "a", 1, None])
def test_cursor_with_other_content_is_rejected(key: object) -> None:
    cursor = binascii.b2a_base64(json.dumps(key).encode(), newline=False).decode()
    with pytest.raises(Invalid):
        decode_cursor(cursor, "", 0)


@each_case("key", [["a", 2**63], ["a", -(2**63) - 1], ["a\0", 1], ["\ud800", 1]])
def test_cursor_that_no_engine_can_compare_is_rejected(key: list[object]) -> None:
    cursor = binascii.b2a_base64(json.dumps(key).encode(), newline=False).decode()
    with pytest.raises(Invalid):
        decode_cursor(cursor, "", 0)


@given(st.text(max_size=30))
def test_any_text_is_either_a_cursor_or_rejected(text: str) -> None:
    try:
        key = decode_cursor(text, "", 0)
    except Invalid:
        return
    assert [type(part) for part in key] == [str, int]


@each_case(("count", "more"), [(0, False), (2, False), (3, True)])
def test_page_has_a_next_cursor_only_if_more_rows_exist(count: int, more: bool) -> None:
    page = make_page(list(range(count)), 2, lambda row: (row,))
    assert page.items == list(range(count))[:2]
    assert (page.next is not None) is more
    if page.next:
        assert decode_cursor(page.next, 0) == [1], "the key of the last row shown"


@each_case("limit", [1, 50, MAX_LIMIT])
def test_limit_within_bounds_is_accepted(limit: int) -> None:
    assert check_limit(limit) == limit


@each_case("limit", [0, -1, MAX_LIMIT + 1])
def test_limit_out_of_bounds_is_rejected(limit: int) -> None:
    with pytest.raises(Invalid):
        check_limit(limit)
