"""One SQL text for two engines: parameters, tokens, and rows that become records."""

from enum import StrEnum
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.db.dialect import TOKENS
from corral.db.statement import (
    Query,
    Statement,
    columns_of,
    make_record_builder,
    translate_for_engine,
)
from tests.support.grouped_cases import each_case


@each_case(
    ("text", "positional", "names"),
    [
        ("SELECT 1", "SELECT 1", ()),
        ("SELECT :a", "SELECT $1", ("a",)),
        ("SELECT :a, :b", "SELECT $1, $2", ("a", "b")),
        ("SELECT :b, :a, :b", "SELECT $1, $2, $1", ("b", "a")),
        ("SELECT :a_1 + :a", "SELECT $1 + $2", ("a_1", "a")),
        ("SELECT ':a', :b", "SELECT ':a', $1", ("b",)),
        ("SELECT 'it''s :a', :b", "SELECT 'it''s :a', $1", ("b",)),
        ("SELECT '', :b", "SELECT '', $1", ("b",)),
        ("SELECT :a::text", "SELECT $1::text", ("a",)),
        ("SELECT x::bigint, :a", "SELECT x::bigint, $1", ("a",)),
        ("SELECT (:a,:b)", "SELECT ($1,$2)", ("a", "b")),
        ("SELECT 'let_' || :seq", "SELECT 'let_' || $1", ("seq",)),
        ("WHERE a=:a AND b=:b", "WHERE a=$1 AND b=$2", ("a", "b")),
        ("LIMIT :limit\n", "LIMIT $1", ("limit",)),
    ],
)
def test_named_parameters_are_numbered(text: str, positional: str, names: tuple[str, ...]) -> None:
    assert Statement(text).postgres[:2] == (positional, names)


def test_sqlite_parameters_are_numbered() -> None:
    text, names, _ = Statement("SELECT ':a', :b, :c, :b").sqlite
    assert (text, names) == ("SELECT ':a', ?1, ?2, ?1", ("b", "c"))


@each_case(
    ("text", "compiled"),
    [
        ("SELECT 1 -- one", "SELECT 1"),
        ("SELECT a -- it's a comment\nFROM b -- isn't it\nWHERE c", "SELECT a FROM b WHERE c"),
        ("SELECT '--'", "SELECT '--'"),
        ("SELECT 'a -- b', c -- d", "SELECT 'a -- b', c"),
        ("SELECT 'it''s -- text' -- a comment", "SELECT 'it''s -- text'"),
        ('SELECT "--" FROM b -- a comment', 'SELECT "--" FROM b'),
    ],
)
def test_comments_are_removed_and_quoted_text_is_kept(text: str, compiled: str) -> None:
    for engine_text in (Statement(text).sqlite.text, Statement(text).postgres.text):
        assert engine_text.strip() == compiled


@each_case(
    ("text", "values"),
    [("SELECT 1", ()), ("SELECT :b", (2,)), ("SELECT :b, :a", (2, 1))],
)
def test_values_are_picked_in_the_order_of_their_numbers(
    text: str, values: tuple[int, ...]
) -> None:
    params = {"a": 1, "b": 2, "c": 3}
    assert Statement(text).sqlite.values(params) == values
    assert Statement(text).postgres.values(params) == values


def test_missing_parameter_is_a_programming_error() -> None:
    for text in ("SELECT :a", "SELECT :a, :b"):
        with pytest.raises(KeyError):
            Statement(text).sqlite.values({"b": 1})


def test_whitespace_is_kept_only_inside_quotes() -> None:
    assert Statement("\n  SELECT  'a  b',\n    c  ").sqlite.text == "SELECT 'a  b', c"


def test_more_than_nine_parameters_are_numbered() -> None:
    names = [f"p{n}" for n in range(12)]
    text, result, _ = Statement(", ".join(f":{name}" for name in [*names, "p0", "p11"])).postgres
    assert result == tuple(names)
    assert text.endswith("$10, $11, $12, $1, $12")


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=20))
def test_every_occurrence_gets_the_number_of_its_name(names: list[str]) -> None:
    text, result, _ = Statement(" ".join(f":{name}" for name in names)).postgres
    assert [result[int(parameter[1:]) - 1] for parameter in text.split()] == names
    assert len({*result}) == len(result)


