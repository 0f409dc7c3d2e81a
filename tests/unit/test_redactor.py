"""The streaming redactor, compared with a reference implementation on the whole text."""

import base64
import json
import time
import urllib.parse

from hypothesis import example, given, settings
from hypothesis import strategies as st

from corral.adapters.output.escapes import INVISIBLE
from corral.adapters.output.redact import MAX_BYTES_PER_LETTER, REDACTED, Redactor, secret_forms
from corral.adapters.output.render import render
from corral.adapters.output.secret_patterns import LOOKBEHIND, TOKEN_PATTERNS
from tests.support.grouped_cases import each_case

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
LONG = (LETTERS * 2)[7:97].encode()
BLOCK = (
    b"-----BEGIN RSA PRIVATE KEY-----\n"
    + b"\n".join([LONG[:64]] * 5)
    + b"\n-----END RSA PRIVATE KEY-----"
)
JWT = b"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P"

KEYS = {
    "an Anthropic key": b"sk-ant-api03-" + LONG,
    "an OpenAI key": b"sk-" + LONG[:48],
    "an OpenAI project key": b"sk-proj-a_b-c" + LONG[:60],
    "another sk- key": b"sk-or-v1-" + LONG[:40],
    "a GitHub token": b"ghp_" + LONG[:36],
    "a GitHub server token": b"ghs_" + LONG[:36],
    "a fine-grained GitHub token": b"github_pat_11ABC_" + LONG[:60],
    "a token of Corral's own": b"crl_" + b"0123456789abcdef" * 4,
    "a Slack token": b"xoxb-123456789012-abcdefABCDEF",
    "an AWS key id": b"AKIAIOSFODNN7EXAMPLE",
    "a Google key": b"AIza" + LONG[:35],
    "a JWT": JWT,
    "a private key": BLOCK,
}

PLAIN = [
    b"task-management-system-with-a-long-name",
    b"the disk-space-monitor-of-the-system",
    b"sk-fading-circle-container",
    b"https://example.com/path?x=1:2@3",
    b"ssh://git@example.com/repo",
    b"mail ada@example.com: hello",
    b"Authorization: none",
    b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    b"eyJub3QiOiJhIGp3dCJ9 alone",
    b"\xff\xfe\x00\x80 binary \x1b[31mred\x1b[0m",
    b"",
]


def redact_slowly(data: bytes, values: list[bytes]) -> bytes:
    """Reference implementation: every position, value and pattern over the whole text."""
    forms = sorted({f for value in values for f in secret_forms(value)}, key=lambda f: (-len(f), f))
    headers = {match.end() for match in TOKEN_PATTERNS[-1].prefix.finditer(data)}
    out, at = [], 0
    while at < len(data):
        end = next((at + len(form) for form in forms if data.startswith(form, at)), None)
        ends = (find_spread_end(data, at, form) for form in forms if end is None)
        end = next((result for result in ends if result is not None), end)
        for shape in TOKEN_PATTERNS:
            if end is None and (shape is not TOKEN_PATTERNS[-1] or at in headers):
                match = shape.pattern.match(data, at)
                end = match.end() if match else None
        out.append(REDACTED if end is not None else data[at : at + 1])
        at = end if end is not None else at + 1
    return b"".join(out)


def find_spread_end(data: bytes, at: int, form: bytes) -> int | None:
    """Return the end of a value with escape sequences between its characters."""
    start = at
    for nth, letter in enumerate(form):
        while nth and at < len(data) and data[at] != letter and (gap := INVISIBLE.match(data, at)):
            at = gap.end()
        if at >= len(data) or data[at] != letter:
            return None
        at += 1
    return at if at - start <= len(form) * MAX_BYTES_PER_LETTER else None


