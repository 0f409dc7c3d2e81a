"""Redaction of secrets in all usual encodings."""

import base64
import html
import random
import re
import shlex
import urllib.parse

import pytest

from corral.adapters.output.redact import Redactor, redact
from corral.adapters.redaction import Redaction
from corral.api import Corral

SECRET = "hunter2-s3cr3t'\"<&>$`value/+x!"
AROUND = b"a prefix that shifts the column: %b and a long tail after it"


def wrap_lines(encoded: bytes, width: int, end: bytes) -> bytes:
    return end.join(encoded[start : start + width] for start in range(0, len(encoded), width)) + end


SPELLINGS = {
    "base64": base64.b64encode(AROUND % SECRET.encode()),
    "base64url": base64.urlsafe_b64encode(AROUND % SECRET.encode()),
    "base64 in lines": base64.encodebytes(AROUND % SECRET.encode()),
    "base64 in lines of a mail": base64.encodebytes(AROUND % SECRET.encode()).replace(
        b"\n", b"\r\n"
    ),
    "base64 in a PEM": wrap_lines(base64.b64encode(AROUND % SECRET.encode()), 64, b"\n"),
    "base64 in YAML": wrap_lines(base64.b64encode(AROUND % SECRET.encode()), 76, b"\n    "),
    "hex": (AROUND % SECRET.encode()).hex().encode(),
    "hex in capitals": (AROUND % SECRET.encode()).hex().upper().encode(),
    "hex in lines": wrap_lines((AROUND % SECRET.encode()).hex().encode(), 60, b"\n"),
    "hex with colons": SECRET.encode().hex(":").encode(),
    "backslash x": "".join(f"\\x{byte:02x}" for byte in SECRET.encode()).encode(),
    "HTML": html.escape(SECRET).encode(),
    "HTML by jinja": html.escape(SECRET)
    .replace("&quot;", "&#34;")
    .replace("&#x27;", "&#39;")
    .encode(),
    "HTML without quotes": html.escape(SECRET, quote=False).encode(),
    "XML": html.escape(SECRET).replace("&#x27;", "&apos;").encode(),
    "shell quoting": shlex.quote(SECRET).encode(),
    "shell quoting, old style": SECRET.replace("'", "'\\''").encode(),
    "a shell's double quotes": re.sub(r'(["$`\\])', r"\\\1", SECRET).encode(),
    "printf %q": re.sub(r"([^A-Za-z0-9_@%+=:,./-])", r"\\\1", SECRET).encode(),
    "a URL": urllib.parse.quote(SECRET).encode(),
    "a URL, every byte": "".join(f"%{byte:02X}" for byte in SECRET.encode()).encode(),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("piece", [1, 7, 10_000])
def test_secret_is_redacted_in_every_usual_encoding(spelling: str, piece: int) -> None:
    data = b"before\n" + SPELLINGS[spelling] + b"\nafter\n"
    redactor = Redactor([SECRET])
    out = b"".join(
        redactor.feed(data[start : start + piece]) for start in range(0, len(data), piece)
    )
    out += redactor.finish()
    assert out.count(b"[redacted]") == 1
    assert out.startswith(b"before\n")
    assert out.endswith(b"\nafter\n")
    assert out == redact(data, [SECRET])


def test_secret_in_encoded_lines_is_redacted_at_every_column() -> None:
    chosen = random.Random(5)
    for number in range(40):
        secret = bytes(chosen.choice(b"abcXYZ0189'\"<&$ /+-_") for _ in range(8 + 2 * number))
        around = [chosen.randbytes(chosen.randrange(120)) for _ in range(2)]
        whole = around[0] + secret + around[1]
        encoded = base64.b64encode(whole) if number % 2 else whole.hex().encode()
        data = wrap_lines(encoded, chosen.choice([60, 64, 76]), chosen.choice([b"\n", b"\r\n"]))
        assert b"[redacted]" in redact(data, [secret]), (number, secret, data)


def test_prose_in_several_lines_is_unchanged() -> None:
    text = b"deadbeef\ncafe is a word, and so\nis everything that people\nwrite in lines\n" * 20
    assert redact(text, ["people write", "beefcafe"]) == text


@pytest.mark.parametrize("spelling", ["base64 in lines", "hex in lines", "HTML", "shell quoting"])
def test_store_contains_no_encoding_of_a_secret(store: Corral, spelling: str) -> None:
    redaction = store._database.redaction
    assert isinstance(redaction, Redaction)
    redaction.add_known_values(SECRET)
    text = SPELLINGS[spelling].decode()
    letter = store.mail.put("agent:ada", {"text": text})
    assert "[redacted]" in str(store.mail.get(letter.id).body)
    note = store.notes.add(text)
    assert "[redacted]" in store.notes.get(note.id).text
