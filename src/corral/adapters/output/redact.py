"""Redact secrets in a byte stream that arrives in arbitrary pieces."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from corral.adapters.output.escapes import INCOMPLETE_INVISIBLE, INVISIBLE
from corral.adapters.output.sealed_format import Replacement
from corral.adapters.output.secret_patterns import (
    LOOKBEHIND,
    MAX_PARTIAL_TOKEN,
    MAX_UNDECIDED,
    PARTIAL_TOKEN,
    TOKEN_PATTERNS,
    URL_LOGIN,
    Pattern,
    find_open_login,
)

REDACTED = b"[redacted]"

# Shorter values are not treated as secrets: redacting them would make the output unreadable.
# Records keep values of up to 7 characters, see `MIN_KNOWN_LENGTH` in `adapters/redaction.py`.
MIN_SECRET_BYTES = 4
MIN_ENCODED_BYTES = 8


# A value with escapes between its letters is found up to this many bytes per letter: enough for two
# colour sequences in their longest form.
MAX_BYTES_PER_LETTER = 48

# Programs wrap base64 and hex at 60 to 76 letters. A line that ends with fewer encoded letters than
# this is not joined with the next one: it is probably prose.
MIN_LINE_LETTERS = 8
_WRAPPED = re.compile(rb"[A-Za-z0-9+/_-]{%d}\r?\n" % MIN_LINE_LETTERS)
_LINE_END = re.compile(rb"[A-Za-z0-9+/_-]{%d}\Z" % MIN_LINE_LETTERS)
_BREAK = re.compile(rb"\r?\n[ \t]{0,16}")
_INCOMPLETE_BREAK = re.compile(rb"\r?(?:\n[ \t]{0,16})?\Z")


class _Match(NamedTuple):
    """A secret: where it ends, and the pattern of the rest of its token."""

    end: int
    tail: Pattern | None


def secret_forms(value: str | bytes) -> set[bytes]:
    """Return the encodings of a secret that may occur in output: plain, base64, hex, and escaped
    for URLs, JSON, HTML, shells and terminals."""
    raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else bytes(value)
    return _list_plain_forms(raw) | encoded_forms(raw) if len(raw) >= MIN_SECRET_BYTES else set()


def encoded_forms(value: str | bytes) -> set[bytes]:
    """Return the base64 and hex forms of a secret, which programs wrap into lines."""
    raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else bytes(value)
    if len(raw) < MIN_SECRET_BYTES:
        return set()
    forms = {form for form in _iter_base64_forms(raw) if len(form) >= MIN_ENCODED_BYTES}
    return forms | {raw.hex().encode(), raw.hex().upper().encode()}


def _list_plain_forms(raw: bytes) -> set[bytes]:
    import urllib.parse  # only runs with secrets need it

    text = raw.decode("utf-8", "surrogateescape")
    forms = {raw, raw.replace(b"\n", b"\r\n")}
    pairs = [f"{byte:02x}" for byte in raw]
    forms |= {"%".join(["", *pairs]).upper().encode()}
    forms |= {":".join(pairs).encode(), ":".join(pairs).upper().encode()}
    for quoted in (urllib.parse.quote(raw, safe=""), urllib.parse.quote_plus(raw)):
        forms |= {quoted.encode(), _lower_escapes(quoted).encode()}
    forms.add(urllib.parse.quote(raw).encode())
    quoted_once = _list_html_forms(text) | _list_shell_forms(text) | {"\\x".join(["", *pairs])}
    texts = _list_json_forms(text) | quoted_once | {_escape_json(form) for form in quoted_once}
    return forms | {form.encode("utf-8", "surrogateescape") for form in texts}


def _list_html_forms(text: str) -> set[str]:
    """Return the forms for HTML and XML, with the usual escapes of quotes."""
    import html

    bare = html.escape(text, quote=False)
    quotes = (("&quot;", "&#x27;"), ("&#34;", "&#39;"), ("&quot;", "&apos;"), ("&quot;", "'"))
    return {bare} | {bare.replace('"', double).replace("'", single) for double, single in quotes}


def _list_shell_forms(text: str) -> set[str]:
    """Return the forms for shells: in single quotes, in double quotes, with backslashes."""
    return {
        text.replace("'", "'\"'\"'"),
        text.replace("'", "'\\''"),
        text.replace("'", "\\'"),
        re.sub(r'(["$`\\])', r"\\\1", text),
        re.sub(r'(["$`\\!])', r"\\\1", text),
        re.sub(r"([^A-Za-z0-9_@%+=:,./\x80-\U0010ffff-])", r"\\\1", text),
        re.sub(r"([^A-Za-z0-9_@%+=:./\x80-\U0010ffff-])", r"\\\1", text),
        re.sub(r"([^A-Za-z0-9_./\x80-\U0010ffff-])", r"\\\1", text),
    }


def _list_json_forms(text: str) -> set[str]:
    """Return the forms in a JSON string, as common encoders write them, and in a nested one."""
    import json

    once: set[str] = set()
    for ascii_only in (True, False):
        plain = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
        # Some encoders also escape characters with a meaning in HTML, and slashes.
        html_safe = plain.translate(_HTML_SAFE)
        for form in (plain, html_safe, plain.replace("/", "\\/"), html_safe.replace("/", "\\/")):
            once |= {form, _raise_escapes(form)}
    return once | {_escape_json(form) for form in once}


def _escape_json(text: str) -> str:
    """Escape a text for the inside of a JSON string."""
    import json

    return json.dumps(text, ensure_ascii=False)[1:-1]


_HTML_SAFE = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&'\u2028\u2029\x7f"}


def _raise_escapes(text: str) -> str:
    return re.sub(r"\\u[0-9a-f]{4}", lambda match: "\\u" + match[0][2:].upper(), text)


def _lower_escapes(quoted: str) -> str:
    first, *rest = quoted.split("%")
    return "%".join([first, *(part[:2].lower() + part[2:] for part in rest)])


def _iter_base64_forms(raw: bytes) -> Iterator[bytes]:
    """Yield the characters that depend only on the value, for each alignment in a larger text."""
    import base64

    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + raw)
        begin = -(-shift * 8 // 6)
        end = (shift + len(raw)) * 8 // 6
        for variant in (encoded, encoded.translate(_URL_SAFE)):
            yield variant[begin:end]
    yield base64.b64encode(raw)
    yield base64.urlsafe_b64encode(raw)


_URL_SAFE = bytes.maketrans(b"+/", b"-_")


class Redactor:
    """Replaces the values of secrets, and text that looks like a key, by `[redacted]`.

    A value is also found with invisible escapes between its letters; they are removed with it.

    The result does not depend on how the stream is split into pieces. Bytes that may be part of a
    secret are held back until that is decided: at most about 16 KiB (a private key), usually none.
    All other bytes, also binary data, pass unchanged.
    """

    def __init__(self, values: Iterable[str | bytes] = (), *, shapes: bool = True) -> None:
        values = list(values)
        forms = {form for value in values for form in secret_forms(value)}
        self._encoded = frozenset(form for value in values for form in encoded_forms(value))
        # Longest first: of two values with a common prefix, the longer one matches.
        self._forms = sorted(forms, key=lambda form: (-len(form), form))
        self._first_bytes = bytes({form[0] for form in forms})
        self._max_prefix = max(map(len, forms), default=1) - 1
        self._spread_start = _compile_spread_start(forms, self._encoded) if forms else None
        self._patterns = TOKEN_PATTERNS if shapes else ()
        self._context = b""
        self._held = b""
        self._tail: Pattern | None = None
        self._decided = 0  # source offset
        self.replacements: list[Replacement] = []
        """What was replaced so far. The caller that uses it empties it."""

    def resume(self, context: bytes, at: int) -> "Redactor":
        """Start at offset `at` of a source; `context` are the bytes before. Returns self."""
        self._context, self._decided = context[-LOOKBEHIND:], at
        return self

    @property
    def held_bytes(self) -> int:
        """Number of bytes that are held back."""
        return len(self._held)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is held back, and no token continues."""
        return not self._held and self._tail is None

    def feed(self, data: bytes) -> bytes:
        """Process more data and return the text that is decided."""
        return self._scan(data, last=False)

    def finish(self) -> bytes:
        """Return the rest at the end of the stream."""
        return self._scan(b"", last=True)

    def _scan(self, data: bytes, *, last: bool) -> bytes:
        text = b"".join((self._context, self._held, data))
        offset = self._decided - len(self._context)  # source offset of text[0]
        at = len(self._context)
        if self._tail is not None:
            at = self._skip_tail(self._tail, text, at)
            if at == len(text) and not last:
                self._hold(text, at)
                return b""
            self._tail = None
        out: list[bytes] = []
        hold = len(text)
        for start, kind in self._find_candidates(text, at, last):
            if start < at:
                continue
            match = self._match(text, start, kind, last)
            if match is _UNDECIDED:
                hold = start
                break
            if match is not None:
                out += (text[at:start], REDACTED)
                length = match.end - start
                self.replacements.append(Replacement(offset + start, length, len(REDACTED)))
                at = match.end
                self._tail = match.tail if at == len(text) and not last else None
        out.append(text[at:hold])
        self._hold(text, hold)
        return out[0] if len(out) == 1 else b"".join(out)

    def _hold(self, text: bytes, decided: int) -> None:
        """Hold back the text after `decided`, with the context before it."""
        self._decided += decided - len(self._context)
        self._context = text[max(decided - LOOKBEHIND, 0) : decided]
        self._held = text[decided:]

    def _skip_tail(self, tail: Pattern, text: bytes, at: int) -> int:
        """Drop the rest of a token that was replaced in an earlier piece."""
        match = tail.match(text, at)
        end = match.end() if match else at
        if end > at:
            last = self.replacements.pop() if self.replacements else None
            last = last or Replacement(self._decided, 0, 0)
            self.replacements.append(last._replace(source_length=last.source_length + end - at))
        return end

    def _find_candidates(self, text: bytes, at: int, last: bool) -> list[tuple[int, int]]:
        """Return offsets where a secret may begin, with its kind, in order."""
        candidates: list[tuple[int, int]] = []
        for form in self._forms:
            hit = text.find(form, at)
            while hit >= 0:
                candidates.append((hit, _VALUE))
                hit = text.find(form, hit + 1)
        if self._spread_start is not None and (
            INVISIBLE.search(text, at) or _WRAPPED.search(text, max(at - MIN_LINE_LETTERS, 0))
        ):
            starts = self._spread_start.finditer(text, at)
            candidates += [(match.start(), _SPREAD) for match in starts]
        for kind, pattern in enumerate(self._patterns):
            if pattern.may_occur(text):
                candidates += [(start, kind) for start in pattern.starts(text)]
        if not last:
            candidates += self._iter_incomplete_candidates(text, at)
        if len(candidates) > 1:
            candidates.sort()
        return candidates

    def _iter_incomplete_candidates(self, text: bytes, at: int) -> Iterator[tuple[int, int]]:
        """Yield candidates at the end of the text that may be incomplete."""
        if self._forms:
            end = text[max(at, len(text) - self._max_prefix) :] if self._max_prefix else b""
            for index, byte in enumerate(end):
                if byte in self._first_bytes and self._is_form_prefix(end[index:]):
                    yield len(text) - len(end) + index, _VALUE
            yield from self._iter_incomplete_spread(text, at)
        if self._patterns:
            if match := PARTIAL_TOKEN.search(text, max(at, len(text) - MAX_PARTIAL_TOKEN)):
                yield match.start(), _PARTIAL
            if (login := find_open_login(text)) is not None:
                yield login, URL_LOGIN

    def _iter_incomplete_spread(self, text: bytes, at: int) -> Iterator[tuple[int, int]]:
        """Yield the first incomplete value with invisible bytes between its letters."""
        begin = max(at, len(text) - _limit_spread(self._max_prefix + 1))
        if not INVISIBLE.search(text, begin) and not INCOMPLETE_INVISIBLE.search(
            text, max(len(text) - 4, 0)
        ):
            # Only line breaks: one in 60 letters, plus indentation.
            begin = max(at, len(text) - 2 * self._max_prefix - 40)
            if b"\n" not in text[begin:] and not text.endswith(b"\r"):
                return
        for index in range(begin, len(text)):
            is_start = text[index] in self._first_bytes
            if is_start and self._match(text, index, _SPREAD, last=False) is _UNDECIDED:
                yield index, _SPREAD
                return

    def _is_form_prefix(self, end: bytes) -> bool:
        return any(form.startswith(end) for form in self._forms)

    def _match(self, text: bytes, start: int, kind: int, last: bool) -> _Match | None:
        """Return the secret that begins at an offset, None, or `_UNDECIDED`."""
        if kind == _PARTIAL:
            return _UNDECIDED
        if kind == _VALUE:
            for form in self._forms:
                if text.startswith(form, start):
                    return _Match(start + len(form), None)
                if not last and len(text) - start < len(form) and form.startswith(text[start:]):
                    return _UNDECIDED
            return None
        if kind == _SPREAD:
            ends = (
                _find_spread_end(text, start, form, last, form in self._encoded)
                for form in self._forms
            )
            end = next((end for end in ends if end is not None), None)
            return None if end is None else _UNDECIDED if end < 0 else _Match(end, None)
        pattern = self._patterns[kind]
        if match := pattern.pattern.match(text, start):
            return _Match(match.end(), pattern.tail)
        return _UNDECIDED if not last and pattern.incomplete.match(text, start) else None