def redact_in_pieces(data: bytes, borders: list[int], values: list[bytes]) -> bytes:
    redactor, out, at = Redactor(values), b"", 0
    for border in [*sorted(min(b, len(data)) for b in borders), len(data)]:
        out += redactor.feed(data[at:border])
        at = border
        assert len(data[:at]) - redactor.held_bytes >= 0
    out += redactor.finish()
    source = data
    # the marks record what was replaced, and its length
    for mark in reversed(redactor.replacements):
        source = source[: mark.source_at] + REDACTED + source[mark.source_at + mark.source_length :]
    assert source == out
    return out


@each_case("name", KEYS)
def test_key_is_redacted_and_nothing_else(name: str) -> None:
    for before, after in ((b"", b""), (b"key=", b" and on"), (b'"text\\n', b'"'), (b"\n", b"\n")):
        data = before + KEYS[name] + after
        assert redact_in_pieces(data, [], []) == before + REDACTED + after


@each_case("data", PLAIN)
def test_text_without_a_key_is_unchanged(data: bytes) -> None:
    assert redact_in_pieces(b"x " + data + b" y\n", [], []) == b"x " + data + b" y\n"


@each_case(
    ("data", "expected"),
    [
        (b"https://ada:pw@example.com/x", b"https://[redacted]@example.com/x"),
        (b"postgresql://:pw@host/db", b"postgresql://[redacted]@host/db"),
        (b"Authorization: Bearer abcd.efgh\r\n", b"Authorization: Bearer [redacted]\r\n"),
        (b"AUTHORIZATION: Basic dTpw\n", b"AUTHORIZATION: Basic [redacted]\n"),
        (b"PROXY-AUTHORIZATION: TOKEN abcd\n", b"PROXY-AUTHORIZATION: TOKEN [redacted]\n"),
        (b"aUTHORIZATION=bASIC abcd", b"aUTHORIZATION=bASIC [redacted]"),
        (b'{"authorization": "Basic dTpw"}', b'{"authorization": "Basic [redacted]"}'),
        (
            b'{\\"Authorization\\":\\"token abcd\\"}',
            b'{\\"Authorization\\":\\"token [redacted]\\"}',
        ),
    ],
)
def test_only_the_secret_part_is_redacted(data: bytes, expected: bytes) -> None:
    assert redact_in_pieces(data, [], []) == expected
    for border in range(len(data)):
        assert redact_in_pieces(data, [border], []) == expected


@each_case("name", KEYS)
def test_key_is_found_across_any_chunk_border(name: str) -> None:
    data = b"a " + KEYS[name] + b" b"
    for border in range(1, len(data)):
        assert redact_in_pieces(data, [border], []) == b"a [redacted] b"
    redactor = Redactor()
    one_by_one = b"".join(redactor.feed(bytes([byte])) for byte in data)
    assert one_by_one + redactor.finish() == b"a [redacted] b"


@each_case(
    "before",
    [
        b"\x1b[31m",
        b"\x1b[01;31m\x1b[K",
        b"\x1b[38;2;255;255;255m",
        b"\x1b(B",
        rb"\u001b[0;32m",
        rb"\033[31m",
        b"token%3D",
        b"token%3a",
        rb"token\u003d",
        rb"token\x3d",
        b"token=3D",
        rb"\f",
    ],
)
def test_key_is_found_after_text_that_ends_like_a_word(before: bytes) -> None:
    """A colour sequence, or a character escaped for JSON, a URL or e-mail."""
    for key in KEYS.values():
        data = before + key + b" behind"
        for border in range(0, len(data), 3):
            assert redact_in_pieces(data, [border], []) == before + REDACTED + b" behind"


def test_private_key_without_its_end_is_redacted() -> None:
    cut = BLOCK[: BLOCK.index(b"-----END")]
    assert redact_in_pieces(b"a " + cut.rstrip(), [], []) == b"a [redacted]"
    filler = b"plain words, and more of them.\n" * 1_000
    out = redact_in_pieces(cut + b"\n" + filler, list(range(0, 40_000, 777)), [])
    assert LONG[:64] not in out
    assert out.endswith(filler)


VALUE = 'hunter2/"quoted"+ü\nsecond line'


