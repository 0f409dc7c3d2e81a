"""The prefilter misses no key that the full scan finds."""

import re

from hypothesis import given
from hypothesis import strategies as st

from corral.adapters.output.redact import redact
from corral.adapters.output.secret_patterns import TOKEN_PATTERNS
from corral.adapters.redaction import Redaction, redact_value
from corral.kernel.ids import new_id
from corral.kernel.redaction_policy import may_hold_key
from tests.support.fake_keys import KEY
from tests.support.grouped_cases import each_case

KEYS = (
    *(KEY, "sk-ant-" + "a1" * 20, "github_pat_" + "b2" * 15, "xoxb-" + "1234567890"),
    *("AKIA" + "Q" * 16, "AIza" + "c" * 35, "crl_" + "0" * 40),
    "eyJ" + "d" * 10 + ".eyJ" + "e" * 10 + ".f",
    "https://ada:hunter2@example.org",
    "Authorization: Bearer abcdefgh",
    "AUTHORIZATION: BASIC abcdefgh",
    "-----BEGIN RSA PRIVATE KEY-----\n" + "A" * 64 + "\n-----END RSA PRIVATE KEY-----",
)
PIECES = ("sk-", "ghp_", "AKIA", "AIza", "eyJ", "xoxb-", "crl_", "://", "@", "a:b", "x" * 40, " ")


def test_every_pattern_has_an_example_that_both_scanners_find() -> None:
    results = {
        number
        for key in KEYS
        for number, shape in enumerate(TOKEN_PATTERNS)
        if re.search(shape.pattern, key.encode())
    }
    assert results == set(range(len(TOKEN_PATTERNS)))
    for key in KEYS:
        assert may_hold_key(f"it is {key}."), key
        assert redact(key.encode()) != key.encode()


@given(st.lists(st.one_of(st.text(), st.sampled_from(PIECES), st.sampled_from(KEYS))))
def test_text_that_the_prefilter_passes_has_no_key(pieces: list[str]) -> None:
    text = "".join(pieces)
    data = text.encode("utf-8", "surrogatepass")
    assert may_hold_key(text) or redact(data) == data


@given(st.integers(0, 2**41), st.sampled_from(["run", "let", "ses", "tsk", "gh", "crl"]))
def test_no_id_is_mistaken_for_a_key(moment: int, prefix: str) -> None:
    id = new_id(prefix, moment)
    assert Redaction().clean(id) == id


def test_redacted_json_stays_json() -> None:
    redaction = Redaction(lambda: ["12345678", 'a "quoted" one'])
    assert redaction.clean('{"n":12345678,"t":"12345678"}') == '{"n":12345678,"t":"[redacted]"}'
    assert redaction.may_contain_secret('{"t":"a \\"quoted\\" one"}')
    assert redaction.clean('["a \\"quoted\\" one"]') == '["[redacted]"]'
    assert redaction.clean("{no json: 12345678") == "{no json: [redacted]"


@each_case(
    ("text", "redacted"),
    [
        ('{"a":"KEY","a":"fine"}', '{"a":"[redacted]","a":"fine"}'),
        ('{"Authorization": "Bearer abcdefgh"}', '{"Authorization": "Bearer [redacted]"}'),
        ('[["authorization","Basic YTpi"]]', '[["authorization","Basic [redacted]"]]'),
        (r'{"u":"https:\/\/ada:hunter2@x"}', '{"u":"https://[redacted]@x"}'),
    ],
    ids=["duplicate field", "by its name", "in a pair", "slashes escaped"],
)
def test_key_in_json_is_found_in_any_encoding(text: str, redacted: str) -> None:
    result = text.replace("KEY", KEY)
    assert Redaction().may_contain_secret(result)
    assert Redaction().clean(result) == redacted


def test_text_around_a_key_in_json_is_unchanged() -> None:
    text = f'{{"price": 1.10,  "id": {10**30}, "key": "{KEY}"}}'
    assert Redaction().clean(text) == text.replace(KEY, "[redacted]")


def test_field_names_that_are_keys_stay_distinct() -> None:
    values = {KEY: 1, f"{KEY}x": 2, "[redacted]": 3, "name": 4}
    clean = redact_value(values)
    assert [*clean.values()] == [1, 2, 3, 4]
    assert [*clean] == ["[redacted]", "[redacted] (2)", "[redacted] (3)", "name"]


def test_ordinary_words_are_not_redacted_as_values() -> None:
    redaction = Redaction(lambda: ["secret"])
    assert redaction.clean("it is no secret") == "it is no secret"


@each_case("name", ["Authorization", "authorization", "AUTHORIZATION", "HTTP_AUTHORIZATION"])
def test_value_of_an_authorization_field_is_redacted_in_any_case(name: str) -> None:
    for scheme in ("Basic", "basic", "BASIC"):
        value, clean = f"{scheme} dTpwYXNz", f"{scheme} [redacted]"
        assert redact_value({name: value}) == {name: clean}
        assert redact_value([[name, value]]) == [[name, clean]]