@each_case("token", sorted(TOKENS))
def test_every_token_has_text_for_both_engines(token: str) -> None:
    assert {*TOKENS[token]} == {"sqlite", "postgres"}
    for engine in ("sqlite", "postgres"):
        assert translate_for_engine(f"a {{{token}}} b", engine) == f"a {TOKENS[token][engine]} b"
        assert "{" not in TOKENS[token][engine], "a token contains no tokens"


def test_unknown_token_is_a_programming_error() -> None:
    with pytest.raises(KeyError):
        translate_for_engine("{no_such}", "sqlite")


def test_parameters_inside_a_token_count_too() -> None:
    after = Statement("WHERE {feed_after} LIMIT :limit").postgres
    assert after.names == ("seq", "xid", "limit")


@each_case(
    ("text", "reads"),
    [
        ("SELECT 1", True),
        ("\n    SELECT 1", True),
        ("INSERT INTO a VALUES (1)", False),
        ("UPDATE a SET b = 1", False),
        ("WITH a AS (DELETE FROM b RETURNING c) SELECT * FROM a", False),
        ("WITH a AS (SELECT 1) SELECT * FROM a", True),
        ("WITH RECURSIVE a AS (SELECT 'update') SELECT * FROM a", True),
        ("WITH a AS (SELECT 1) UPDATE b SET c = 1", False),
    ],
)
def test_statements_without_a_writing_verb_are_reads(text: str, reads: bool) -> None:
    assert Statement(text).reads is reads


# -- rows to records -------------------------------------------------------------------------


class Colour(StrEnum):
    RED = "red"


class Thing(msgspec.Struct, frozen=True):
    id: str
    count: int
    colour: Colour
    maybe_colour: Colour | None
    maybe_text: str | None
    body: Any
    tags: list[str]
    note: str = "none"


def test_row_becomes_a_record_with_enums_and_json_decoded() -> None:
    make = make_record_builder(Thing)
    record = make(("a", 1, "red", None, None, '{"x":[1]}', '["t"]'))
    assert record == Thing("a", 1, Colour.RED, None, None, {"x": [1]}, ["t"])
    assert record.colour is Colour.RED


def test_json_may_be_bytes_and_null_stays_null() -> None:
    make = make_record_builder(Thing)
    assert make(("a", 1, "red", "red", "x", b'"text"', b"[]", "n")).body == "text"
    assert make(("a", 1, "red", None, None, None, "[]")).body is None
    assert make(("a", 1, "red", None, None, "null", "[]")).body is None


def test_unknown_enum_value_is_rejected() -> None:
    with pytest.raises((KeyError, ValueError)):
        make_record_builder(Thing)(("a", 1, "blue", None, None, "1", "[]"))


class Plain(msgspec.Struct):
    a: str
    b: int | None


def test_record_of_plain_columns_is_built_directly() -> None:
    assert Query(Plain, "SELECT a, b FROM c").make(("x", None)) == Plain("x", None)


def test_row_with_too_many_columns_is_a_programming_error() -> None:
    with pytest.raises(TypeError):
        make_record_builder(Plain)(("x", 1, 2))


def test_columns_of_lists_the_fields_in_order() -> None:
    assert columns_of(Plain) == "a, b"
    assert columns_of(Plain, "c") == "c.a, c.b"


def test_columns_of_replaces_a_field_by_an_expression() -> None:
    assert columns_of(Plain, a="'x_' || seq") == "'x_' || seq AS \"a\", b"
    assert columns_of(Plain, "c", b="count(*)") == 'c.a, count(*) AS "b"'


def test_columns_of_omits_the_last_fields() -> None:
    assert columns_of(Plain, omit=["b"]) == "a"


@pytest.mark.parametrize("omit", [["a"], ["c"]])
def test_columns_of_omits_no_other_fields(omit: list[str]) -> None:
    with pytest.raises(TypeError):
        columns_of(Plain, omit=omit)


def test_columns_of_rejects_an_expression_for_an_unknown_field() -> None:
    with pytest.raises(TypeError):
        columns_of(Plain, c="1")