@each_case(
    "form",
    [
        VALUE.encode(),
        VALUE.replace("\n", "\r\n").encode(),
        base64.b64encode(VALUE.encode()),
        base64.urlsafe_b64encode(VALUE.encode()),
        urllib.parse.quote(VALUE, safe="").encode(),
        urllib.parse.quote_plus(VALUE).encode(),
        json.dumps(VALUE)[1:-1].encode(),
        json.dumps(VALUE, ensure_ascii=False)[1:-1].encode(),
        json.dumps(VALUE).replace("/", "\\/")[1:-1].encode(),
        json.dumps(VALUE)[1:-1].replace("\\u00fc", "\\u00FC").encode(),
        json.dumps(json.dumps(VALUE)[1:-1])[1:-1].encode(),
    ],
)
def test_value_is_found_in_every_encoding_across_every_border(form: bytes) -> None:
    data = b"a " + form + b" b"
    for border in range(len(data)):
        assert redact_in_pieces(data, [border], [VALUE.encode()]) == b"a [redacted] b"


def test_html_escaped_value_is_found() -> None:
    value = "a<b>&'c'"
    escaped = r"a\u003cb\u003e\u0026\u0027c\u0027"
    assert (
        redact_in_pieces(f'{{"x":"{escaped}"}}'.encode(), [], [value.encode()])
        == b'{"x":"[redacted]"}'
    )


COLOURS = b"\x1b[38;2;255;100;50m\x1b[1m"


@each_case(
    "between",
    [
        *(b"\x1b[31m", COLOURS, b"\x1b[0m\x00\x1b[K", b"\x1b]8;;http://x\x07", b"\x1b]0;t\x1b\\"),
        *(b"\x1b(B", b"\x1b7", b"\x07", "\u202e".encode(), b"\xc2\x85"),
    ],
)
def test_value_is_found_with_escape_sequences_inside(between: bytes) -> None:
    data = b"a " + between.join(b"%c" % letter for letter in b"hunter2!") + b" b"
    for border in range(len(data)):
        assert redact_in_pieces(data, [border, border + 3], [b"hunter2!"]) == b"a [redacted] b"
    assert "hunter2" not in render(Redactor(["hunter2!"]).feed(data), terminal=False)


def test_text_that_cannot_become_a_value_is_released() -> None:
    redactor = Redactor(["hunter2"])
    out = redactor.feed(b"hunt")
    for _ in range(100):
        out += redactor.feed(b"\x1b[31m" * 100)
        assert redactor.held_bytes <= 7 * MAX_BYTES_PER_LETTER
    assert out.startswith(b"hunt\x1b[31m")


@each_case("before", [b"", b"u", b"us", b"user:"])
@each_case("after", [b"", b":", b"::"])
def test_base64_encoded_value_cannot_be_recovered(before: bytes, after: bytes) -> None:
    value = b"correct-horse-battery"
    out = redact_in_pieces(base64.b64encode(before + value + after), [], [value])
    assert REDACTED in out
    for part in out.split(REDACTED):
        assert len(part) <= len(base64.b64encode(before + b"x" + after)) + 4


def test_longer_of_two_values_with_a_common_prefix_is_redacted() -> None:
    values = [b"pass", b"password-of-ada"]
    for border in range(20):
        assert redact_in_pieces(b"password-of-ada.", [border], values) == b"[redacted]."
        assert redact_in_pieces(b"password-of-bob.", [border], values) == b"[redacted]word-of-bob."


def test_values_too_short_to_be_secret_are_kept() -> None:
    assert redact_in_pieces(b"a b c", [], [b"b", b""]) == b"a b c"


def test_little_is_held_back() -> None:
    redactor = Redactor(["hunter2"])
    assert redactor.feed(b"Password: ") == b"Password: "
    assert redactor.feed(b"$ ls\n") == b"$ ls\n"
    assert redactor.feed(b"well, h") == b"well, "
    assert redactor.feed(b"i") == b"hi"
    assert redactor.is_settled


