"""The column that stores each parameter of a statement, derived from its text."""

import re

import pytest

from corral.db.column_policies import find_redactable_params
from corral.db.dialect import TOKENS
from corral.db.parameter_columns import find_parameter_columns
from corral.db.statement import Statement
from tests.support.grouped_cases import each_case


@each_case(
    ("text", "columns"),
    [
        ("INSERT INTO a (b, c) VALUES (:x, :y)", {"x": {"a.b"}, "y": {"a.c"}}),
        ("INSERT INTO a (b, c) VALUES (:x, 'a, b'), (1, :y)", {"x": {"a.b"}, "y": {"a.c"}}),
        (
            "INSERT INTO a (b, c) VALUES (coalesce(:x, f(1, :y)), CAST(:z AS {json}))",
            {"x": {"a.b"}, "y": {"a.b"}, "z": {"a.c"}},
        ),
        ("INSERT INTO a (b, c) SELECT d, :y FROM e WHERE f = :x", {"y": {"a.c"}}),
        (
            "INSERT INTO a (b) SELECT :x UNION ALL SELECT :y LIMIT :z",
            {"x": {"a.b"}, "y": {"a.b"}},
        ),
        (
            "INSERT INTO a (b) VALUES (:x) ON CONFLICT (b) DO UPDATE SET c = :y WHERE a.c <> :z",
            {"x": {"a.b"}, "y": {"a.c"}},
        ),
        ("UPDATE a SET b = :x, c = c + :y WHERE d = :z", {"x": {"a.b"}, "y": {"a.c"}}),
        ("UPDATE a SET b = :x, c = :x WHERE d {is_listed}", {"x": {"a.b", "a.c"}}),
        ("UPDATE a SET b = 1 WHERE c IS DISTINCT FROM :x AND d = :y", {}),
        ("UPDATE a SET b = CASE WHEN c > :x THEN :y ELSE c END", {"y": {"a.b"}}),
        ("UPDATE a SET b = (SELECT max(c) FROM d WHERE e = :x), f = :y", {"y": {"a.f"}}),
        ("UPDATE a SET b = 1 WHERE c = (SELECT :x)", {}),
        (
            "WITH w AS (INSERT INTO a (b) VALUES (:x) RETURNING *), v AS (INSERT INTO c (d, e)"
            " SELECT :y, f FROM w) SELECT g FROM w",
            {"x": {"a.b"}, "y": {"c.d"}},
        ),
        (
            "WITH w AS (UPDATE a SET b = :x WHERE c = :y RETURNING d)"
            " INSERT INTO e (f) SELECT :z FROM w",
            {"x": {"a.b"}, "z": {"e.f"}},
        ),
    ],
)
def test_column_is_derived_from_the_position_of_a_parameter(
    text: str, columns: dict[str, set[str]]
) -> None:
    result = find_parameter_columns(text)
    assert (result.columns, result.unknown) == (columns, set())


@each_case(
    "text",
    [
        "INSERT INTO a VALUES (:x)",
        "INSERT INTO a (b) VALUES (1, :x)",
        "INSERT INTO a (b) SELECT c FROM (VALUES (:x)) AS d (c)",
        "UPDATE a SET (b, c) = (:x, 1)",
        "UPDATE a SET b = d.c FROM (SELECT :x AS c) AS d",
        "WITH d AS (SELECT :x AS c) INSERT INTO a (b) SELECT c FROM d",
        "insert into a (b) values (:x)",
        "MERGE INTO a USING b ON a.c = b.c WHEN NOT MATCHED THEN INSERT (c) VALUES (:x)",
    ],
)
def test_parameter_in_any_other_position_is_unknown(text: str) -> None:
    assert find_parameter_columns(text).unknown == {"x"}
    with pytest.raises(LookupError, match="No redaction policy for x"):
        Statement(text).redactable_params  # noqa: B018


def test_values_of_rows_are_stored_too() -> None:
    result = find_parameter_columns(
        "INSERT INTO a (b, c) SELECT each.value ->> 'x', CAST(each.value ->> 1 AS {json})"
        " FROM {each_of_rows} WHERE d = each.value ->> 'y'"
    )
    assert result.row_columns == {"x": {"a.b"}, 1: {"a.c"}}
    assert (result.columns, result.unknown) == ({}, set())


def test_rows_are_one_parameter_on_both_engines() -> None:
    for text in TOKENS["each_of_rows"].values():
        assert re.findall(r":(\w+)", text) == ["rows"]


def test_whole_row_that_is_stored_is_unknown() -> None:
    result = find_parameter_columns("INSERT INTO a (b) SELECT each.value FROM {each_of_rows}")
    assert result.unknown == {"rows"}


def test_columns_with_different_policies_need_a_declaration() -> None:
    with pytest.raises(LookupError, match="Several redaction policies for x"):
        find_redactable_params("UPDATE letters SET body = :x, key = :x", "letters", {})


def test_table_without_policies_is_an_error() -> None:
    with pytest.raises(LookupError, match="no_such"):
        find_redactable_params("UPDATE no_such SET body = :x", "no_such", {})
