"""What may be stored: the same on both engines, and within bounds."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.kernel.errors import Invalid
from corral.kernel.text import MAX_BODY, MAX_TEXT, check_text, encode_json, encode_text, shorten
from tests.support.grouped_cases import each_case

STORABLE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=50)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | STORABLE,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(STORABLE, inner, max_size=4),
    max_leaves=12,
)


@each_case(
    ("text", "short"),
    [
        ("as it is", "as it is"),
        ("a few words too many", "a few words…"),
        ("anextraordinarilylongword", "anextraordinari…"),
        ("", ""),
    ],
)
def test_what_is_too_long_is_cut_between_words_and_says_so(text: str, short: str) -> None:
    assert shorten(text, 16) == short


@given(STORABLE.filter(bool))
def test_storable_text_is_given_back_as_it_is(text: str) -> None:
    assert check_text(text, "It") == text


@each_case(
    ("text", "reason"),
    [
        ("", "empty"),
        ("a\0b", "nul_byte"),
        ("\0", "nul_byte"),
        ("\ud800", "not_utf8"),
        ("a\udfff", "not_utf8"),
        ("\udc80\ud800", "not_utf8"),
    ],
    ids=ascii,
)
def test_text_that_no_engine_keeps_is_refused_with_its_name(text: str, reason: str) -> None:
    with pytest.raises(Invalid) as caught:
        check_text(text, "The prompt")
    assert caught.value.details == {"field": "The prompt", "reason": reason}


def test_a_whole_pair_of_surrogates_is_a_character_and_kept() -> None:
    assert check_text("🐎", "It") == "🐎"


def test_the_bound_is_in_bytes_and_not_in_characters() -> None:
    assert check_text("é" * 5, "It", max_bytes=10)
    with pytest.raises(Invalid) as caught:
        check_text("é" * 6, "It", max_bytes=10)
    assert (caught.value.details["size"], caught.value.details["limit"]) == (12, 10)


def test_text_of_ten_megabytes_is_refused_and_says_what_to_do() -> None:
    assert check_text("x" * MAX_TEXT, "It")
    with pytest.raises(Invalid) as caught:
        check_text("x" * 10_000_000, "It")
    assert caught.value.details["reason"] == "too_long"
    assert caught.value.details["size"] == 10_000_000


def test_bytes_of_text_or_a_sentence() -> None:
    assert encode_text("é", "It") == b"\xc3\xa9"
    with pytest.raises(Invalid):
        encode_text("\ud800", "It")


# -- JSON ------------------------------------------------------------------------------------


@given(JSON)
def test_every_value_comes_back_out_of_its_json(value: Any) -> None:
    assert msgspec.json.decode(encode_json(value, "It")) == value


@each_case("value", ["\0", ["\0"], {"\0": 1}, {"a": [{"b": "x\0"}]}, ("\0",)], ids=ascii)
def test_a_nul_is_found_however_deep_it_lies(value: Any) -> None:
    with pytest.raises(Invalid) as caught:
        encode_json(value, "The body")
    assert caught.value.details["reason"] == "nul_byte"


@each_case("value", ["\\u0000", ["\\u0000"], {"\\u0000": "\\\\u0000"}], ids=ascii)
def test_a_nul_spelled_out_is_six_plain_characters(value: Any) -> None:
    assert msgspec.json.decode(encode_json(value, "It")) == value


def test_a_nul_beside_one_spelled_out_is_still_found() -> None:
    with pytest.raises(Invalid):
        encode_json(["\\u0000", "\0"], "It")


class Shaped(msgspec.Struct):
    text: str


def test_a_nul_inside_a_record_is_found() -> None:
    with pytest.raises(Invalid):
        encode_json(Shaped("\0"), "It")
    assert encode_json(Shaped("\\u0000"), "It")


@each_case("value", ["\ud800", ["\udfff"], {"\ud800": 1}], ids=ascii)
def test_half_a_pair_of_surrogates_is_refused(value: Any) -> None:
    with pytest.raises(Invalid):
        encode_json(value, "It")


@each_case("value", [object(), {1: object()}, {(1, 2): 3}, [len]], ids=range(4))
def test_what_is_no_json_is_refused(value: Any) -> None:
    with pytest.raises(Invalid):
        encode_json(value, "It")


@each_case("value", [float("nan"), float("inf"), [float("-inf")]], ids=repr)
def test_a_number_that_json_does_not_have_is_refused_and_not_turned_into_null(value: Any) -> None:
    with pytest.raises(Invalid):
        encode_json(value, "It")


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(Invalid):
        encode_json(value, "It")


def test_json_is_bounded_in_bytes() -> None:
    assert encode_json("x" * (MAX_BODY - 2), "It")
    for value in ("x" * (MAX_BODY - 1), "é" * (MAX_BODY // 2), "x" * 10_000_000):
        with pytest.raises(Invalid) as caught:
            encode_json(value, "It")
        assert caught.value.details["reason"] == "too_long"


def test_a_bound_of_its_own_is_obeyed() -> None:
    assert encode_json("12345678", "It", max_bytes=10) == '"12345678"'
    with pytest.raises(Invalid):
        encode_json("123456789", "It", max_bytes=10)
