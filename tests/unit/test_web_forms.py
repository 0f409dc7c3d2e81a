"""Form data as browsers send it, and malformed data."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.types import Message

from corral.kernel.errors import Invalid
from corral.web import forms
from corral.web.forms import MAX_FIELDS, MAX_FORM, Form
from tests.support.grouped_cases import each_case

BOUND = "----x7"
KIND = f"multipart/form-data; boundary={BOUND}"


def multipart_body(*parts: tuple[str, bytes]) -> bytes:
    """Return a multipart body as a browser builds it."""
    text = b"".join(
        f"--{BOUND}\r\nContent-Disposition: form-data; {head}\r\n\r\n".encode() + data + b"\r\n"
        for head, data in parts
    )
    return text + f"--{BOUND}--\r\n".encode()


def read_form(kind: str, body: bytes) -> Form:
    """Read the form of a request with this content type and body."""

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", kind.encode())]}
    return asyncio.run(forms.read_form(Request(scope, receive)))


def test_fields_are_read_in_both_encodings() -> None:
    urlencoded = read_form("application/x-www-form-urlencoded", b"a=1&b=%C3%A4&a=2&c=")
    assert (dict(urlencoded), urlencoded.files) == ({"a": "2", "b": "ä", "c": ""}, [])
    form = read_form(
        KIND, multipart_body(('name="text"', "zwei\r\nZeilen ä".encode()), ('name="id"', b"7"))
    )
    assert dict(form) == {"text": "zwei\r\nZeilen ä", "id": "7"}


@given(st.binary(max_size=2_000))
def test_bytes_of_a_file_are_unchanged(data: bytes) -> None:
    if f"\r\n--{BOUND}".encode() in b"\r\n" + data:
        return
    (file,) = read_form(KIND, multipart_body(('name="file"; filename="a.bin"', data))).files
    assert (file.name, file.data, file.bytes) == ("a.bin", data, len(data))


def test_line_that_begins_with_the_boundary_is_content() -> None:
    text = f"first\r\n--{BOUND}more\r\nlast"
    form = read_form(KIND, multipart_body(('name="text"', text.encode())))
    assert dict(form) == {"text": text}


@each_case(
    ("head", "name"),
    [
        ('filename="../../x"', "../../x"),
        ('filename="a\\"b.txt"', 'a"b.txt'),
        ('filename="ä ö.txt"', "ä ö.txt"),
    ],
)
def test_file_name_is_returned_as_sent(head: str, name: str) -> None:
    (file,) = read_form(KIND, multipart_body((f'name="file"; {head}', b"x"))).files
    assert file.name == name


def test_empty_file_field_has_no_file() -> None:
    assert read_form(KIND, multipart_body(('name="file"; filename=""', b""))).files == []


@each_case(
    ("kind", "body"),
    [
        ("multipart/form-data", multipart_body(('name="a"', b"1"))),
        (KIND, b""),
        (KIND, b"nonsense"),
        (KIND, multipart_body(('name="a"', b"1"))[:-6]),
        (KIND, multipart_body(("filename=x", b"1"))),
        (KIND, f"--{BOUND}\r\nno blank line\r\n--{BOUND}--".encode()),
        (KIND, multipart_body(('name="a"', b"\xff"))),
        (KIND, multipart_body(*[('name="a"', b"1")] * (MAX_FIELDS + 1))),
        (KIND, multipart_body((f'name="{"a" * 9_000}"', b"1"))),
        (KIND, multipart_body(('name="a"', b"x" * (MAX_FORM + 1)))),
        ("application/x-www-form-urlencoded", b"a=\xff"),
        ("application/x-www-form-urlencoded", b"a=" + b"x" * MAX_FORM),
        ("application/x-www-form-urlencoded", b"&".join([b"a=1"] * (MAX_FIELDS + 1))),
    ],
)
def test_invalid_form_is_rejected(kind: str, body: bytes) -> None:
    with pytest.raises(Invalid):
        read_form(kind, body)