def test_endless_token_needs_no_memory() -> None:
    redactor = Redactor()
    out = redactor.feed(b"sk-ant-" + LONG)
    for _ in range(100):
        out += redactor.feed(b"x" * 65_536)
        assert redactor.held_bytes == 0
    assert out + redactor.feed(b" end") == b"[redacted] end"
    assert redactor.replacements[0].source_length == 7 + len(LONG) + 100 * 65_536


VALUES = [b"hunter2", b"aaaa", b"aab-", b"sk-and", b"://x:y@z"]
parts = st.one_of(
    st.sampled_from([*KEYS.values(), *PLAIN, *VALUES]),
    st.sampled_from(list(KEYS.values())).flatmap(
        lambda key: st.integers(0, len(key)).map(lambda cut: key[:cut])
    ),
    st.sampled_from(
        [
            *(b"sk-", b"a", b"aa", b"-", b"@", b":", b"://", b"eyJ", b".", b" ", b"\n", b"\\n"),
            *(b"Authorization: Bearer ", b"-----BEGIN ", b"PRIVATE KEY-----", b"AKIA", b"xox"),
            *(b"gh", b"\x1b[1m", b"\x1b]", b"\x1b", b"\x07", b"hun", b"ter2", b"\xe2\x80"),
        ]
    ),
    st.binary(max_size=8),
)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(parts, max_size=12).map(b"".join),
    st.lists(st.integers(0, 1_500), max_size=8),
    st.sampled_from([[], VALUES, VALUES[:1]]),
)
@example(b"aaaaaab-aab-", [3, 7], VALUES)
@example(b"Authorization: Bearer " + BLOCK, [30], [])
@example(b"Authorization: Bearer github_pat_11ABC_" + LONG[:60] + b"-----BEGIN ", [30], [])
def test_chunk_borders_do_not_change_the_result(
    data: bytes, borders: list[int], values: list[bytes]
) -> None:
    expected = redact_slowly(data, values)
    assert redact_in_pieces(data, borders, values) == expected


@settings(max_examples=200, deadline=None)
@given(st.lists(parts, max_size=8).map(b" ".join))
def test_redaction_is_idempotent_between_words(data: bytes) -> None:
    once = redact_in_pieces(data, [], [])
    assert redact_in_pieces(once, [], []) == once


def test_no_pattern_looks_back_beyond_the_context() -> None:
    longest = b'uthorization\\" \t \t: \t \t\\"Bearer \t \t'
    assert TOKEN_PATTERNS[-1].prefix.fullmatch(longest)
    assert len(longest) < LOOKBEHIND


@each_case(
    "piece",
    [
        *(b"@", b"J", b"K", b"gh", b"ghp_ ", b"xox", b"xox ", b"sk- ", b"sk-", b"://", b"://a:"),
        *(b"eyJ", b"eyJ.", b"-----BEGIN ", b"-----BEGIN PRIVATE KEY-----", b"-", b"AKIA "),
        b"Authorization: Bearer ",
        *(b"hunter2-\x1b[maaaaa", b"a\x1b[m", b"\x1b]"),
        *(b"sk-aaaaaaaaaaaaaaaa ", b"://a:b@", b"uthorization", b"eyJaaaaaaaa.eyJ "),
    ],
)
def test_adversarial_text_is_redacted_within_a_second(
    piece: bytes,
) -> None:
    data = piece * (262_144 // len(piece))
    redactor, busy = Redactor(["hunter2-aaaaaaaaaaaaaaab"]), time.process_time()
    for at in range(0, len(data), 65_536):
        redactor.feed(data[at : at + 65_536])
    redactor.finish()
    assert time.process_time() - busy < 1


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from([b"xox", b"xoxb-", b"abcdefghijkl", b" ", b"-", b"J"]), max_size=60)
    .map(b"".join)
    .map(lambda data: data * 3),
    st.lists(st.integers(0, 1_500), max_size=8),
)
def test_texts_full_of_prefixes_give_the_same_result(data: bytes, borders: list[int]) -> None:
    assert redact_in_pieces(data, borders, VALUES) == redact_slowly(data, VALUES)
