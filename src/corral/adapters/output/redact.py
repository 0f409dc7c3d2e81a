"""Secrets taken out of a stream of bytes, wherever the stream is cut into pieces."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from corral.adapters.output.escapes import UNSEEN, UNSEEN_SO_FAR
from corral.adapters.output.frames import Mark
from corral.adapters.output.shapes import (
    BEGINNING,
    CONTEXT,
    LOGIN,
    LONGEST,
    LONGEST_BEGINNING,
    SHAPES,
    Pattern,
    open_login,
)

REDACTED = b"[redacted]"

# Shorter ones are no secrets, and taking them out would leave nothing to be read.
SHORTEST_VALUE = 4
SHORTEST_ENCODED = 8


# A value with escapes between its letters is found while it takes no more than so many bytes a
# letter: two colours in their longest spelling. Beyond that it is no output but a riddle.
WIDEST_LETTER = 48

# Programs break base64 and hex into lines of 60 to 76 letters. A line that ends with fewer encoded
# letters than this is not joined with the next one: it is mostly prose.
LINE_LETTERS = 8
_BROKEN = re.compile(rb"[A-Za-z0-9+/_-]{%d}\r?\n" % LINE_LETTERS)
_LINE = re.compile(rb"[A-Za-z0-9+/_-]{%d}\Z" % LINE_LETTERS)
_BREAK = re.compile(rb"\r?\n[ \t]{0,16}")
_BREAK_SO_FAR = re.compile(rb"\r?(?:\n[ \t]{0,16})?\Z")


class _Found(NamedTuple):
    end: int
    tail: Pattern | None


def forms_of(value: str | bytes) -> set[bytes]:
    """Return the forms in which a secret may be written: plain, base64, hex, and escaped for URLs,
    JSON, HTML, shells and terminals."""
    raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else bytes(value)
    return _plain_forms(raw) | encoded_forms(raw) if len(raw) >= SHORTEST_VALUE else set()


def encoded_forms(value: str | bytes) -> set[bytes]:
    """Return the base64 and hex forms, which programs break into lines."""
    raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else bytes(value)
    if len(raw) < SHORTEST_VALUE:
        return set()
    found = {form for form in _in_base64(raw) if len(form) >= SHORTEST_ENCODED}
    return found | {raw.hex().encode(), raw.hex().upper().encode()}


def _plain_forms(raw: bytes) -> set[bytes]:
    import urllib.parse  # only a run that was given a secret needs it

    text = raw.decode("utf-8", "surrogateescape")
    found = {raw, raw.replace(b"\n", b"\r\n")}
    pairs = [f"{byte:02x}" for byte in raw]
    found |= {"%".join(["", *pairs]).upper().encode()}
    found |= {":".join(pairs).encode(), ":".join(pairs).upper().encode()}
    for quoted in (urllib.parse.quote(raw, safe=""), urllib.parse.quote_plus(raw)):
        found |= {quoted.encode(), _lower_escapes(quoted).encode()}
    found.add(urllib.parse.quote(raw).encode())
    quoted_once = _in_page(text) | _in_shell(text) | {"\\x".join(["", *pairs])}
    written = _in_json(text) | quoted_once | {_as_json(form) for form in quoted_once}
    return found | {form.encode("utf-8", "surrogateescape") for form in written}


def _in_page(text: str) -> set[str]:
    """Escape for HTML and XML, with the usual ways to write quotes."""
    import html

    bare = html.escape(text, quote=False)
    quotes = (("&quot;", "&#x27;"), ("&#34;", "&#39;"), ("&quot;", "&apos;"), ("&quot;", "'"))
    return {bare} | {bare.replace('"', one).replace("'", other) for one, other in quotes}


def _in_shell(text: str) -> set[str]:
    """Escape for shells: in single quotes, in double quotes, and with backslashes."""
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


def _in_json(text: str) -> set[str]:
    """As the usual encoders write it into a string, and into one within another."""
    import json

    once: set[str] = set()
    for ascii_only in (True, False):
        spelled = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
        # Some escape what would matter in a page, and a slash.
        paged = spelled.translate(_PAGED)
        for written in (spelled, paged, spelled.replace("/", "\\/"), paged.replace("/", "\\/")):
            once |= {written, _upper_escapes(written)}
    return once | {_as_json(form) for form in once}


def _as_json(text: str) -> str:
    """Escape a text for the inside of a JSON string."""
    import json

    return json.dumps(text, ensure_ascii=False)[1:-1]


_PAGED = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&'\u2028\u2029\x7f"}


def _upper_escapes(written: str) -> str:
    return re.sub(r"\\u[0-9a-f]{4}", lambda match: "\\u" + match[0][2:].upper(), written)


def _lower_escapes(quoted: str) -> str:
    first, *rest = quoted.split("%")
    return "%".join([first, *(part[:2].lower() + part[2:] for part in rest)])


def _in_base64(raw: bytes) -> Iterator[bytes]:
    """The characters that depend on the value alone, wherever it stands in what was encoded."""
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
    """Replaces the values of secrets, and whatever looks like a key, by `[redacted]`.

    A value is found also where escapes stand between its letters, which a person does not see; they
    go with it.

    What comes out does not depend on how the stream was cut into pieces, and is a beginning of the
    text at every moment: bytes that may turn out to be part of a secret are held back, at most some
    16 KiB (a private key's block), mostly none. All other bytes pass unchanged, text or not.
    """

    def __init__(self, values: Iterable[str | bytes] = (), *, shapes: bool = True) -> None:
        values = list(values)
        forms = {form for value in values for form in forms_of(value)}
        self._encoded = frozenset(form for value in values for form in encoded_forms(value))
        # The longest first: of two values that begin alike, the longer one is the secret.
        self._forms = sorted(forms, key=lambda form: (-len(form), form))
        self._heads = bytes({form[0] for form in forms})
        self._reach = max(map(len, forms), default=1) - 1
        self._spread = _first_letters(forms, self._encoded) if forms else None
        self._shapes = SHAPES if shapes else ()
        self._needles: dict[tuple[bytes, bytes], list[int]] = {}
        for kind, shape in enumerate(self._shapes):
            self._needles.setdefault((shape.sign, shape.needle), []).append(kind)
        self._context = b""
        self._held = b""
        self._tail: Pattern | None = None
        self._taken = 0
        self.marks: list[Mark] = []
        """What was replaced so far, by its place in the source. Whoever needs it empties it."""

    def resume(self, context: bytes, at: int) -> "Redactor":
        """Go on in the middle of a source, behind bytes that were dealt with already."""
        self._context, self._taken = context[-CONTEXT:], at
        return self

    @property
    def held(self) -> int:
        """How many bytes at the end of what was fed are not decided on yet."""
        return len(self._held)

    @property
    def settled(self) -> bool:
        """Whether all that was fed has come out."""
        return not self._held and self._tail is None

    def feed(self, data: bytes) -> bytes:
        """What is certain after these bytes."""
        return self._scan(data, last=False)

    def finish(self) -> bytes:
        """The rest: nothing more comes."""
        return self._scan(b"", last=True)

    def _scan(self, data: bytes, *, last: bool) -> bytes:
        text = b"".join((self._context, self._held, data))
        place = self._taken - len(self._context)  # of the text's first byte in the source
        at = len(self._context)
        if self._tail is not None:
            at = self._swallow(self._tail, text, at)
            if at == len(text) and not last:
                self._keep(text, at)
                return b""
            self._tail = None
        out: list[bytes] = []
        hold = len(text)
        for start, kind in self._candidates(text, at, last):
            if start < at:
                continue
            found = self._look(text, start, kind, last)
            if found is _UNDECIDED:
                hold = start
                break
            if found is not None:
                out += (text[at:start], REDACTED)
                self.marks.append(Mark(place + start, found.end - start, len(REDACTED)))
                at = found.end
                self._tail = found.tail if at == len(text) and not last else None
        out.append(text[at:hold])
        self._keep(text, hold)
        return out[0] if len(out) == 1 else b"".join(out)

    def _keep(self, text: bytes, done: int) -> None:
        """Remember what lies before the bytes that are not decided on, and these."""
        self._taken += done - len(self._context)
        self._context = text[max(done - CONTEXT, 0) : done]
        self._held = text[done:]

    def _swallow(self, tail: Pattern, text: bytes, at: int) -> int:
        """The rest of a token that was replaced already."""
        match = tail.match(text, at)
        end = match.end() if match else at
        if end > at:
            mark = self.marks.pop() if self.marks else Mark(self._taken, 0, 0)
            self.marks.append(mark._replace(source_length=mark.source_length + end - at))
        return end

    def _candidates(self, text: bytes, at: int, last: bool) -> list[tuple[int, int]]:
        """Where something may begin that is to be replaced, and what: in order."""
        found: list[tuple[int, int]] = []
        for form in self._forms:
            hit = text.find(form, at)
            while hit >= 0:
                found.append((hit, _VALUE))
                hit = text.find(form, hit + 1)
        if self._spread is not None and (
            UNSEEN.search(text, at) or _BROKEN.search(text, max(at - LINE_LETTERS, 0))
        ):
            found += [(match.start(), _SPREAD) for match in self._spread.finditer(text, at)]
        for (sign, needle), kinds in self._needles.items():
            if sign in text and needle in text:
                for kind in kinds:
                    found += [(start, kind) for start in self._shapes[kind].starts(text)]
        if not last:
            found += self._open_ends(text, at)
        if len(found) > 1:
            found.sort()
        return found

    def _open_ends(self, text: bytes, at: int) -> Iterator[tuple[int, int]]:
        """Where something may begin that is not whole yet."""
        if self._forms:
            end = text[max(at, len(text) - self._reach) :] if self._reach else b""
            for index, byte in enumerate(end):
                if byte in self._heads and self._begins_form(end[index:]):
                    yield len(text) - len(end) + index, _VALUE
            yield from self._open_spread(text, at)
        if self._shapes:
            if match := BEGINNING.search(text, max(at, len(text) - LONGEST_BEGINNING)):
                yield match.start(), _BEGINNING
            if (login := open_login(text)) is not None:
                yield login, LOGIN

    def _open_spread(self, text: bytes, at: int) -> Iterator[tuple[int, int]]:
        """The same for a value with something unseen between its letters."""
        begin = max(at, len(text) - _widest(self._reach + 1))
        if not UNSEEN.search(text, begin) and not UNSEEN_SO_FAR.search(text, max(len(text) - 4, 0)):
            # Only line breaks: one in 60 letters, with the indentation of the next line.
            begin = max(at, len(text) - 2 * self._reach - 40)
            if b"\n" not in text[begin:] and not text.endswith(b"\r"):
                return
        for index in range(begin, len(text)):
            head = text[index] in self._heads
            if head and self._look(text, index, _SPREAD, last=False) is _UNDECIDED:
                yield index, _SPREAD
                return

    def _begins_form(self, end: bytes) -> bool:
        return any(form.startswith(end) for form in self._forms)

    def _look(self, text: bytes, start: int, kind: int, last: bool) -> _Found | None:
        """What begins at a place, if anything does, and if that can be told yet."""
        if kind == _BEGINNING:
            return _UNDECIDED
        if kind == _VALUE:
            for form in self._forms:
                if text.startswith(form, start):
                    return _Found(start + len(form), None)
                if not last and len(text) - start < len(form) and form.startswith(text[start:]):
                    return _UNDECIDED
            return None
        if kind == _SPREAD:
            ends = (
                _spread_end(text, start, form, last, form in self._encoded) for form in self._forms
            )
            end = next((end for end in ends if end is not None), None)
            return None if end is None else _UNDECIDED if end < 0 else _Found(end, None)
        shape = self._shapes[kind]
        if match := shape.pattern.match(text, start):
            return _Found(match.end(), shape.tail)
        return _UNDECIDED if not last and shape.could.match(text, start) else None


# Kinds of candidates besides the shapes. At one place the smallest kind is examined first. An
# incomplete prefix comes before the shapes: it may become the shape that takes precedence over one
# that matches already, as a private key behind `Authorization: Bearer `.
_VALUE = -3
_SPREAD = -2
_BEGINNING = -1

_UNDECIDED = _Found(-1, None)


def _widest(letters: int) -> int:
    return min(letters * WIDEST_LETTER, LONGEST)


def _first_letters(forms: set[bytes], encoded: frozenset[bytes]) -> Pattern:
    """Where the first letters of a value stand, with anything unseen between them; of an encoded
    one also with a line break."""
    unseen = UNSEEN.pattern.replace(b"?P<control>", b"?:").replace(b"?P<single>", b"?:")
    spelled = {
        (b"(?:" + unseen + (b"|" + _BREAK.pattern if is_encoded else b"") + b")*+").join(
            re.escape(bytes((letter,))) for letter in beginning
        )
        for beginning, is_encoded in {(form[:SHORTEST_VALUE], form in encoded) for form in forms}
    }
    return re.compile(b"(?=" + b"|".join(sorted(spelled)) + b")")


def _ends_line(text: bytes, at: int) -> bool:
    """Whether the text before `at` looks like the end of an encoded line."""
    return _LINE.match(text, max(at - LINE_LETTERS, 0), at) is not None


def _spread_end(
    text: bytes, start: int, form: bytes, last: bool, is_encoded: bool = False
) -> int | None:
    """Where a value ends whose letters have something unseen between them, or a line break where
    it is encoded; -1: not told yet."""
    at, most = start, start + _widest(len(form))
    for letter in form:
        while at >= len(text) or text[at] != letter:
            if at > start and not last and len(text) <= most:
                if UNSEEN_SO_FAR.match(text, at):
                    return -1
                if is_encoded and _BREAK_SO_FAR.match(text, at) and _ends_line(text, at):
                    return -1
            if at >= len(text):
                return -1 if not last and at <= most else None
            unseen = UNSEEN.match(text, at) if at > start else None
            if unseen is None and is_encoded and at > start and _ends_line(text, at):
                unseen = _BREAK.match(text, at)
            if unseen is None:
                return None
            at = unseen.end()
        at += 1
    return at if at <= most else None


def redact(data: bytes, values: Iterable[str | bytes] = (), *, shapes: bool = True) -> bytes:
    """A text that is there as a whole, redacted."""
    redactor = Redactor(values, shapes=shapes)
    return redactor.feed(data) + redactor.finish()
