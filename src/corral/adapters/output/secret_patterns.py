"""Patterns of well-known API keys, tokens and private keys.

Each pattern is located by a needle, a few bytes that are searched for, and then matched by a
regular expression. Searching one byte is about fifty times faster than searching several, so the
rarest byte of the needle is checked first. A pattern decides within a bounded number of bytes; the
rest of the token (`tail`) is removed with it, whatever its length. `incomplete` matches the end of
a text that may become a token.
"""

import re
from functools import cached_property

Pattern = re.Pattern[bytes]

# A token does not begin in the middle of a word, except after an escape that ends with a letter: of
# JSON, a URL or a mail, or a colour sequence (raw or escaped).
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

# Maximum lookbehind of a pattern.
LOOKBEHIND = 64

# A private key block is not longer than this.
MAX_KEY_BLOCK = 16 * 1024

# Maximum number of bytes that are held back undecided.
MAX_UNDECIDED = MAX_KEY_BLOCK + 256


# If needles are closer together than this on average, the text is searched by regular expression:
# checking each needle would cost more. Such texts occur by chance, or as an attack.
DENSE_SPACING = 256


class TokenPattern:
    """One kind of token. Expressions are compiled on first use: compiling all of them takes longer
    than the rest of a short command, and most texts have no needle."""

    def __init__(
        self,
        needle: bytes,
        prefix: bytes,
        pattern: bytes,
        incomplete: bytes,
        tail: bytes | None,
        *,
        back: int,
    ) -> None:
        self.needle = needle
        """The bytes that are searched for, `back` bytes after the beginning of the token."""
        self.rare_byte = _find_rarest(needle)
        """The byte of the needle that is missing in most texts."""
        self.back = back
        self._prefix = prefix
        self._pattern = pattern
        self._incomplete = incomplete
        self._tail = tail

    @cached_property
    def prefix(self) -> Pattern:
        return re.compile(self._prefix)

    @cached_property
    def pattern(self) -> Pattern:
        return re.compile(_START + self._pattern)

    @cached_property
    def incomplete(self) -> Pattern:
        return re.compile(_START + rb"(?:" + self._incomplete + rb")\Z")

    @cached_property
    def tail(self) -> Pattern | None:
        return re.compile(self._tail) if self._tail else None

    @cached_property
    def dense(self) -> Pattern:
        """Matches where a token begins, or may begin."""
        # The prefix first: checking _START takes longer.
        prefix, pattern, incomplete = self._prefix, self._pattern, self._incomplete
        return re.compile(
            rb"(?=" + prefix + rb")" + _START + rb"(?=" + pattern + rb"|(?:" + incomplete + rb")\Z)"
        )

    def may_occur(self, text: bytes) -> bool:
        """Whether the text may contain such a token; False is certain."""
        return self.rare_byte in text and self.needle in text

    def starts(self, text: bytes) -> list[int]:
        """Return the offsets where a token may begin."""
        needle, back, prefix = self.needle, self.back, self.prefix
        budget = len(text) // DENSE_SPACING + 1
        offsets: list[int] = []
        at = text.find(needle)
        while at >= 0:
            budget -= 1
            if budget < 0:
                return [match.start() for match in self.dense.finditer(text)]
            if at >= back and prefix.match(text, at - back):
                offsets.append(at - back)
            at = text.find(needle, at + 1)
        return offsets


# Bytes of needles, from common to rare.
_RARITY = b"etaoinsrhlducmp-gwyb_kxGKJ@z"


def _find_rarest(needle: bytes) -> bytes:
    return bytes([max(needle, key=_RARITY.find)])


class _PrefixGroup(TokenPattern):
    """Several similar prefixes whose letters are common."""

    def starts(self, text: bytes) -> list[int]:
        offsets = [match.start() for match in self.prefix.finditer(text)]
        if len(offsets) * DENSE_SPACING > len(text) + DENSE_SPACING:
            offsets = [match.start() for match in self.dense.finditer(text)]
        return offsets


class _AfterPrefix(TokenPattern):
    """A token that follows its prefix, such as the login of a URL."""

    @cached_property
    def pattern(self) -> Pattern:
        return re.compile(self._pattern)

    @cached_property
    def incomplete(self) -> Pattern:
        return re.compile(self._incomplete + rb"\Z")

    def starts(self, text: bytes) -> list[int]:
        return [match.end() for match in self.prefix.finditer(text)]


class _HeaderValue(_AfterPrefix):
    """The value of a header. The names of headers and schemes are case-insensitive."""

    @cached_property
    def prefix(self) -> Pattern:
        return re.compile(self._prefix, re.IGNORECASE)

    def may_occur(self, text: bytes) -> bool:
        is_possible = self.rare_byte in text or self.rare_byte.upper() in text
        return is_possible and self.needle in text.lower()


def _make_token(
    needle: bytes,
    pattern: bytes,
    incomplete: bytes,
    tail: bytes | None = None,
    *,
    prefix: bytes | None = None,
    back: int = 0,
    kind: type[TokenPattern] = TokenPattern,
) -> TokenPattern:
    return kind(needle, prefix or re.escape(needle), pattern, incomplete, tail, back=back)


