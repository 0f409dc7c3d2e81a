"""Storable text and JSON: the same rules and limits on both engines."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.kernel.display_text import shorten
from corral.kernel.errors import Invalid
from corral.kernel.validation import MAX_BODY, MAX_TEXT, check_text, encode_json, encode_text
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
def test_long_text_is_shortened_between_words_with_a_mark(text: str, short: str) -> None:
    assert shorten(text, 16) == short


@given(STORABLE.filter(bool))
def test_storable_text_is_returned_unchanged(text: str) -> None:
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
def test_unstorable_text_is_rejected_with_its_name(text: str, reason: str) -> None:
    with pytest.raises(Invalid) as caught:
        check_text(text, "The prompt")
    assert caught.value.details == {"field": "The prompt", "reason": reason}


def test_surrogate_pair_is_a_character_and_kept() -> None:
    assert check_text("🐎", "It") == "🐎"


def test_limit_is_in_bytes_and_not_in_characters() -> None:
    assert check_text("é" * 5, "It", max_bytes=10)
    with pytest.raises(Invalid) as caught:
        check_text("é" * 6, "It", max_bytes=10)
    assert (caught.value.details["size"], caught.value.details["limit"]) == (12, 10)


def test_text_of_ten_megabytes_is_rejected_with_a_remedy() -> None:
    assert check_text("x" * MAX_TEXT, "It")
    with pytest.raises(Invalid) as caught:
        check_text("x" * 10_000_000, "It")
    assert caught.value.details["reason"] == "too_long"
    assert caught.value.details["size"] == 10_000_000


def test_bytes_are_decoded_or_described() -> None:
    assert encode_text("é", "It") == b"\xc3\xa9"
    with pytest.raises(Invalid):
        encode_text("\ud800", "It")


# -- JSON ------------------------------------------------------------------------------------


@given(JSON)
def test_every_value_round_trips_as_json(value: Any) -> None:
    assert msgspec.json.decode(encode_json(value, "It")) == value


@each_case("value", ["\0", ["\0"], {"\0": 1}, {"a": [{"b": "x\0"}]}, ("\0",)], ids=ascii)
def test_nested_nul_is_found(value: Any) -> None:
    with pytest.raises(Invalid) as caught:
        encode_json(value, "The body")
    assert caught.value.details["reason"] == "nul_byte"


@each_case("value", ["\\u0000", ["\\u0000"], {"\\u0000": "\\\\u0000"}], ids=ascii)
def test_escaped_nul_is_six_plain_characters(value: Any) -> None:
    assert msgspec.json.decode(encode_json(value, "It")) == value


def test_nul_beside_an_escaped_one_is_found() -> None:
    with pytest.raises(Invalid):
        encode_json(["\\u0000", "\0"], "It")


class Shaped(msgspec.Struct):
    text: str


def test_nul_inside_a_record_is_found() -> None:
    with pytest.raises(Invalid):
        encode_json(Shaped("\0"), "It")
    assert encode_json(Shaped("\\u0000"), "It")


@each_case("value", ["\ud800", ["\udfff"], {"\ud800": 1}], ids=ascii)
def test_lone_surrogate_is_rejected(value: Any) -> None:
    with pytest.raises(Invalid):
        encode_json(value, "It")


@each_case("value", [object(), {1: object()}, {(1, 2): 3}, [len]], ids=range(4))
def test_value_that_is_not_json_is_rejected(value: Any) -> None:
    with pytest.raises(Invalid):
        encode_json(value, "It")


@each_case("value", [float("nan"), float("inf"), [float("-inf")]], ids=repr)
def test_nan_and_infinity_are_rejected(value: Any) -> None:
    with pytest.raises(Invalid):
        encode_json(value, "It")


def test_recursive_value_is_rejected() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(Invalid):
        encode_json(value, "It")


def test_json_is_limited_in_bytes() -> None:
    assert encode_json("x" * (MAX_BODY - 2), "It")
    for value in ("x" * (MAX_BODY - 1), "é" * (MAX_BODY // 2), "x" * 10_000_000):
        with pytest.raises(Invalid) as caught:
            encode_json(value, "It")
        assert caught.value.details["reason"] == "too_long"


def test_explicit_limit_is_respected() -> None:
    assert encode_json("12345678", "It", max_bytes=10) == '"12345678"'
    with pytest.raises(Invalid):
        encode_json("123456789", "It", max_bytes=10)