# Kinds of candidates besides the indices of TOKEN_PATTERNS. At one position the smallest kind is
# examined first. A partial prefix comes before the patterns: it may become a pattern that takes
# precedence over one that matches already, such as a private key after `Authorization: Bearer `.
_VALUE = -3
_SPREAD = -2
_PARTIAL = -1

_UNDECIDED = _Match(-1, None)


def _limit_spread(letters: int) -> int:
    return min(letters * MAX_BYTES_PER_LETTER, MAX_UNDECIDED)


def _compile_spread_start(forms: set[bytes], encoded: frozenset[bytes]) -> Pattern:
    """Compile a pattern for the first letters of a value with invisible bytes between them; for an
    encoded value also with line breaks."""
    invisible = INVISIBLE.pattern.replace(b"?P<control>", b"?:").replace(b"?P<single>", b"?:")
    starts = {
        (b"(?:" + invisible + (b"|" + _BREAK.pattern if is_encoded else b"") + b")*+").join(
            re.escape(bytes((letter,))) for letter in prefix
        )
        for prefix, is_encoded in {(form[:MIN_SECRET_BYTES], form in encoded) for form in forms}
    }
    return re.compile(b"(?=" + b"|".join(sorted(starts)) + b")")


def _ends_line(text: bytes, at: int) -> bool:
    """Whether the text before `at` looks like the end of a line of base64 or hex."""
    return _LINE_END.match(text, max(at - MIN_LINE_LETTERS, 0), at) is not None


def _find_spread_end(
    text: bytes, start: int, form: bytes, last: bool, is_encoded: bool = False
) -> int | None:
    """Return the end of a value with invisible bytes (or, if encoded, line breaks) between its
    letters; None if there is none, -1 if undecided."""
    at, limit = start, start + _limit_spread(len(form))
    for letter in form:
        while at >= len(text) or text[at] != letter:
            if at > start and not last and len(text) <= limit:
                if INCOMPLETE_INVISIBLE.match(text, at):
                    return -1
                if is_encoded and _INCOMPLETE_BREAK.match(text, at) and _ends_line(text, at):
                    return -1
            if at >= len(text):
                return -1 if not last and at <= limit else None
            gap = INVISIBLE.match(text, at) if at > start else None
            if gap is None and is_encoded and at > start and _ends_line(text, at):
                gap = _BREAK.match(text, at)
            if gap is None:
                return None
            at = gap.end()
        at += 1
    return at if at <= limit else None


def redact(data: bytes, values: Iterable[str | bytes] = (), *, shapes: bool = True) -> bytes:
    """Redact a complete text."""
    redactor = Redactor(values, shapes=shapes)
    return redactor.feed(data) + redactor.finish()
