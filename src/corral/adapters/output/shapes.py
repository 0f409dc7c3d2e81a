"""What keys look like, whoever they belong to.

Each shape is found by a needle, a few bytes that are searched for, and then looked at by a pattern.
One byte is found at the speed of memory, several fifty times slower: so the rarest of them goes
first. A pattern decides within a bounded number of bytes; what follows of the same
token (`tail`) goes with it, however long it is. `could` tells that the bytes up to the end of the
text may still become this shape.
"""

import re
from functools import cached_property

Pattern = re.Pattern[bytes]

# Not in the middle of a word; or behind something that only ends like one: a sign that is spelled
# out, as in JSON, a URL or a mail, and what sets a colour, itself or spelled out.
_START = (
    b"(?:"
    + b"|".join(
        (
            rb"(?<![A-Za-z0-9_-])",
            rb"(?<=\\[bfnrt])",
            rb"(?<=\\u[0-9A-Fa-f]{4})",
            rb"(?<=\\x[0-9A-Fa-f]{2})",
            rb"(?<=%[0-9A-Fa-f]{2})",
            rb"(?<==3D)",
            rb"(?<=\x1b[0-~])",
            rb"(?<=\x1b[ -/][0-~])",
            rb"(?<=\[[mJK])",
            *(rb"(?<=\[[0-9:;<=>?]{%d}[A-Za-z])" % length for length in range(1, 20)),
        )
    )
    + b")"
)

# How far back a pattern looks from the first byte that it replaces.
CONTEXT = 64

# A block of this many bytes without its last line is no key.
LONGEST_BLOCK = 16 * 1024

# Nothing is undecided for longer than this.
LONGEST = LONGEST_BLOCK + 256


# A text that has a needle more often than this many bytes apart is searched by pattern: it is made
# of needles, by chance or on purpose, and each costs more to look at than a byte to match.
DENSE = 256


class Shape:
    """One kind of key. Each pattern is compiled when it is first used: all of them together take
    longer than the rest of a short command, and most texts have no needle."""

    def __init__(
        self,
        needle: bytes,
        prefix: bytes,
        pattern: bytes,
        could: bytes,
        tail: bytes | None,
        *,
        back: int,
    ) -> None:
        self.needle = needle
        """What is searched for, and how far behind the beginning of the token it stands."""
        self.sign = _rarest(needle)
        """The byte of it that most texts have not."""
        self.back = back
        self._prefix = prefix
        self._pattern = pattern
        self._could = could
        self._tail = tail

    @cached_property
    def prefix(self) -> Pattern:
        return re.compile(self._prefix)

    @cached_property
    def pattern(self) -> Pattern:
        return re.compile(_START + self._pattern)

    @cached_property
    def could(self) -> Pattern:
        return re.compile(_START + rb"(?:" + self._could + rb")\Z")

    @cached_property
    def tail(self) -> Pattern | None:
        return re.compile(self._tail) if self._tail else None

    @cached_property
    def dense(self) -> Pattern:
        """A place where a token begins, or may begin."""
        # Its first letters first: to tell whether it begins there takes longer.
        begins, pattern, could = self._prefix, self._pattern, self._could
        return re.compile(
            rb"(?=" + begins + rb")" + _START + rb"(?=" + pattern + rb"|(?:" + could + rb")\Z)"
        )

    def starts(self, text: bytes) -> list[int]:
        """Where a token of this shape may begin."""
        needle, back, prefix = self.needle, self.back, self.prefix
        most = len(text) // DENSE + 1
        found: list[int] = []
        at = text.find(needle)
        while at >= 0:
            most -= 1
            if most < 0:
                return [match.start() for match in self.dense.finditer(text)]
            if at >= back and prefix.match(text, at - back):
                found.append(at - back)
            at = text.find(needle, at + 1)
        return found


# Bytes of needles, from the usual to the rare.
_RARITY = b"etaoinsrhlducmp-gwyb_kxGKJ@z"


def _rarest(needle: bytes) -> bytes:
    return bytes([max(needle, key=_RARITY.find)])


class _Family(Shape):
    """Several prefixes that begin alike, with letters that are in many words."""

    def starts(self, text: bytes) -> list[int]:
        found = [match.start() for match in self.prefix.finditer(text)]
        if len(found) * DENSE > len(text) + DENSE:
            found = [match.start() for match in self.dense.finditer(text)]
        return found


class _Behind(Shape):
    """A token that stands behind something: a URL's login, the value of a header."""

    @cached_property
    def pattern(self) -> Pattern:
        return re.compile(self._pattern)

    @cached_property
    def could(self) -> Pattern:
        return re.compile(self._could + rb"\Z")

    def starts(self, text: bytes) -> list[int]:
        return [match.end() for match in self.prefix.finditer(text)]


def _shape(
    needle: bytes,
    pattern: bytes,
    could: bytes,
    tail: bytes | None = None,
    *,
    prefix: bytes | None = None,
    back: int = 0,
    kind: type[Shape] = Shape,
) -> Shape:
    return kind(needle, prefix or re.escape(needle), pattern, could, tail, back=back)


def _behind(
    needle: bytes, prefix: bytes, pattern: bytes, could: bytes, tail: bytes | None
) -> Shape:
    return _Behind(needle, prefix, pattern, could, tail, back=0)