_HEADER = (
    rb"uthorization\\?[\"']?[ \t]{0,4}[:=][ \t]{0,4}\\?[\"']?"
    rb"(?:bearer|basic|token)[ \t]{1,4}"
)
_LOGIN = rb"[^\s/?#@:\"'<>\\]"
_PASSWORD = rb"[^\s/?#@\"'<>\\]"
_MAX_LOGIN = 64 + 1 + 256
_KEY_LINE = rb"-----%s [A-Z0-9 ]{0,40}PRIVATE KEY-----"

# Undecided until the last line of the key, or until the block is too long.
_INCOMPLETE_BLOCK = (
    rb"-----BEGIN [A-Z0-9 ]{0,40}-{0,5}|"
    + _KEY_LINE % b"BEGIN"
    + rb"[\x00-\xff]{0,%d}" % MAX_KEY_BLOCK
)

# The first match at an offset wins.
TOKEN_PATTERNS: tuple[TokenPattern, ...] = (
    _make_token(
        b"-----BEGIN",
        _KEY_LINE % b"BEGIN"
        + rb"(?:[^-]|-(?!----)){0,%d}?" % (MAX_KEY_BLOCK - 80)
        + _KEY_LINE % b"END",
        _INCOMPLETE_BLOCK,
    ),
    # A key without its last line: the lines that look like base64.
    _make_token(
        b"-----BEGIN",
        _KEY_LINE % b"BEGIN" + rb"(?:(?:\s|\\[nrt]){0,4}[A-Za-z0-9+/=]{16,1024}){0,15}",
        _INCOMPLETE_BLOCK,
    ),
    _make_token(
        b"sk-",
        rb"sk-(?:(?:ant|proj|svcacct|admin|or|lf|live|test)-[\w-]{16,}"
        rb"|(?:[A-Za-z0-9]{1,16}-){0,3}[A-Za-z0-9_]{16,}[\w-]*)",
        rb"sk-[\w-]{0,80}",
        rb"[\w-]*",
    ),
    _make_token(
        b"_",  # the rarest byte of the prefix
        rb"gh[pousr]_[A-Za-z0-9]{20,}",
        rb"gh[pousr]_[A-Za-z0-9]{0,20}",
        rb"[A-Za-z0-9]*",
        prefix=rb"gh[pousr]_",
        kind=_PrefixGroup,
    ),
    _make_token(b"github_pat_", rb"github_pat_\w{20,}", rb"github_pat_\w{0,20}", rb"\w*"),
    _make_token(
        b"xox",
        rb"xox[a-z]-[A-Za-z0-9-]{10,}",
        rb"xox(?:[a-z](?:-[A-Za-z0-9-]{0,10})?)?",
        rb"[A-Za-z0-9-]*",
    ),
    _make_token(
        b"K",  # the rarest byte of the prefix
        rb"AKIA[A-Z0-9]{12,}",
        rb"AKIA[A-Z0-9]{0,12}",
        rb"[A-Z0-9]*",
        prefix=b"AKIA",
        back=1,
    ),
    # Corral's own tokens.
    _make_token(b"crl_", rb"crl_[0-9a-f]{40,}", rb"crl_[0-9a-f]{0,40}", rb"[0-9a-f]*"),
    _make_token(
        b"z",
        rb"AIza[\w-]{30,}",
        rb"AIza[\w-]{0,30}",
        rb"[\w-]*",
        prefix=b"AIza",
        back=2,
    ),
    _make_token(
        b"J",
        rb"eyJ[\w-]{8,1024}\.eyJ[\w-]{4,}[\w.-]*",
        rb"eyJ[\w-]{0,1024}(?:\.(?:e(?:y(?:J[\w-]{0,4})?)?)?)?",
        rb"[\w.-]*",
        prefix=b"eyJ",
        back=2,
    ),
    # The login of a URL. The "@" after it is rarer than the "://" before it.
    _AfterPrefix(
        b"@",
        rb"://(?=" + _LOGIN + rb"{0,64}:" + _PASSWORD + rb"{1,256}@)",
        rb"(?<=://)" + _LOGIN + rb"{0,64}:" + _PASSWORD + rb"{1,256}(?=@)",
        rb"(?<=://)" + _LOGIN + rb"{0,64}(?::" + _PASSWORD + rb"{0,256})?",
        None,
        back=0,
    ),
    _HeaderValue(
        b"uthorization",
        _HEADER,
        rb"[A-Za-z0-9._~+/=-]{4,}",
        rb"[A-Za-z0-9._~+/=-]{0,4}",
        rb"[A-Za-z0-9._~+/=-]*",
        back=0,
    ),
)
URL_LOGIN = len(TOKEN_PATTERNS) - 2

# The end of a text that may be the beginning of a token, but has no complete needle yet.
_PREFIXES = sorted(
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
PARTIAL_TOKEN = re.compile(_START + rb"(?:" + b"|".join(map(re.escape, _PREFIXES)) + rb")\Z")
MAX_PARTIAL_TOKEN = max(map(len, _PREFIXES))

_INCOMPLETE_LOGIN = re.compile(rb"://" + _LOGIN + rb"{0,64}(?::" + _PASSWORD + rb"{0,256})?\Z")


def find_open_login(text: bytes) -> int | None:
    """Return where the login of an incomplete URL at the end of the text begins, or None."""
    begin = text.rfind(b"://", max(len(text) - _MAX_LOGIN - 3, 0))
    return begin + 3 if begin >= 0 and _INCOMPLETE_LOGIN.match(text, begin) else None