_HEADER = (
    rb"uthorization\\?[\"']?[ \t]{0,4}[:=][ \t]{0,4}\\?[\"']?"
    rb"(?:[Bb]earer|BEARER|[Bb]asic|[Tt]oken)[ \t]{1,4}"
)
_LOGIN = rb"[^\s/?#@:\"'<>\\]"
_PASSWORD = rb"[^\s/?#@\"'<>\\]"
_LONGEST_LOGIN = 64 + 1 + 256
_KEY_LINE = rb"-----%s [A-Z0-9 ]{0,40}PRIVATE KEY-----"

# Undecided until its last line was seen, or it is too long to have one.
_OPEN_BLOCK = (
    rb"-----BEGIN [A-Z0-9 ]{0,40}-{0,5}|"
    + _KEY_LINE % b"BEGIN"
    + rb"[\x00-\xff]{0,%d}" % LONGEST_BLOCK
)

# At one place, the first that fits counts.
SHAPES: tuple[Shape, ...] = (
    _shape(
        b"-----BEGIN",
        _KEY_LINE % b"BEGIN"
        + rb"(?:[^-]|-(?!----)){0,%d}?" % (LONGEST_BLOCK - 80)
        + _KEY_LINE % b"END",
        _OPEN_BLOCK,
    ),
    # One without its end: the lines that look like a key's.
    _shape(
        b"-----BEGIN",
        _KEY_LINE % b"BEGIN" + rb"(?:(?:\s|\\[nrt]){0,4}[A-Za-z0-9+/=]{16,1024}){0,15}",
        _OPEN_BLOCK,
    ),
    _shape(
        b"sk-",
        rb"sk-(?:(?:ant|proj|svcacct|admin|or|lf|live|test)-[\w-]{16,}"
        rb"|(?:[A-Za-z0-9]{1,16}-){0,3}[A-Za-z0-9_]{16,}[\w-]*)",
        rb"sk-[\w-]{0,80}",
        rb"[\w-]*",
    ),
    _shape(
        b"_",  # rarer than the letters before it
        rb"gh[pousr]_[A-Za-z0-9]{20,}",
        rb"gh[pousr]_[A-Za-z0-9]{0,20}",
        rb"[A-Za-z0-9]*",
        prefix=rb"gh[pousr]_",
        kind=_Family,
    ),
    _shape(b"github_pat_", rb"github_pat_\w{20,}", rb"github_pat_\w{0,20}", rb"\w*"),
    _shape(
        b"xox",
        rb"xox[a-z]-[A-Za-z0-9-]{10,}",
        rb"xox(?:[a-z](?:-[A-Za-z0-9-]{0,10})?)?",
        rb"[A-Za-z0-9-]*",
    ),
    _shape(
        b"K",  # rarer than what stands before it
        rb"AKIA[A-Z0-9]{12,}",
        rb"AKIA[A-Z0-9]{0,12}",
        rb"[A-Z0-9]*",
        prefix=b"AKIA",
        back=1,
    ),
    # Corral's own tokens.
    _shape(b"crl_", rb"crl_[0-9a-f]{40,}", rb"crl_[0-9a-f]{0,40}", rb"[0-9a-f]*"),
    _shape(
        b"z",
        rb"AIza[\w-]{30,}",
        rb"AIza[\w-]{0,30}",
        rb"[\w-]*",
        prefix=b"AIza",
        back=2,
    ),
    _shape(
        b"J",
        rb"eyJ[\w-]{8,1024}\.eyJ[\w-]{4,}[\w.-]*",
        rb"eyJ[\w-]{0,1024}(?:\.(?:e(?:y(?:J[\w-]{0,4})?)?)?)?",
        rb"[\w.-]*",
        prefix=b"eyJ",
        back=2,
    ),
    # The sign behind a URL's login is rarer than the ones before it.
    _behind(
        b"@",
        rb"://(?=" + _LOGIN + rb"{0,64}:" + _PASSWORD + rb"{1,256}@)",
        rb"(?<=://)" + _LOGIN + rb"{0,64}:" + _PASSWORD + rb"{1,256}(?=@)",
        rb"(?<=://)" + _LOGIN + rb"{0,64}(?::" + _PASSWORD + rb"{0,256})?",
        None,
    ),
    _behind(
        b"uthorization",
        _HEADER,
        rb"[A-Za-z0-9._~+/=-]{4,}",
        rb"[A-Za-z0-9._~+/=-]{0,4}",
        rb"[A-Za-z0-9._~+/=-]*",
    ),
)
LOGIN = len(SHAPES) - 2

# The end of a text that may be the beginning of a token, whose needle is not whole yet.
_BEGINNINGS = sorted(
    {
        word[:length]
        for word in (
            *(b"-----BEGIN ", b"sk-", b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_"),
            *(b"github_pat_", b"xox", b"AKIA", b"AIza", b"eyJ", b"crl_"),
        )
        for length in range(1, len(word))
    },
    key=len,
    reverse=True,
)
BEGINNING = re.compile(_START + rb"(?:" + b"|".join(map(re.escape, _BEGINNINGS)) + rb")\Z")
LONGEST_BEGINNING = max(map(len, _BEGINNINGS))

_OPEN_LOGIN = re.compile(rb"://" + _LOGIN + rb"{0,64}(?::" + _PASSWORD + rb"{0,256})?\Z")


def open_login(text: bytes) -> int | None:
    """Where a URL's login would begin that the text may still turn out to have."""
    begin = text.rfind(b"://", max(len(text) - _LONGEST_LOGIN - 3, 0))
    return begin + 3 if begin >= 0 and _OPEN_LOGIN.match(text, begin) else None
